"""How unsure a prediction is, and whose prediction becomes the pseudo label."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch's own stubs leave these open)

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def entropy(p: Tensor) -> Tensor:
    """H = -sum_c p_c log p_c over the last axis (10); a certain prediction has 0, also where log 0 would appear.

    >>> entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist()
    [0.0, 0.6931471824645996]
    """
    return torch.special.entr(p).sum(-1)


def least_uncertain(answers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """For each sample the answer with the least entropy (11), and whose it was; the earlier one where two tie.

    >>> y, who = least_uncertain([torch.tensor([[0.5, 0.5]]), torch.tensor([[0.1, 0.9]])])
    >>> [round(v, 1) for v in y[0].tolist()], who.tolist()
    ([0.1, 0.9], [1])
    """
    p = torch.stack(list(answers))  # [helpers, n, C]
    who = entropy(p).argmin(0)
    return p[who, torch.arange(p.shape[1], device=p.device)], who
