"""Processes that belong to another, and whether one that was written down is still there."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def die_with_parent() -> None:
    """Called in a process: it does not outlive who started it. Linux alone can promise that, for a parent that is killed."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Ended(KeyboardInterrupt):
    """Asked to end by another signal than Ctrl-C's."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number  # as a shell tells it


@contextmanager
def ending_softly() -> Generator[None, None, None]:
    """SIGTERM (a batch system's, `docker stop`) and SIGHUP (a closed terminal) end what goes on here as Ctrl-C does.

    Not where they are ignored, as below nohup, or handled already.
    """

    def end(number: int, frame: object) -> None:
        raise Ended(number)

    here = threading.current_thread() is threading.main_thread()
    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if here and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def this_process() -> dict[str, Any]:
    """Tells this process from every other, also from one that gets its number after the machine was started anew."""
    return {"pid": os.getpid(), "born": _birth(os.getpid()), "within": _namespace()}


def is_alive(process: Mapping[str, Any]) -> bool:
    """Whether what `this_process` told is there and has not ended; Flower does not bury its own."""
    try:
        os.kill(process["pid"], 0)
    except (KeyError, ProcessLookupError):
        return False
    except PermissionError:
        pass  # another user's
    return _birth(process["pid"]) == process.get("born")


def _namespace() -> str | None:
    """Within what a number is one process's alone: containers may have the same host's name, and count for themselves."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _birth(pid: int) -> str | None:
    """When a process began, by which start of the machine; nothing of one that has ended, or where the system does not tell."""
    try:
        state, *more = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state == "Z" else f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {more[18]}"
    except OSError:
        return None
