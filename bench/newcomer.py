"""Claim about `kithkin newcomer` on digits: with a sound pool a client that was not there at training gains much over training
alone, and where the pool is not sound, validation pictures keep most of the harm away. Two seeds, six newcomers each at most.

A run has 1,400 of the digits; newcomers share the other 397 at alpha 0.5 and know 10% or 30% of their training labels.

    python bench/newcomer.py [--methods um um-plus] [--seeds 0 1]
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

import kithkin
from kithkin.cli import DEMO
from kithkin.data import deal, load
from kithkin.use.joining import join


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["um", "um-plus"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    args = parser.parse_args()
    digits = load("digits")
    for method in args.methods:
        for seed in args.seeds:
            there, new = np.split(np.random.default_rng(100 + seed).permutation(len(digits.labels)), [1400])
            with tempfile.TemporaryDirectory() as folder:
                data, out = Path(folder) / "there.npz", Path(folder) / "run"
                np.savez(data, images=digits.images[there], labels=digits.labels[there])
                result = kithkin.run(out, **{**DEMO, "method": method, "data": str(data), "seed": seed})
                run = kithkin.load(out)
                for ratio in (0.1, 0.3):
                    rows: list[tuple[float, float, float]] = []
                    for share in deal(digits.labels[new], 6, 0.5, seed).shares:
                        mine = new[np.concatenate([share.train, share.val, share.test])]
                        if len(mine) >= 20:
                            joined = join(run, replace(digits, images=digits.images[mine], labels=digits.labels[mine]), ratio)
                            alone, helped = joined.marks_alone[1] or 0.0, joined.marks[1] or 0.0
                            rows.append((alone, helped, alone if joined.harmed else helped))
                    alone, helped, kept = (fmean(column) for column in zip(*rows, strict=True))
                    about = f"{method} seed {seed} (run {result.summary['final_test_mean']:.3f}), {ratio:.0%} labelled"
                    print(f"{about}, {len(rows)} newcomers: alone {alone:.3f} helped {helped:.3f} kept {kept:.3f}", flush=True)


if __name__ == "__main__":
    main()
