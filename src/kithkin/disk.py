"""Writing to a disk: whole files appear by rename, and what a disk refuses is told with a remedy. It comes without torch."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kithkin.errors import KithkinError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def disk_errors(path: Path, remedy: str) -> Generator[None, None, None]:
    """A full or unwritable disk as an error that says what to do."""
    try:
        yield
    except OSError as e:
        raise KithkinError(f"Cannot write {path}: {reason(e)}.", remedy) from e


def reason(e: OSError) -> str:
    """What a disk did not like, without the path."""
    return "the disk is full" if e.errno in FULL else e.strerror or str(e)


def behind(e: BaseException) -> OSError | None:
    """What a disk did not like, where that is why."""
    cause: BaseException | None = e
    while cause and not isinstance(cause, OSError):
        cause = cause.__cause__
    return cause


def is_full(e: BaseException) -> bool:
    """Whether there was no room: what goes on by itself when there is."""
    cause = behind(e)
    return cause is not None and cause.errno in FULL


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then put it in place: readers see the old file or the new one, never half."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():  # a pipe or a device, such as /dev/stdout: who may would put a file in its place
        write(path)
        return
    path = Path(os.path.realpath(path))  # a link stays one
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        write(draft)
        with draft.open("rb") as f:
            os.fsync(f.fileno())
        draft.replace(path)
        hold(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def hold(folder: Path) -> None:
    """Have the disk hold what a folder lists: a power cut could bring the old file back, though the new one was told of."""
    with suppress(OSError):  # a file system that does so by itself, or a folder that may not be read
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """The text as a whole file; a file's name in it that is no text is escaped."""
    write_whole(path, lambda draft: draft.write_text(text, encoding="utf-8", errors="backslashreplace"))
