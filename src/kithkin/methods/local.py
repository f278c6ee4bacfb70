"""Local training, no federation: UM-pFSSL whose helper list has room for the client alone."""

from __future__ import annotations

from kithkin.compute import Recipe
from kithkin.methods.um import Um


def local(recipe: Recipe, T: int, warmup_epochs: int, seed: int, labelled_only: bool) -> Um:
    """With `labelled_only` it never sees its unlabelled data; else its own model labels them, or FixMatch by the recipe."""
    return Um(
        M=1,
        R=0,
        F=0,
        nu=1,
        T=T,
        terms="both",
        recipe=recipe,
        warmup_epochs=warmup_epochs,
        seed=seed,
        labelled_only=labelled_only,
    )
