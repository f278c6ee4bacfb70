"""Checkpoints: the world as one safetensors file and a small JSON beside it that vouches for it by hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kithkin.federation import Ledger, World
from kithkin.methods import STATES
from kithkin.record.folder import disk_errors, write_json, write_whole
from kithkin.record.pack import pack, unpack

KEPT = 2
CLASSES = (*STATES, World, Ledger)


def save(folder: Path, world: World) -> None:
    """Write the world by rename, then drop all but the last two checkpoints."""
    path = folder / f"round-{world.round:06d}.safetensors"
    tensors: dict[str, torch.Tensor] = {}
    skeleton = json.dumps(pack(world, tensors))
    host = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    good = [p.stem for p in _newest_first(folder)]
    last = f"the last good checkpoint is {good[0]}" if good else "there is no checkpoint yet"
    with disk_errors(path, f"Free some room, then `kithkin resume {folder.parent}`: {last}."):
        write_whole(path, lambda draft: save_file(host, draft, metadata={"world": skeleton}))
        write_json(path.with_suffix(".json"), {"round": world.round, "sha256": _sha256(path)})
    for old in _newest_first(folder)[KEPT:]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load(folder: Path, device: torch.device, say: Callable[[str], None]) -> World | None:
    """The newest checkpoint that is whole; says so in one line for each that is not."""
    for voucher in _newest_first(folder):
        path = voucher.with_suffix(".safetensors")
        try:
            if json.loads(voucher.read_text())["sha256"] != _sha256(path):
                raise ValueError("it was altered or cut")
            with safe_open(path, "pt", device=str(device)) as f:
                tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - not a dict
                world = unpack(json.loads(f.metadata()["world"]), tensors, CLASSES)
            return world
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as e:
            say(f"Checkpoint {path.name} is not used ({e}); trying the one before.")
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.json"), reverse=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
