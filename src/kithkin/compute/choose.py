"""Which compute a run gets."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from kithkin.compute.eager import Eager
from kithkin.compute.graphs import Graphs
from kithkin.compute.jobs import Compute
from kithkin.compute.workers import Workers, start_method
from kithkin.config import Engine
from kithkin.errors import KithkinError


def choose(
    name: Engine,
    build: Callable[[], nn.Module],
    device: torch.device,
    classes: int,
    precision: Literal["bf16", "fp32"],
) -> Compute:
    """The named compute, or the fastest for the device."""
    if name == "graphs" and device.type != "cuda":
        raise KithkinError("--compute graphs needs a CUDA device.", "Give --compute auto, eager or workers.")
    if name == "workers" and device.type == "cuda":
        raise KithkinError("--compute workers needs the CPU.", "Give --device cpu, or --compute auto, eager or graphs.")
    if device.type == "cuda" and (name == "eager" or precision == "fp32"):
        torch.backends.cudnn.allow_tf32 = False  # fp32 means fp32
        torch.backends.cudnn.deterministic = True
    if device.type == "cuda" and name != "eager":
        return Graphs(build, device, classes, bf16=precision == "bf16")
    # A process whose torch has one thread is meant to use one core: one of several runs side by side, say.
    count = min(cores(), torch.get_num_threads())
    if name == "workers" or (name == "auto" and count > 1 and can_fork()):
        return Workers(build, count)
    return Eager(build, device)


def can_fork() -> bool:
    """Whether workers cost next to nothing to start, and may be started at all."""
    return start_method() == "fork" and not multiprocessing.current_process().daemon


def cores() -> int:
    """How many cores this process may use: those that it is bound to, and no more than its container has."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
    except (OSError, ValueError):  # none, or "max"
        return bound
    return min(bound, max(1, -(-quota // period)))
