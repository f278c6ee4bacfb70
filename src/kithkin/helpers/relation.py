"""Corr(k|j): how far the knowledge of helper j fits client k, and the average that it weighs.

mu      labelled share of client k's training data (2)
H_bar   1 - mean entropy over D_k^u / log C (14); the mean, so that it lies in [0, 1]
Acc     accuracy on D_k^s
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from kithkin.helpers.uncertainty import entropy

Terms = Literal["both", "entropy", "accuracy"]


def relation(p_u: Tensor, correct: Tensor, mu: float, terms: Terms = "both") -> Tensor:
    """Certain on unlabelled data, right on labelled data (13); a term without data counts for nothing.

    `p_u` is [..., n_u, C], `correct` [..., n_s]: one answer for each leading place, so that many helpers take one call.

    >>> relation(torch.tensor([[1.0, 0.0]]), torch.tensor([True, False]), mu=2 / 3).item()
    0.6666666865348816
    """
    nothing = torch.zeros(p_u.shape[:-2], device=p_u.device)
    H_bar = 1 - entropy(p_u).mean(-1) / math.log(p_u.shape[-1]) if p_u.shape[-2] else nothing
    Acc = correct.float().mean(-1) if correct.shape[-1] else nothing
    if terms == "entropy":
        return H_bar.clamp(0, 1)
    if terms == "accuracy":
        return Acc
    return ((1 - mu) * H_bar + mu * Acc).clamp(0, 1)  # rounding may leave [0, 1] by one ulp


def average(models: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted mean of models (Algorithm 1, line 21); the plain mean where all weights are 0."""
    total = sum(weights)
    shares = [x / total for x in weights] if total > 0 else [1 / len(models)] * len(models)
    mean = models[0] * shares[0]
    for w, share in zip(models[1:], shares[1:], strict=True):
        mean.add_(w, alpha=share)
    return mean
