"""Several models' answers made one."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch's own stubs leave these open)

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def vote(answers: Sequence[Tensor], trust: Sequence[float]) -> Tensor:
    """For each sample the mean answer, weighed by trust; the plain mean where nobody is trusted.

    >>> y = vote([torch.tensor([[0.9, 0.1]]), torch.tensor([[0.4, 0.6]])], trust=[3, 1])
    >>> [round(v, 3) for v in y[0].tolist()]
    [0.775, 0.225]
    """
    p = torch.stack(list(answers))  # [voters, n, C]
    shares = torch.tensor(trust, dtype=p.dtype, device=p.device)
    shares = shares / shares.sum() if sum(trust) > 0 else torch.full_like(shares, 1 / len(trust))
    return (p * shares[:, None, None]).sum(0)
