"""Reading official files: in small chunks into one array, and hashed on the way, so that a wrong file never passes."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import math
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np

from kithkin.data.dataset import Dataset
from kithkin.data.official import File, Source, locate
from kithkin.errors import KithkinError

# What the standard library raises on a damaged, unreadable, encrypted or lying file.
DAMAGE = (OSError, EOFError, ValueError, RuntimeError, zlib.error, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError)
CHUNK = 1 << 20


class Checked:
    """One file's unpacked content; only the official bytes, all of them and no more, pass `finish`."""

    def __init__(self, source: Source, file: File, path: Path, stream: BinaryIO) -> None:
        self.source, self.file, self.path, self.stream = source, file, path, stream
        self._hash = hashlib.sha256()
        self._read = 0

    def wrong(self, found: str, expected: str | None = None) -> KithkinError:
        """The error that names this file, what was expected, what was found, and how to get the right one."""
        inside = f" (with {self.file.name} in it)" if self.file.name not in self.path.name else ""
        expected = expected or f"{self.file.size:,} bytes unpacked, sha256 {self.file.sha256}"
        return KithkinError(
            f"{self.path}{inside} is not the official file: expected {expected}; found {found}.", self.source.remedy
        )

    def fill(self, buffer: Any) -> None:
        """The next bytes, exactly as many as the (contiguous) buffer holds."""
        view = memoryview(buffer).cast("B")
        while view:
            got = self.stream.readinto(view)  # type: ignore[attr-defined]
            if not got:
                raise self.wrong(f"only {self._read:,} bytes")
            self._hash.update(view[:got])
            self._read += got
            view = view[got:]

    def finish(self) -> None:
        """Read what is left, and refuse the file unless it is the official one to the last byte."""
        rest = bytearray(CHUNK)
        while (left := self.file.size - self._read) > 0:
            self.fill(rest if left >= CHUNK else bytearray(left))
        if self.stream.read(1):
            raise self.wrong("more bytes than that")
        if self._hash.hexdigest() != self.file.sha256:
            raise self.wrong(f"sha256 {self._hash.hexdigest()}")


@contextmanager
def _damage_named(source: Source, path: Path, files: Iterable[File]) -> Iterator[None]:
    try:
        yield
    except KithkinError:
        raise
    except DAMAGE as error:
        reason = str(error) or type(error).__name__
        expected = ", ".join(f"{file.name} ({file.size:,} bytes unpacked)" for file in files)
        raise KithkinError(f"{path} cannot be read ({reason}); expected {expected} in it.", source.remedy) from error


def visit(source: Source, folder: Path | None, use: Callable[[Checked], None]) -> None:
    """Hand every file of the set to `use`, unpacked, in whatever order they lie; refuse any that is not official."""
    inside: dict[Path, dict[str, File]] = {}
    for file, path in locate(source, folder).items():
        if path.name == source.archive:
            inside.setdefault(path, {})[file.name] = file
            continue
        with (
            _damage_named(source, path, [file]),
            gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream,
        ):
            use(Checked(source, file, path, stream))  # type: ignore[arg-type]
    for path, files in inside.items():
        within = list(files.values())  # read in one pass, because seeking would unpack the archive anew
        with _damage_named(source, path, within), tarfile.open(path, "r|*") as tar:
            for member in tar:
                file = files.pop(PurePosixPath(member.name).name, None) if member.isfile() else None
                if file and (stream := tar.extractfile(member)):
                    use(Checked(source, file, path, stream))  # type: ignore[arg-type]
        if files:
            raise KithkinError(f"{path} does not hold {', '.join(files)}.", source.remedy)


def read(source: Source, folder: Path | None = None) -> Dataset:
    """The whole set in memory, once: each file goes straight to its place in the pooled arrays."""
    images = np.empty((source.count, *source.shape), np.uint8)
    labels = np.zeros(source.count, np.int64)

    def place(checked: Checked) -> None:
        _READERS[source.form](checked, images, labels)
        if (top := int(labels.max())) >= len(source.classes):
            raise checked.wrong(f"label {top}", f"labels below {len(source.classes)}")

    visit(source, folder, place)
    return Dataset(source.name, images, labels, source.classes, source.flip)


def _read_idx(checked: Checked, images: np.ndarray, labels: np.ndarray) -> None:
    start, count = checked.file.start, checked.file.count
    magic = bytearray(4)
    checked.fill(magic)
    sizes, place = {0x803: ((count, *images.shape[2:]), images), 0x801: ((count,), labels)}.get(
        int.from_bytes(magic), ((), None)
    )
    header = bytearray(4 * len(sizes))
    checked.fill(header)
    if place is None or struct.unpack(f">{len(sizes)}I", header) != sizes:
        raise checked.wrong(f"a header of {bytes(magic + header).hex()}", f"an idx file of {count:,} pictures or labels")
    if place is images:
        checked.fill(images[start : start + count])
    else:
        small = np.empty(count, np.uint8)
        checked.fill(small)
        labels[start : start + count] = small
    checked.finish()


def _read_cifar(checked: Checked, images: np.ndarray, labels: np.ndarray) -> None:
    width = 1 + images[0].size
    for at, many in _chunks(checked.file.count, width):
        records = np.empty((many, width), np.uint8)
        checked.fill(records)
        here = slice(checked.file.start + at, checked.file.start + at + many)
        labels[here] = records[:, 0]
        images[here] = records[:, 1:].reshape(many, *images.shape[1:])
    checked.finish()


def _read_npz(checked: Checked, images: np.ndarray, labels: np.ndarray) -> None:
    """Hash first, then unpack: a zip's members cannot be hashed as one file while they are read."""
    checked.finish()
    height, width, channels = images.shape[2], images.shape[3], images.shape[1]
    shape = (height, width) if channels == 1 else (height, width, channels)
    with zipfile.ZipFile(checked.stream) as members:
        start = 0
        for part, count in zip(("train", "val", "test"), checked.source.parts, strict=True):
            for kind, each in (("images", shape), ("labels", (1,))):
                name = f"{part}_{kind}.npy"
                if name not in members.namelist():
                    raise checked.wrong("no such member", f"an array {name} in it")
                with members.open(name) as member:
                    _npy_header(checked, name, member, (count, *each))
                    for at, many in _chunks(count, math.prod(each)):
                        rows = np.empty((many, *each), np.uint8)
                        _fill(checked, name, member, rows)
                        here = slice(start + at, start + at + many)
                        if kind == "labels":
                            labels[here] = rows[:, 0]
                        else:
                            images[here] = rows.reshape(many, height, width, channels).transpose(0, 3, 1, 2)
            start += count


def _fill(checked: Checked, name: str, member: Any, rows: np.ndarray) -> None:
    if member.readinto(rows.data.cast("B")) != rows.nbytes:
        raise checked.wrong("a shorter one", f"the whole array {name}")


def _npy_header(checked: Checked, name: str, member: Any, shape: tuple[int, ...]) -> None:
    version = np.lib.format.read_magic(member)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    found_shape, fortran, dtype = header(member)
    if found_shape != shape or fortran or dtype != np.uint8:
        raise checked.wrong(f"{dtype} {list(found_shape)}", f"{name} to be uint8 {list(shape)}")


def _chunks(count: int, width: int) -> Iterator[tuple[int, int]]:
    """Runs of rows, about a megabyte each: start and length."""
    step = max(1, CHUNK // width)
    for at in range(0, count, step):
        yield at, min(step, count - at)


_READERS: dict[str, Callable[[Checked, np.ndarray, np.ndarray], None]] = {
    "idx": _read_idx,
    "cifar": _read_cifar,
    "npz": _read_npz,
}
