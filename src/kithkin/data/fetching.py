"""Bringing official files into the data folder; only content that was verified gets a final name there."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from kithkin.data.official import SOURCES, File, Source, find, home
from kithkin.data.reading import CHUNK, DAMAGE
from kithkin.errors import KithkinError


def take(source: Source, path: Path, folder: Path | None = None) -> None:
    """Copy the official files in this folder, archive or file to the data folder, recognised by content alone."""
    if not path.exists():
        raise KithkinError(f"There is no file or folder {path}.", "Check the path.")
    target = _made(home(source, folder))
    everything = {file.sha256: (owner, file) for owner in (*SOURCES.values(), source) for file in owner.files}
    taken, others, trouble = set(), set(), []
    for leaf in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        try:
            for name, stream in _unpacked(leaf, source, {file.size for _, file in everything.values()}):
                sha256 = _keep(stream, target, source)
                owner, file = everything.get(sha256, (None, None))
                if owner is source:
                    taken.add(file)
                elif owner:
                    others.add(owner.name)
                elif expected := _by_name(source, name):
                    trouble.append(f"{name} has sha256 {sha256}, expected {expected.sha256}")
        except KithkinError:
            raise
        except DAMAGE as error:
            trouble.append(f"{leaf.name} cannot be read ({str(error) or type(error).__name__})")
    missing = find(source, folder)[1]
    if taken and not missing:
        return
    if not taken and others:
        other = sorted(others)[0]
        raise KithkinError(f"{path} holds {other}, not {source.name}.", f"Use `kithkin data import {other} {path}`.")
    lacks = ", ".join(file.name for file in (missing if taken else source.files))
    what = f"still lacks {lacks}" if taken else f"has no official file of {source.name} in it (looked for {lacks})"
    raise KithkinError("; ".join([f"{path} {what}", *trouble]) + ".", source.remedy)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KithkinError(f"Cannot make the folder {folder} ({error.strerror}).", _ELSEWHERE) from error
    return folder


_ELSEWHERE = "Choose a folder that you may write to, with enough room: --folder, or the variable KITHKIN_DATA."


def _by_name(source: Source, name: str) -> File | None:
    plain = PurePosixPath(name).name.removesuffix(".gz")
    return next((file for file in source.files if file.name == plain), None)


def _unpacked(path: Path, source: Source, sizes: set[int]) -> Iterator[tuple[str, IO[bytes]]]:
    """Every content that could be an official file's. Names in archives are only shown, never used as paths."""
    if path.stat().st_size in sizes:
        with path.open("rb") as stream:
            yield path.name, stream
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isfile() else None
                if stream:
                    yield from _plain(member.name, member.size, stream, source, sizes)
    elif zipfile.is_zipfile(path) and not _by_name(source, path.name):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with archive.open(member) as stream:
                    yield from _plain(member.filename, member.file_size, stream, source, sizes)
    else:
        with path.open("rb") as stream:
            yield from _plain(path.name, path.stat().st_size, stream, source, sizes)


def _plain(name: str, size: int, stream, source: Source, sizes: set[int]) -> Iterator[tuple[str, IO[bytes]]]:
    if stream.peek(2)[:2] == b"\x1f\x8b":
        yield name, gzip.GzipFile(fileobj=stream)  # type: ignore[misc]
    elif size in sizes or _by_name(source, name):
        yield name, stream


def _keep(stream: IO[bytes], target: Path, source: Source) -> str:
    """Copy to a temporary file; it becomes final only if its sha256, which is returned, is an official one."""
    wanted = {file.sha256: file for file in source.files}
    largest = max(file.size for owner in (*SOURCES.values(), source) for file in owner.files)
    sha256, size = hashlib.sha256(), 0
    try:
        part = tempfile.NamedTemporaryFile(dir=target, prefix=".", suffix=".part", delete=False)  # noqa: SIM115
    except OSError as error:
        raise KithkinError(f"Cannot write in {target} ({error.strerror}).", _ELSEWHERE) from error
    try:
        with part:
            while size <= largest and (chunk := stream.read(CHUNK)):  # larger than any official file: no use going on
                sha256.update(chunk)
                size += len(chunk)
                try:
                    part.write(chunk)
                except OSError as error:
                    raise KithkinError(f"Cannot write in {target} ({error.strerror}).", _ELSEWHERE) from error
        if file := wanted.get(sha256.hexdigest()):
            os.chmod(part.name, 0o644)
            os.replace(part.name, target / file.name)
        return sha256.hexdigest()
    finally:
        Path(part.name).unlink(missing_ok=True)


class _Bar:
    """What pooch asks of a progress bar, on rich's."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._task = progress, progress.add_task(name, total=None)

    def __setattr__(self, key: str, value) -> None:
        if key == "total":
            self._progress.update(self._task, total=value or None)
        else:
            super().__setattr__(key, value)

    def update(self, amount: int) -> None:
        self._progress.advance(self._task, amount)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop_task(self._task)


def download(source: Source, folder: Path | None = None) -> None:
    """Fetch the official files to a temporary folder, check them, and take them over."""
    import pooch  # here, because only this command needs it

    pooch.get_logger().setLevel("WARNING")
    target = _made(home(source, folder))
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with tempfile.TemporaryDirectory(dir=target, prefix=".download-") as temporary, Progress(*columns) as progress:
        for item in source.downloads:
            bar: Any = _Bar(progress, item.name)  # pooch takes it, but its type says bool
            fetch: Any = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16)
            try:
                pooch.retrieve(item.url, item.hash, fname=item.name, path=temporary, downloader=fetch)
            except (OSError, ValueError) as error:  # no connection, a bad status, a broken transfer; a wrong hash
                response = getattr(error, "response", None)
                reason = type(error).__name__ if response is None else f"status {response.status_code}"
                if response is not None:
                    response.close()  # pooch leaves it open
                what = "gave another file than the official one" if type(error) is ValueError else f"failed ({reason})"
                raise KithkinError(
                    f"The download of {item.url} {what}.",
                    f"Get {item.name} on a machine that can reach it, then `kithkin data import {source.name} PATH`.",
                ) from error
        take(source, Path(temporary), folder)
