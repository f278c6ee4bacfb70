"""Claim: after the search phase a UM round keeps its time as K grows; with M, T and the model it grows no faster than they do.

Time of a round and the most memory, as one of K (clients, at a cohort of 10), M (helpers), T (dropout passes) and the network's
width changes and the others stay at the paper's values. Writes growth.json and growth.png, one plot for each.

    python bench/growth.py [--out DIR]          measure, then draw
    python bench/growth.py --draw growth.json   draw again
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from um import pictures, time_rounds

from kithkin.config import RunConfig

CUDA = torch.cuda.is_available()
BASE = {"K": 100, "M": 5, "T": 10, "width": 64} if CUDA else {"K": 8, "M": 3, "T": 2, "width": 4}
OTHERS = (
    {"K": [200, 400], "M": [2, 15], "T": [1, 40], "width": [16, 32]} if CUDA else {"K": [16], "M": [2], "T": [8], "width": [8]}
)
NAMES = {"K": "clients", "M": "helpers", "T": "dropout passes", "width": "width of the network"}
COHORT, SEARCH, AFTER = (10, 8, 11) if CUDA else (2, 5, 6)  # clients a round, rounds of the search phase and after it


def measure(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for at in [BASE, *(BASE | {name: value} for name, values in OTHERS.items() for value in values)]:
        config = RunConfig(method="um", clients=at["K"], sample_rate=COHORT / at["K"], width=at["width"], alpha=0.5)
        settings = {"helpers": at["M"], "mc_samples": at["T"], "search_rounds": SEARCH, "warmup_epochs": 1}
        dataset = pictures(at["K"]) if CUDA else pictures(at["K"], 8, 1, 40)
        rows.append(at | time_rounds(config, SEARCH + AFTER, dataset, **settings, refresh_every=10 if CUDA else 4))
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()), flush=True)
        path.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(NAMES), figsize=(13, 3.2), layout="constrained")
    for axis, (name, title) in zip(axes, NAMES.items(), strict=True):
        same = {k: v for k, v in rows[0].items() if k in NAMES and k != name}
        mine = sorted((row for row in rows if same.items() <= row.items()), key=lambda row: row[name])
        x = [row[name] for row in mine]
        axis.plot(x, [row["search"] for row in mine], "o--", color="#999999", label="round in the search phase")
        axis.plot(x, [row["mean after search"] for row in mine], "o-", color="#0072B2", label="round after it")
        axis.set(xlabel=title, ylim=(0, None), xlim=(0, None))
        axis.grid(alpha=0.3)
        memory = axis.twinx()
        memory.plot(x, [row["GPU GB"] for row in mine], "s:", color="#D55E00", label="GPU memory")
        memory.set_ylim(0, None)
    axes[0].set_ylabel("seconds")
    memory.set_ylabel("GB")
    handles = [line for axis in (axes[0], memory) for line in axis.get_lines()]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--draw", type=Path)
    args = parser.parse_args()
    if args.draw:
        draw(json.loads(args.draw.read_text()), args.draw.with_suffix(".png"))
        return
    rows = measure(args.out / "growth.json")
    try:
        draw(rows, args.out / "growth.png")
    except ImportError:
        print("no matplotlib here: draw later with --draw growth.json")


if __name__ == "__main__":
    main()
