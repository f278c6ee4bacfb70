"""The memory that a run takes."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
from contextlib import suppress
from pathlib import Path

import torch


def peak_memory() -> dict[str, int]:
    """The most that this process and its workers have taken since the run began, in bytes: the sum of their peaks."""
    host = sum(peak_of(pid) for pid in (os.getpid(), *(worker.pid or 0 for worker in multiprocessing.active_children())))
    gpu = sum(torch.cuda.max_memory_reserved(device) for device in range(torch.cuda.device_count()))
    return {"host_bytes": host, "gpu_bytes": gpu}


def peak_of(process: int) -> int:
    try:
        told = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return int(told[1]) * 1024 if told else 0
    except OSError:  # not Linux: of this process alone, and of all that it did before
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if process == os.getpid() else 0


def forget_peaks() -> None:
    """From now on peaks are those of what follows."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_initialized():  # else nothing of a GPU was taken yet
        for device in range(torch.cuda.device_count()):  # a run may be on any of them
            torch.cuda.reset_peak_memory_stats(device)
