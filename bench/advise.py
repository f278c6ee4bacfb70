"""Claim about `kithkin advise` on digits: what labels bring that are chosen by entropy and clusters, against random ones.

A simulation: the client is given the true labels of the chosen pictures, and its personal model is trained for ten more epochs
on all its labelled pictures; told is the mean test accuracy over clients with 40 unlabelled pictures or more, above that of the
same training with no new label. Entropy alone and clusters alone show what each part gives. The answer stands in docs/use.md.

    python bench/advise.py [--methods um] [--seeds 0 1 2] [--runs FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

import kithkin
from kithkin import rng
from kithkin.cli import DEMO
from kithkin.compute import Eager, Fit, Lesson, Predict, Recipe
from kithkin.data import deal, load
from kithkin.use import LoadedClient
from kithkin.use.advising import features, typical

BUDGETS = (5, 10, 20)
DRAWS = 2  # of the random choice


def choices(client: LoadedClient, images: np.ndarray, seed: int, budget: int) -> dict[str, list[list[int]]]:
    """Every way to choose that many."""
    entropy, seen = client.predict(images).entropy, features(client, images)
    return {
        "advise": [typical(seen, entropy, budget)],
        "entropy alone": [np.argsort(-entropy)[:budget].tolist()],
        "clusters alone": [typical(seen, np.ones_like(entropy), budget)],
        "random": [rng.generator(seed, client.number, i).permutation(len(images))[:budget].tolist() for i in range(DRAWS)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["um"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, help="keep the runs here, and take those that are there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    digits = load("digits")
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    with tempfile.TemporaryDirectory() as folder:
        for method in args.methods:
            gained: dict[tuple[str, int], list[float]] = defaultdict(list)
            before: list[float] = []
            for seed in args.seeds:
                out = (args.runs or Path(folder)) / f"{method}-{seed}"
                if not (out / "summary.json").exists():
                    kithkin.run(out, **{**DEMO, "method": method, "seed": seed})
                run = kithkin.load(out, device="cpu")
                compute = Eager(run.build, torch.device("cpu"))
                for k, share in enumerate(deal(digits.labels, 10, 0.5, seed).shares):
                    if len(share.unlabelled) < 40:
                        continue
                    client = run.client(k)
                    (w,) = client.weights

                    def accuracy(new: np.ndarray, w=w, share=share, seed=seed, k=k, compute=compute) -> float:
                        rows = torch.from_numpy(np.concatenate([share.labelled, new]))
                        lesson = Lesson(images, rows, labels[rows], rows[:0])
                        fitted = compute.fit(Fit(w, lesson, Recipe("alternate", 10, 32, 0.01), rng.key(seed, k)))
                        test = torch.from_numpy(share.test)
                        right = compute.predict(Predict(fitted.w, images, test)).argmax(1) == labels[test]
                        return float(right.float().mean())

                    before.append(accuracy(share.unlabelled[:0]))
                    for budget in BUDGETS:
                        for name, picked in choices(client, digits.images[share.unlabelled], seed, budget).items():
                            marks = [accuracy(share.unlabelled[rows]) for rows in picked]
                            gained[name, budget].append(fmean(marks) - before[-1])
                print(f"{method}, seeds up to {seed}: {len(before)} clients, {fmean(before):.3f} without new labels")
                for name in dict.fromkeys(name for name, _ in gained):
                    told = [f"{budget} labels {fmean(gained[name, budget]):+.3f}" for budget in BUDGETS]
                    print(f"  {name:15}" + "  ".join(told), flush=True)


if __name__ == "__main__":
    main()
