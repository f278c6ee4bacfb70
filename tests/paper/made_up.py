"""Finished cells that nobody ran, with figures that a test can foresee."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from kithkin.config import as_json
from kithkin.paper.cells import FORMAT, Cell, as_text
from kithkin.paper.plan import Plan

UM = {"data": "fashion-mnist", "method": "um", "alpha": 0.5}
PLAN = Plan("short", "paper", seeds=1)


def cell(plan: Plan = PLAN, looks: tuple[str, ...] = (), **changes: Any) -> Cell:
    return next(plan.cells("um", 0.5, looks=looks, **{**UM, **changes}))


def record(
    cell: Cell,
    test: float = 0.5,
    moved: int = 1_000_000,
    confusion: Any = ((3, 1), (0, 4)),
    final: tuple[float, ...] = (0.25, 0.75),
) -> dict[str, Any]:
    causes = {"warm-up": moved // 2, "search": moved // 2}
    summary = {
        "test_at_best_val": test,
        "best_val": test,
        "best_test": test + 0.1,
        "final_test_var": 0.02,
        "test_var_at_best_val": 0.03,
        "final_pseudo_error": 0.25,
        "final_pseudo_coverage": 0.5,
        "seconds": 0.1,
    }
    summary |= {"up_bytes": moved // 2, "down_bytes": moved // 2, "bytes_by_cause": causes}
    summary |= {"cost_formulas": {"greedy_27": 8e9, "helper_lists_28": 2e9, "saved_29": 6e9}}
    pairs = {name: [0.1, 0.6, 0.9] for name in ("both", "entropy", "accuracy", "truth")}
    ranks = {"both": 0.5, "entropy": None, "accuracy": 0.25}
    looks = {
        "features": {"model_of": 1, "x": [0, 1], "y": [2, 3], "class": [0, 1], "client": [0, 1]},
        "relation": {
            "rank": ranks,
            "pooled": ranks,
            "chosen": dict.fromkeys((*pairs, "anyone"), 0.5),
            "pairs": pairs,
        },
    }
    return {
        "format": FORMAT,
        "kithkin": "0.0.1",
        "machine": {"device": "an abacus", "compute": "eager", "processes": 1},
        "config": as_json(cell.config),
        "settings": asdict(cell.settings),
        "seconds": 60.0,
        "summary": summary,
        "curves": {"round": [3, 6], "val": [0.3, None], "test": [0.2, test], "variance": [0.1, 0.02]},
        "label_error": [0.5, None, 0.25],
        "clients": {"label_ratio": [0.1, 0.9], "test": [test, test], "final": list(final)},
        "confusion": [list(row) for row in confusion],
        **{name: looks[name] for name in cell.looks},
    }


def put(cell: Cell, results: Path, **values: Any) -> Path:
    path = results / cell.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_text(record(cell, **values)), encoding="utf-8")
    return path
