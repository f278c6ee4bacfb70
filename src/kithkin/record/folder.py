"""A run's folder on disk. Whole files appear by rename; lines are appended, and a torn last line is ignored."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kithkin.disk import disk_errors, reason, write_text
from kithkin.errors import KithkinError

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL"}
DTYPES |= {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file, tensor by tensor, so that models on a GPU never lie in host memory all at once."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            f.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


@dataclass(frozen=True)
class Folder:
    """Where one run lives."""

    path: Path

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def marks(self) -> Path:
        return self.path / "marks.jsonl"

    @property
    def audit(self) -> Path:
        return self.path / "audit.jsonl"

    @property
    def lists(self) -> Path:
        return self.path / "lists.jsonl"

    @property
    def clients(self) -> Path:
        return self.path / "clients.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def models(self) -> Path:
        return self.path / "models.safetensors"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def create(self) -> None:
        """Make it, refusing one that has anything in it, or a name that safetensors would write to and never read."""
        try:
            str(self.path.absolute()).encode()
        except UnicodeEncodeError:
            raise KithkinError(f"The name of the folder {self.path.absolute()} is not UTF-8.", "Give another --out.") from None
        with disk_errors(self.path, "Give another --out."):
            self.path.mkdir(parents=True, exist_ok=True)
            left = {".lock", ".draft"}  # by a process that was killed before it had a manifest
            used = any(p.name not in left and p.suffix not in left for p in self.path.iterdir())
            with tempfile.NamedTemporaryFile(dir=self.path):
                pass
        if used:
            if self.summary.exists():
                raise KithkinError(
                    f"{self.path} holds a finished run.", f"`kithkin report {self.path}` shows it; give another --out."
                )
            begun = self.manifest.exists() and not self.models.exists()  # a newcomer's folder has models, and no summary
            remedy = f"Go on with `kithkin resume {self.path}`, or give" if begun else "Give"
            raise KithkinError(f"The folder {self.path} is not empty.", f"{remedy} another --out.")

    @contextmanager
    def claimed(self) -> Generator[None, None, None]:
        """Ours alone while it lasts; the system lets go of the claim if we die, whatever becomes of our workers."""
        lock = self.path / ".lock"
        with disk_errors(lock, f"Mend that, then `kithkin resume {self.path}`."):
            file = lock.open("a")
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fileno()).st_nlink == 0:  # who had it took it away as we came
                    raise BlockingIOError
            except (BlockingIOError, PermissionError):
                raise KithkinError(
                    f"Another process is at work on {self.path}.", "Wait until it is done, or stop it."
                ) from None
            except OSError:
                pass  # a file system without locks
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)

    def read_manifest(self) -> dict[str, Any]:
        try:
            manifest = json.loads(self.manifest.read_text(encoding="utf-8"))
            if not isinstance(manifest, dict):
                raise ValueError("it is no object")
            return manifest
        except (FileNotFoundError, NotADirectoryError):
            remedy = "Name the folder given to --out, or, of a site that was evaluated, its state/run-..."
            raise KithkinError(f"{self.path} is no run: it has no manifest.json.", remedy) from None
        except OSError as e:
            raise KithkinError(f"{self.manifest} cannot be read: {reason(e)}.", "Mend that.") from None
        except ValueError as e:
            raise KithkinError(f"{self.manifest} cannot be read: {e}.", "Start the run anew in another --out.") from None

    def append(self, path: Path, line: dict[str, Any]) -> None:
        with (
            disk_errors(path, f"Free some room, then `kithkin resume {self.path}`."),
            path.open("a", encoding="utf-8") as f,
        ):
            f.write(json.dumps(line) + "\n")

    def secure(self) -> None:
        """Have the disk hold all lines that were appended: a checkpoint without its lines is not used."""
        for path in (self.metrics, self.marks, self.audit, self.lists):
            with disk_errors(path, f"Mend that, then `kithkin resume {self.path}`."), path.open("rb") as f:
                os.fsync(f.fileno())

    def read_lines(self, path: Path, last_round: int | None = None) -> list[dict[str, Any]]:
        """The lines of a record, up to a round; a torn or foreign line ends it."""
        lines: list[dict[str, Any]] = []
        if path.exists():
            for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    break
                if not isinstance(line, dict) or not isinstance(line.get("round", 0), int):
                    break
                if last_round is not None and line.get("round", 0) > last_round:
                    break
                lines.append(line)
        return lines

    def cut(self, path: Path, last_round: int) -> list[dict[str, Any]]:
        """Drop what was written after a round, and give what stays."""
        lines = self.read_lines(path, last_round)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with disk_errors(path, f"Free some room, then `kithkin resume {self.path}`."):
            write_text(path, text)
        return lines

    def tidy(self) -> None:
        """Make room for checkpoints, and take away the drafts that a killed run left."""
        with disk_errors(self.path, f"Mend that, then `kithkin resume {self.path}`."):
            self.checkpoints.mkdir(exist_ok=True)
            for folder in (self.path, self.checkpoints):
                for draft in folder.glob(".*.draft"):
                    draft.unlink()
