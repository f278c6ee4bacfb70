"""Processes that belong to another."""

from __future__ import annotations

import ctypes
import signal
import sys


def die_with_parent() -> None:
    """Called in a process: it does not outlive who started it. Linux alone can promise that, for a parent that is killed."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
