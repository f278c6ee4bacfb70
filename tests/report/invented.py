"""Run folders without a run: records of any size in the form that a run writes, over a real split."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kithkin.config import RunConfig, as_json
from kithkin.data import deal, load
from kithkin.federation import paper_costs
from kithkin.methods import entry_of

SIZE = 106_130  # numbers in a model


def many_pictures(path: Path, count: int = 60_000) -> Path:
    """A data set that a thousand clients can share."""
    labels = np.random.default_rng(0).integers(0, 10, count)
    np.savez(path, images=np.zeros((count, 8, 8), np.uint8), labels=labels)
    return path


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def make_up(path: Path, method: str = "um", clients: int = 12, rounds: int = 8, every: int = 2, **more: Any) -> Path:
    """A finished run; um-like ones have helpers and pseudo labels."""
    config = RunConfig(method=method, clients=clients, rounds=rounds, eval_every=every, **more).resolved()
    rng = np.random.default_rng(len(method) + clients + 100 * config.seed)
    data = load(config.data)
    split = deal(data.labels, clients, config.alpha, config.seed, config.label_ratio)
    helped = method == "um"
    path.mkdir(parents=True)
    manifest = {
        "config": as_json(config),
        "seed": config.seed,
        "settings": asdict(entry_of(method).settings),
        "split_hash": split.digest(),
        "model_numbers": SIZE,
        "machine": {"device": "cpu", "compute": "eager", "processes": 1},
        "versions": {"kithkin": "0.1.0", "torch": "2", "numpy": "2", "python": "3.11"},
    }
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    metrics: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    audits: list[dict[str, Any]] = []
    lists: list[dict[str, Any]] = []
    level = rng.beta(4, 2, clients)
    for t in range(1, rounds + 1):
        line: dict[str, Any] = {"round": t, "val_mean": None, "test_mean": None, "test_var": None}
        if t % every == 0 or t == rounds:
            val, test = (np.clip(level * (1 - np.exp(-4 * t / rounds)) + rng.normal(0, 0.03, clients), 0, 1) for _ in range(2))
            marks.append({"round": t, "val": val.tolist(), "test": test.tolist()})
            line |= {"val_mean": val.mean(), "test_mean": test.mean(), "test_var": test.var()}
            lists.append({"round": t, "helpers": [helpers_of(rng, k, clients) if helped else [] for k in range(clients)]})
        audits.append(audit_of(rng, t, clients) if helped else no_audit(t))
        asked, taken, wrong = (audits[-1][name] for name in ("asked", "taken", "wrong"))
        causes = {"upload": 4 * SIZE * 5, "search": 4 * SIZE * 20} if helped else {}
        line |= {
            "pseudo_error": wrong / taken if taken else None,
            "pseudo_coverage": taken / asked if asked else None,
            "down_bytes": causes.get("search", 0),
            "up_bytes": causes.get("upload", 0),
            "bytes_by_cause": causes,
            "seconds": 0.5,
        }
        metrics.append(line)
    best = max(range(len(marks)), key=lambda i: float(np.mean(marks[i]["val"])))
    told = [
        {
            "client": k,
            "labelled": len(share.labelled),
            "unlabelled": len(share.unlabelled),
            "val": len(share.val),
            "test": len(share.test),
            "label_ratio": share.label_ratio,
            "test_accuracy": marks[-1]["test"][k],
            "test_at_best_val": marks[best]["test"][k],
            "helpers": [],
        }
        for k, share in enumerate(split.shares)
    ]
    total = {cause: sum(m["bytes_by_cause"].get(cause, 0) for m in metrics) for cause in metrics[-1]["bytes_by_cause"]}
    s, n = manifest["settings"], rounds
    tau = max(1, round((config.sample_rate or 1) * clients)) / clients
    costs = {}
    if helped:
        costs = paper_costs(
            clients, s["helpers"], s["candidates"], min(s["search_rounds"], n), s["refresh_every"], tau, n, SIZE
        )
    summary = {
        "method": method, "data": "digits", "alpha": config.alpha, "seed": config.seed, "rounds": rounds,
        "test_at_best_val": float(np.mean(marks[best]["test"])), "best_val_round": marks[best]["round"],
        "best_test": max(float(np.mean(m["test"])) for m in marks), "bytes_by_cause": total, "cost_formulas": costs,
    }  # fmt: skip
    for name, lines in (("metrics", metrics), ("marks", marks), ("audit", audits), ("lists", lists), ("clients", told)):
        write_lines(path / f"{name}.jsonl", lines)
    (path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return path


def helpers_of(rng: np.random.Generator, k: int, clients: int) -> list[list[float]]:
    others = rng.choice(clients, 5, replace=False).tolist()
    return [[k, 1, 0.9], *([j, 1, round(float(r), 4)] for j, r in zip(others, rng.random(4), strict=False) if j != k)]


def audit_of(rng: np.random.Generator, t: int, clients: int) -> dict[str, Any]:
    by_class = [[30, int(rng.integers(0, 20))] for _ in range(10)]
    by_entropy = [[40 - 2 * i, int((40 - 2 * i) * i / 10)] for i in range(10)]
    helpers = rng.choice(clients, min(clients, 10), replace=False).tolist()
    by_helper = {str(k): [30, int(rng.integers(0, 20))] for k in helpers}
    wrong = sum(w for _, w in by_class)
    asked = sum(n for n, _ in by_entropy)
    return {"round": t, "asked": asked, "taken": 300, "wrong": wrong} | {
        "by_class": by_class, "by_entropy": by_entropy, "by_helper": by_helper,
    }  # fmt: skip


def no_audit(t: int) -> dict[str, Any]:
    return {"round": t, "asked": 0, "taken": 0, "wrong": 0, "by_class": [], "by_entropy": [], "by_helper": {}}
