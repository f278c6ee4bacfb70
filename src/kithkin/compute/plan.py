"""Which pictures each training step sees: drawn on the host by address, so that every compute takes the same batches.

Every batch is full. Rows that fill up a last, short batch come from the client's own data again; they count in batch
statistics and weigh nothing in the loss. So shapes are fixed, batch norm never meets a batch of one, and on a network without
batch norm an epoch is exactly the usual one with a smaller last batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kithkin import rng
from kithkin.compute.jobs import Recipe


@dataclass(frozen=True)
class Batch:
    """Positions in the client's list [B], and each one's weight in the mean loss [B] (0 for rows that only fill up)."""

    rows: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class Step:
    """What one training step sees: a batch of either kind, or of both."""

    labelled: Batch | None
    unlabelled: Batch | None


def batches(n: int, size: int, draw: np.random.Generator) -> Iterator[Batch]:
    """One epoch over `n` samples in random order."""
    order = draw.permutation(n)
    for start in range(0, n, size):
        real = order[start : start + size]
        rows = np.resize(np.concatenate([real, order]), size) if len(real) < size else real
        weights = np.zeros(size, np.float32)
        weights[: len(real)] = 1 / len(real)
        yield Batch(rows, weights)


def _endless(n: int, size: int, draw: np.random.Generator) -> Iterator[Batch | None]:
    while True:
        yield from batches(n, size, draw) if n else (None,)


def schedule(n_labelled: int, n_unlabelled: int, recipe: Recipe, key: int) -> list[Step]:
    """All steps of a fit, epoch by epoch. Where both losses share a step, the shorter list is gone through again."""
    size = recipe.batch_size
    draw_s, draw_u = rng.generator(key, "labelled"), rng.generator(key, "unlabelled")
    steps: list[Step] = []
    if recipe.objective == "alternate":
        for _ in range(recipe.epochs):
            steps += [Step(batch, None) for batch in batches(n_labelled, size, draw_s)]
            steps += [Step(None, batch) for batch in batches(n_unlabelled, size, draw_u)]
    else:
        labelled, unlabelled = _endless(n_labelled, size, draw_s), _endless(n_unlabelled, size, draw_u)
        count = -(-max(n_labelled, n_unlabelled) // size) * recipe.epochs
        steps += [Step(next(labelled), next(unlabelled)) for _ in range(count)]
    return steps
