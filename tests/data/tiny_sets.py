"""Tiny official data sets, one per format: the same reading code, with expectations that fit files a test can write."""

from __future__ import annotations

import hashlib
import io
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from kithkin.data.official import File, Source

PARTS = {"idx": (12, 5), "cifar": (12, 4), "npz": (9, 4, 3)}


def file_of(name: str, content: bytes, start: int = 0, count: int = 0) -> File:
    return File(name, len(content), hashlib.sha256(content).hexdigest(), start, count)


def npz_bytes(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


@dataclass
class Tiny:
    """A source, the content of its files, and what reading them must give."""

    source: Source
    contents: dict[str, bytes]
    images: np.ndarray
    labels: np.ndarray

    def write(self, folder: Path) -> Path:
        """The files in the set's sub-folder, as a data folder has them."""
        home = folder / self.source.name
        home.mkdir(parents=True, exist_ok=True)
        for name, content in self.contents.items():
            (home / name).write_bytes(content)
        return home


def build(form: str) -> Tiny:
    rng = np.random.default_rng(0)
    parts = PARTS[form]
    shape = (1, 8, 9) if form == "idx" else (3, 8, 9)
    images = rng.integers(0, 256, (sum(parts), *shape), dtype=np.uint8)
    labels = rng.integers(0, 3, sum(parts))
    small = labels.astype(np.uint8)
    ends = np.cumsum((0, *parts)).tolist()
    contents: dict[str, bytes] = {}
    files: list[File] = []
    for i, (a, b) in enumerate(pairwise(ends)):
        if form == "idx":
            both = {
                f"images{i}": struct.pack(">4I", 0x803, b - a, 8, 9) + images[a:b].tobytes(),
                f"labels{i}": struct.pack(">2I", 0x801, b - a) + small[a:b].tobytes(),
            }
        elif form == "cifar":
            both = {f"batch{i}.bin": np.concatenate([small[a:b, None], images[a:b].reshape(b - a, -1)], 1).tobytes()}
        else:
            both = {}
        contents |= both
        files += [file_of(name, content, a, b - a) for name, content in both.items()]
    if form == "npz":
        arrays = {}
        for part, (a, b) in zip(("train", "val", "test"), pairwise(ends), strict=True):
            arrays[f"{part}_images"] = np.ascontiguousarray(images[a:b].transpose(0, 2, 3, 1))
            arrays[f"{part}_labels"] = small[a:b, None]
        contents["tiny-npz.npz"] = npz_bytes(**arrays)
        files.append(file_of("tiny-npz.npz", contents["tiny-npz.npz"], 0, len(images)))
    archive = "tiny.tar.gz" if form == "cifar" else None
    source = Source(f"tiny-{form}", form, shape, parts, ("a", "b", "c"), True, tuple(files), archive=archive, unpacked="opened")
    return Tiny(source, contents, images, labels)
