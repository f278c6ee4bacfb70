"""Processes that belong to another, and whether one that was written down is still there."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def die_with_parent() -> None:
    """Called in a process: it does not outlive who started it. Linux alone can promise that, for a parent that is killed."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def this_process() -> dict[str, Any]:
    """Tells this process from every other, also from one that gets its number after the machine was started anew."""
    return {"pid": os.getpid(), "born": _birth(os.getpid())}


def is_alive(process: Mapping[str, Any]) -> bool:
    """Whether what `this_process` told is there and has not ended; Flower does not bury its own."""
    try:
        os.kill(process["pid"], 0)
    except (KeyError, ProcessLookupError):
        return False
    except PermissionError:
        pass  # another user's
    return _birth(process["pid"]) == process.get("born")


def _birth(pid: int) -> str | None:
    """When a process began, by which start of the machine; nothing of one that has ended, or where the system does not tell."""
    try:
        state, *more = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state == "Z" else f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {more[18]}"
    except OSError:
        return None
