"""How right the pseudo labels of a round were: for the record alone, never for training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kithkin.methods.base import Labels

BINS = 10  # of uncertainty: entropy as a share of the most that there can be


def audit(labels: dict[int, Labels], truth: Sequence[Tensor] | Mapping[int, Tensor], classes: int) -> dict[str, Any]:
    """Counts over all clients that labelled in a round.

    `asked` pictures had an answer, `taken` of them were used, `wrong` of those were not of that class. Then the same two counts
    by true class and by helper, if it was one alone, and for every bin of uncertainty all answers and the wrong ones among
    them, taken or not.
    """
    if not labels:
        return {"asked": 0, "taken": 0, "wrong": 0, "by_class": [], "by_entropy": [], "by_helper": {}}
    true = torch.cat([truth[k] for k in labels])
    taken = torch.cat([label.taken for label in labels.values()])
    false = torch.cat([label.classes for label in labels.values()]) != true
    share = torch.cat([label.entropy for label in labels.values()]) / math.log(max(2, classes))
    bins = (share * BINS).long().clamp(0, BINS - 1)
    whos = torch.cat([torch.full_like(label.classes, -1) if label.who is None else label.who for label in labels.values()])
    helpers, places = whos.unique(return_inverse=True)

    def counts(places: Tensor, n: int, *among: Tensor) -> Tensor:
        return torch.stack([torch.bincount(places[these], minlength=n) for these in among], 1)

    parts = (
        torch.stack([taken.new_tensor(len(taken), dtype=torch.int64), taken.sum(), (taken & false).sum()])[None],
        counts(true, classes, taken, taken & false),
        counts(bins, BINS, torch.ones_like(taken), false),
        counts(places, len(helpers), taken, taken & false),
    )
    flat = torch.cat([part.flatten() for part in (*parts, helpers)]).tolist()  # one wait for the device
    rows: list[list[list[int]]] = []
    for part in parts:
        numbers, flat = flat[: part.numel()], flat[part.numel() :]
        width = part.shape[1]
        rows.append([numbers[i : i + width] for i in range(0, len(numbers), width)])
    ((asked, used, wrong),), by_class, by_entropy, by_helper = rows
    named = {str(k): row for k, row in zip(flat, by_helper, strict=True) if row[0] and k >= 0}
    return {"asked": asked, "taken": used, "wrong": wrong, "by_class": by_class, "by_entropy": by_entropy, "by_helper": named}
