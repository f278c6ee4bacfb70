"""Claim: of UM+'s clients on small CIFAR-10 at alpha 0.5 a fifth end more than 3 points below training alone by their own test
pictures, 25 on average, and none by the 55,000 pictures that the small set leaves over.

All of these are asked of every client's last model; a class weighs as it does among the client's own pictures. Learning rates
are those of `kithkin paper --scale small`. It needs the real data, and a minute or two for a run.

    python bench/harm.py [--data small-cifar-10] [--alphas 0.5] [--seeds 0] [--methods um-plus]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kithkin.comparison import HARM
from kithkin.compute import Predict
from kithkin.data import load
from kithkin.data.official import SMALL, find
from kithkin.data.sources import SOME, small
from kithkin.display import display_for
from kithkin.paper.plan import Plan
from kithkin.record import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=SMALL, default="small-cifar-10")
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.5])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=["um-plus"])
    args = parser.parse_args()
    whole = SMALL[args.data].name
    if find(SMALL[args.data])[1]:
        return print(f"Not measured, as {whole} is not here: kithkin data get {whole}")
    others = small(args.data, load(whole), slice(SOME, None))
    for alpha in args.alphas:
        for seed in args.seeds:
            alone = accuracies("local", args.data, alpha, seed, others)
            for method in args.methods:
                by_own, by_others = accuracies(method, args.data, alpha, seed, others)
                print(
                    f"{args.data}, alpha {alpha:g}, seed {seed}, {method}:",
                    f"by their own test pictures {told(by_own, alone[0])};",
                    f"by {len(others.labels):,} others {told(by_others, alone[1])}",
                    flush=True,
                )


def told(mine: np.ndarray, alone: np.ndarray) -> str:
    gain = mine - alone
    return f"{mine.mean():.3f} (local {alone.mean():.3f}), {np.mean(gain < -HARM):.1%} harmed, worst {gain.min():+.3f}"


def accuracies(method: str, data: str, alpha: float, seed: int, others: Any) -> tuple[np.ndarray, np.ndarray]:
    """Every client's, at the last round: by its own test pictures, and by the others."""
    *_, cell = Plan("small", seeds=seed + 1).cells("", "", data.removeprefix("small-"), method, alpha)
    images, truth = torch.from_numpy(others.images), torch.from_numpy(others.labels)
    rows, found = torch.arange(len(truth)), []

    def look(federation: Any, world: Any) -> None:
        labels = load(data).labels
        for share, models in zip(federation.split.shares, federation.models(world), strict=True):
            p = torch.stack(federation.courier.compute.work([Predict(w, images, rows) for w in models])).mean(0)
            right = (p.argmax(1) == truth).double()
            by_class = [right[truth == c].mean().item() for c in range(federation.classes)]
            mine = np.concatenate([share.labelled, share.unlabelled, share.val, share.test])
            found.append(np.bincount(labels[mine], minlength=federation.classes) @ by_class / len(mine))

    with tempfile.TemporaryDirectory() as folder:
        result = run(cell.config, cell.settings, Path(folder) / "run", display_for(False, f"{cell}"), look)
    return np.array([line["test_accuracy"] for line in result.clients]), np.array(found)


if __name__ == "__main__":
    main()
