"""Whether the fused kernels (`kithkin.nets.fused`) take over: in bfloat16 on a CUDA device where Triton works."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def why_not() -> str | None:
    """What keeps Triton from working here, if anything does: it may be missing, or find no C compiler."""
    try:
        from kithkin.nets import fused

        fused.dropout(torch.ones(1, 8, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda"), 0, 128)
    except Exception as e:  # whatever it is, everything works without
        return str(e).strip().partition("\n")[0] or type(e).__name__
    return None


def fusing(x: Tensor) -> bool:
    return x.is_cuda and torch.is_autocast_enabled("cuda") and why_not() is None
