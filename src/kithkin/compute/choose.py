"""Which compute a run gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from kithkin.compute.eager import Eager
from kithkin.compute.graphs import Graphs
from kithkin.compute.jobs import Compute
from kithkin.errors import KithkinError


def choose(
    name: Literal["auto", "eager", "graphs"],
    build: Callable[[], nn.Module],
    device: torch.device,
    classes: int,
    precision: Literal["bf16", "fp32"],
) -> Compute:
    """The named compute, or the fastest for the device."""
    if name == "graphs" and device.type != "cuda":
        raise KithkinError("--compute graphs needs a CUDA device.", "Give --compute auto or eager.")
    if device.type == "cuda" and (name == "eager" or precision == "fp32"):
        torch.backends.cudnn.allow_tf32 = False  # fp32 means fp32
        torch.backends.cudnn.deterministic = True
    if name == "eager" or device.type != "cuda":
        return Eager(build, device)
    return Graphs(build, device, classes, bf16=precision == "bf16")
