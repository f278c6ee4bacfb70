"""Checkpoints, and when to write one: the world as a safetensors file, and a small JSON beside it that vouches by hash."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from kithkin.disk import disk_errors, reason, write_json, write_whole
from kithkin.errors import KithkinError
from kithkin.federation import Ledger, World
from kithkin.methods import STATES, entry_of
from kithkin.record.folder import Folder, write_tensors
from kithkin.record.pack import pack, unpack

KEPT = 2
CLASSES = (*STATES, World, Ledger)


def classes_of(method: str) -> tuple[type, ...]:
    """What the worlds of a run with this method are made of."""
    return (*CLASSES, *entry_of(method).states)


def check(world: World, classes: Iterable[type]) -> None:
    """Refuse a world that `load` could not give back."""
    tensors: dict[str, torch.Tensor] = {}
    unpack(pack(world, tensors), tensors, classes)


def save(folder: Path, world: World) -> None:
    """Write the world by rename, then drop what is older than the last two, or newer than this world."""
    path = folder / f"round-{world.round:06d}.safetensors"
    tensors: dict[str, torch.Tensor] = {}
    skeleton = json.dumps(pack(world, tensors))
    try:
        with disk_errors(path, f"Free some room, then `kithkin resume {folder.parent}`"):
            write_whole(path, lambda draft: write_tensors(draft, tensors, {"world": skeleton}))
            write_json(path.with_suffix(".json"), {"round": world.round, "sha256": _sha256(path)})
    except KithkinError as e:
        good = next((p for p in _newest_first(folder) if not _damage(p)), None)
        last = f"the last good checkpoint is {good.stem}" if good else "there is no checkpoint yet"
        raise KithkinError(e.problem, f"{e.remedy}: {last}.") from e
    found = _newest_first(folder)
    kept = [p for p in found if _round(p) <= world.round][:KEPT]
    for other in found:
        if other not in kept:
            _drop(other)


class Pace:
    """When to save: as often as asked; else every ten rounds, but never more than a twentieth of the time."""

    def __init__(self, every: int | None, saved: int) -> None:
        self.every = every
        self.saved = saved  # the last round that is safe
        self.since = time.monotonic()
        self.took: float | None = None

    def is_time(self, world: World) -> bool:
        if self.every is not None:
            return self.every > 0 and world.round % self.every == 0
        if world.round % 10:
            return False
        took = expected_seconds(world) if self.took is None else self.took
        return time.monotonic() - self.since > 20 * took

    def save(self, folder: Folder, world: World) -> None:
        began = time.monotonic()
        folder.secure()
        save(folder.checkpoints, world)
        self.saved, self.since = world.round, time.monotonic()
        self.took = self.since - began


def expected_seconds(world: World) -> float:
    """About how long `save` will take, by a slow disk's speed."""
    tensors: dict[str, torch.Tensor] = {}
    pack(world, tensors)
    return sum(t.numel() * t.element_size() for t in tensors.values()) / 4e8


Place = Callable[[torch.Tensor], torch.device]


def load(
    folder: Path,
    place: Place,
    say: Callable[[str], None],
    most: float = math.inf,
    classes: Iterable[type] = CLASSES,
) -> World | None:
    """The newest checkpoint that is whole and whose rounds, `most` at the most, are on record; says which are not.

    One that is whole and cannot be read now, or by this code, is refused: to begin anew would cost it and its record.
    `place` tells where a tensor belongs, `classes` of what a state may be made.
    """
    for path in _newest_first(folder):
        damage = _damage(path) or ("its rounds are not on record" if _round(path) > most else "")
        if not damage:
            try:
                with safe_open(path, "pt") as f:
                    read = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - not a dict
                    tensors = {name: tensor.to(place(tensor)) for name, tensor in read.items()}
                    return unpack(json.loads(f.metadata()["world"]), tensors, classes)
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as e:
                remedy = f"Nothing was changed. Bring back the code that wrote it, or delete {folder} to begin anew."
                raise KithkinError(f"{path} is whole, but cannot be taken up ({e}).", remedy) from None
        say(f"Checkpoint {path.name} is not used ({damage}); trying the one before.")
    return None


def _damage(path: Path) -> str:
    """What is wrong with a checkpoint, as far as its voucher tells; nothing if it is whole."""
    try:
        vouched = json.loads(path.with_suffix(".json").read_text())["sha256"]
        return "" if _sha256(path) == vouched else "it was altered or cut"
    except FileNotFoundError as e:
        return "nothing vouches for it" if e.filename != str(path) else "it is gone"
    except IsADirectoryError as e:
        return reason(e)
    except OSError as e:
        raise KithkinError(
            f"{path} cannot be read now: {reason(e)}.", "Nothing was changed. Mend that, then try again."
        ) from None
    except (ValueError, KeyError, TypeError):
        return "its voucher cannot be read"


def _newest_first(folder: Path) -> list[Path]:
    stems = {p.stem for p in folder.glob("round-*") if p.suffix in (".json", ".safetensors")}
    stems = {stem for stem in stems if stem.removeprefix("round-").isdecimal()}  # no file manager's "(copy)"
    return sorted((folder / f"{stem}.safetensors" for stem in stems), key=_round, reverse=True)


def _round(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def _drop(path: Path) -> None:
    path.with_suffix(".json").unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
