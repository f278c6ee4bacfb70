"""What the page and the figures show of runs: thinned, rounded, each part by itself, so that one that fails costs no other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pvariance
from typing import Any

import numpy as np

import kithkin
from kithkin.comparison import HARM, harmed, worst_decile
from kithkin.config import Alpha, from_json
from kithkin.data import Dataset, Split, load, resolved, split_of
from kithkin.data.split import class_counts
from kithkin.errors import KithkinError
from kithkin.federation import paper_costs
from kithkin.federation.round import cohort_size
from kithkin.own import short
from kithkin.record import Folder
from kithkin.report.records import FAULTS, Line, folders_of, known, read_lines, read_object, rounded
from kithkin.report.side_by_side import comparison_of, in_order, is_comparison, names_of, set_apart, unlike

CURVE = 240  # points of a line: more than a screen shows apart
STEPS = 40  # places of a slider
PATHS = 100  # rounds of a single client's accuracy
ENTRIES = 240_000  # helpers in all lists of a page: about 3 MB


def gather(paths: Sequence[Path], models: bool | None = False, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Everything that a page shows of these runs. `models`: also ask the saved models (None: where it is quickly done).

    What takes long is told to `say`.
    """
    folders = folders_of(paths)
    runs: list[dict[str, Any]] = []
    for path in folders:
        say(f"Reading {path}")
        runs.append(gather_run(path, ENTRIES // len(folders)))
    folders, runs = in_order(paths, folders, runs)
    for run, name in zip(runs, names_of(folders, runs), strict=True):
        run["name"] = name
    compared = is_comparison(runs)
    set_apart(runs, compared)
    asked = runs_to_ask(runs, models)
    for folder, run in zip(folders, runs, strict=True):
        run |= {"confusion": None, "features": None}
        if any(run is other for other in asked):
            from kithkin.report.looks import PATIENCE, look_at  # here, because assembling a federation is slow to import

            say(f"Asking the models of {run['name']}")
            run |= look_at(Folder(folder), run, math.inf if models else PATIENCE / len(asked), run["remarks"])
    alone = [run for run in runs if run["method"] == "local" and run["clients"]]
    for run in runs:
        compare_with(reached_alone(run, alone), run)
    table = comparison_of(runs) if compared else None
    for run in runs:
        del run["twin"]
        if run["clients"]:
            run["clients"]["test"] = rounded(run["clients"]["test"])
    return {"kithkin": kithkin.__version__, "harm": HARM, "comparison": table, "runs": runs}


def runs_to_ask(runs: list[dict[str, Any]], models: bool | None) -> list[dict[str, Any]]:
    """Runs whose models are looked at: all that are finished, or, unasked, the first of each method, since it takes seconds."""
    finished = [run for run in runs if run["finished"] and run["config"] and run["machine"].get("device") != "network"]
    if models is None:
        return list({run["method"]: run for run in reversed(finished)}.values())
    return finished if models else []


def gather_run(path: Path, entries: int) -> dict[str, Any]:
    folder = Folder(path)
    remarks: list[str] = []

    def part(what: str, build: Callable[[], Any], otherwise: Any = None) -> Any:
        try:
            return build()
        except FAULTS as e:
            remarks.append(f"{what} cannot be shown: the record is not as it should be ({type(e).__name__}: {e}).")
            return otherwise

    manifest = read_object(folder.manifest, remarks)
    summary = read_object(folder.summary, remarks) if folder.summary.exists() else {}
    told = {name: object_of(manifest, name) for name in ("config", "settings", "machine", "versions")}
    config = told["config"]
    lines = {
        name: read_lines(getattr(folder, name), remarks, quiet="site" in manifest or (name == "clients" and not summary))
        for name in ("metrics", "marks", "audit", "lists", "clients")
    }
    rounds = next((v for v in (config.get("rounds"), summary.get("rounds")) if isinstance(v, int)), None)
    done = max([m["round"] for m in lines["metrics"]], default=0)
    unfinished = f"The run is not finished: {done} of {rounds or '?'} rounds are on record." if done and not summary else None
    split = part("The split", lambda: gather_split(manifest, config, remarks))
    marks = (
        part("Accuracy over rounds", lambda: gather_marks(lines["marks"], lines["metrics"], summary.get("best_val_round")), {})
        or {}
    )
    run = {
        "folder": str(path),
        "method": short(str(config.get("method") or summary.get("method") or path.resolve().name)),
        "finished": bool(summary),
        "rounds": rounds,
        "done": done,
        "unfinished": unfinished,
        **told,
        "model_numbers": manifest.get("model_numbers"),
        "split_hash": manifest.get("split_hash"),
        **{name: manifest[name] for name in ("classes", "picture", "fingerprint") if name in manifest},
        "client_names": [str(name) for name in named] if isinstance(named := manifest.get("client_names"), list) else [],
        "summary": summary,
        "curve": marks.get("curve"),
        "clients": part("The clients", lambda: gather_clients(marks, lines["clients"], split)),
        "helpers": part("The helpers", lambda: gather_helpers(lines["lists"], entries)),
        "audit": part("The pseudo labels", lambda: gather_audit(lines["audit"])),
        "cost": part("The bytes", lambda: gather_cost(lines["metrics"], manifest)),
        "split": split,
        "twin": tuple(str(told) for told in (config.get("data"), manifest.get("split_hash"), manifest.get("fingerprint"))),
    }
    run["headline"] = part("The headline", lambda: headline(run), {})
    run["remarks"] = remarks
    return run


def object_of(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of the manifest, or nothing where it is something else."""
    value = manifest.get(name)
    return value if isinstance(value, dict) else {}


def thinned(count: int, most: int) -> list[int]:
    """At most so many of `count` places, evenly, the first and the last among them.

    >>> thinned(9, 3), thinned(2, 3)
    ([0, 4, 8], [0, 1])
    """
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))}) if count else []


def gather_marks(marks: list[Line], metrics: list[Line], judged: Any) -> dict[str, Any]:
    """Accuracy over the evaluated rounds, and every client's at that by which the run is judged.

    Of a run that goes on, it is that of best mean validation accuracy so far; a finished one may not be judged by all.
    """
    if not marks:
        told = [m for m in metrics if m.get("test_mean") is not None]
        told = [told[i] for i in thinned(len(told), CURVE)]
        columns = {"round": "round", "mean": "test_mean", "val": "val_mean"}
        curve = {name: rounded([m.get(key) for m in told]) for name, key in columns.items()}
        return {"curve": {**curve, "low": None, "high": None}} if told else {}
    means = [fmean(known(line["val"])) if known(line["val"]) else None for line in marks]
    best = max(range(len(marks)), key=lambda i: (means[i] is not None, means[i] or 0.0))
    best = len(marks) - 1 if means[best] is None else best
    best = next((i for i, line in enumerate(marks) if line["round"] == judged), best)
    at = thinned(len(marks), CURVE)
    tests = [known(marks[i]["test"]) for i in at]
    some = thinned(len(marks), PATHS)
    return {
        "curve": {
            "round": [marks[i]["round"] for i in at],
            "mean": rounded([fmean(t) if t else None for t in tests]),
            "low": rounded([float(np.quantile(t, 0.1)) if t else None for t in tests]),
            "high": rounded([float(np.quantile(t, 0.9)) if t else None for t in tests]),
            "val": rounded([means[i] for i in at]),
        },
        "best_round": marks[best]["round"],
        "test": marks[best]["test"],
        "paths": {"round": [marks[i]["round"] for i in some], "test": [rounded(marks[i]["test"], 3) for i in some]},
    }


def gather_clients(marks: dict[str, Any], clients: list[Line], split: dict[str, Any] | None) -> dict[str, Any] | None:
    """A column for everything that is known of every client."""
    test = marks.get("test") or [c["test_at_best_val"] for c in clients]
    if not test:
        return None
    columns: dict[str, Any] = {"test": test, "paths": marks.get("paths")}
    if len(clients) == len(test):
        sizes = [(c["labelled"], c["labelled"] + c["unlabelled"]) for c in clients]
        columns["tested"] = median(c["test"] for c in clients)  # pictures
    elif split and len(split["every"]) == len(test):
        sizes = [(sum(some), sum(every)) for some, every in zip(split["labelled"], split["every"], strict=True)]
    else:
        sizes = []
    if sizes:
        columns["labelled"], columns["size"] = map(list, zip(*sizes, strict=True))
        columns["ratio"] = rounded([a / max(1, n) for a, n in sizes])
    if split and len(split["every"]) == len(test):
        columns["class"] = [int(np.argmax(row)) for row in split["every"]]
    whole = known(test)
    columns["best_round"] = marks.get("best_round")
    columns["fairness"] = {
        "mean": rounded(fmean(whole)),
        "variance": rounded(pvariance(whole), 7),
        "worst_decile": rounded(worst_decile(whole)),
        "deciles": rounded(np.quantile(whole, np.linspace(0, 1, 11)).tolist()),
    }
    return columns


def gather_helpers(lists: list[Line], entries: int) -> dict[str, Any] | None:
    """Who helps whom at some rounds, flat as [helper, per mille, helper, per mille ...] for every client; churn at all."""
    lists = [line for line in lists if any(h[0] != k for k, row in enumerate(line["helpers"]) for h in row)]  # alone: no graph
    if not lists:
        return None
    churn = [
        fmean(
            [len({h[0] for h in new} - {h[0] for h in old}) / len(new) for old, new in zip(a, b, strict=True) if new] or [0.0]
        )
        for a, b in pairwise(line["helpers"] for line in lists)
    ]
    size = max(1, sum(len(row) for row in lists[-1]["helpers"]))
    at = thinned(len(lists), max(2, min(STEPS, entries // size)))
    told = [i + 1 for i in thinned(len(churn), CURVE)]
    return {
        "round": [lists[i]["round"] for i in at],
        "lists": [[[v for h in row for v in (h[0], round(1000 * h[2]))] for row in lists[i]["helpers"]] for i in at],
        "churn": {"round": [lists[i]["round"] for i in told], "share": rounded([churn[i - 1] for i in told])},
    }


def gather_audit(lines: list[Line]) -> dict[str, Any] | None:
    """Error and coverage of pseudo labels over rounds; counts by class, uncertainty and helper over stretches of these."""
    lines = [line for line in lines if line["asked"]]
    if not lines:
        return None
    steps: list[dict[str, Any]] = []
    for part in np.array_split(np.arange(len(lines)), min(STEPS, len(lines))):
        here = [lines[i] for i in part]
        helpers: dict[str, list[int]] = {}
        for line in here:
            for who, (taken, wrong) in line["by_helper"].items():
                before = helpers.get(str(int(who)), [0, 0])
                helpers[str(int(who))] = [before[0] + taken, before[1] + wrong]
        steps.append(
            {
                "rounds": [here[0]["round"], here[-1]["round"]],
                "by_class": np.sum([line["by_class"] for line in here], 0).tolist(),
                "by_entropy": np.sum([line["by_entropy"] for line in here], 0).tolist(),
                "by_helper": helpers,
            }
        )
    at = thinned(len(lines), CURVE)
    return {
        "round": [lines[i]["round"] for i in at],
        "error": rounded([lines[i]["wrong"] / lines[i]["taken"] if lines[i]["taken"] else None for i in at]),
        "coverage": rounded([lines[i]["taken"] / lines[i]["asked"] for i in at]),
        "steps": steps,
    }


def gather_cost(metrics: list[Line], manifest: dict[str, Any]) -> dict[str, Any] | None:
    """Megabytes moved up to a round, by cause, beside the paper's formulas (27) and (28) at that round."""
    if not metrics:
        return None
    causes = list(dict.fromkeys(cause for m in metrics for cause in m["bytes_by_cause"]))
    moved = {cause: np.cumsum([m["bytes_by_cause"].get(cause, 0) for m in metrics]) / 1e6 for cause in causes}
    at = thinned(len(metrics), CURVE)
    total = np.sum(list(moved.values()), 0) if causes else np.zeros(len(metrics))
    seconds = np.cumsum([m.get("seconds") or 0 for m in metrics])
    evaluated = [i for i, m in enumerate(metrics) if m.get("test_mean") is not None]
    evaluated = [evaluated[i] for i in thinned(len(evaluated), CURVE)]
    rounds = [metrics[i]["round"] for i in at]
    return {
        "round": rounds,
        "moved": {cause: rounded([series[i] for i in at], 3) for cause, series in moved.items()},
        "seconds": rounded([seconds[i] for i in at], 2),
        "megabytes": rounded(total[-1], 3),
        "formulas": formulas(manifest, rounds),
        "accuracy": {
            "megabytes": rounded([total[i] for i in evaluated], 3),
            "test": rounded([metrics[i]["test_mean"] for i in evaluated]),
        },
    }


def formulas(manifest: dict[str, Any], rounds: list[int]) -> dict[str, list[float]] | None:
    """(27) and (28) in megabytes after so many rounds; None for a method without helper lists."""
    s, c = manifest.get("settings") or {}, manifest.get("config") or {}
    if not {"helpers", "candidates", "search_rounds", "refresh_every"} <= s.keys() or s["helpers"] < 2:
        return None
    K, size = c["clients"], manifest["model_numbers"]
    tau = cohort_size(K, c["sample_rate"]) / K
    lists = s["helpers"], s["candidates"]
    costs = [paper_costs(K, *lists, min(s["search_rounds"], t), s["refresh_every"], tau, t, size) for t in rounds]
    return {name: rounded([cost[name] / 1e6 for cost in costs], 3) for name in ("greedy_27", "helper_lists_28")}


def gather_split(manifest: dict[str, Any], config: dict[str, Any], remarks: list[str]) -> dict[str, Any] | None:
    """Pictures of every client by class, dealt again from the data set; None, with a remark, where that is not to be had."""
    if not config:
        return None
    if "site" in manifest:
        remarks.append("A site keeps its own model: the record of the run is with the federation's server.")
        return None
    if "terms" in manifest and manifest.get("split_hash") is None:
        remarks.append("Pictures and models stay with the sites: the split, confusion and latent features are not shown.")
        return None
    try:
        c = resolved(from_json(config).checked())
        asked = c.data, c.data_folder, c.clients or 1, c.alpha, c.seed, c.label_ratio
        if dealt(*asked).digest() != manifest.get("split_hash"):  # the file may have changed since it was read
            without_pictures.cache_clear()
            dealt.cache_clear()
        data, split = without_pictures(c.data, c.data_folder), dealt(*asked)
    except KithkinError as e:
        remarks.append(f"The split is not shown, as the data cannot be read: {e.problem}")
        return None
    if split.digest() != manifest.get("split_hash"):
        remarks.append(f"The split is not shown: {data.name} gives another one than when the run began.")
        return None
    counts = {
        "every": class_counts([share.train for share in split.shares], data.labels, len(data.classes)).tolist(),
        "labelled": class_counts([share.labelled for share in split.shares], data.labels, len(data.classes)).tolist(),
    }
    return {"classes": list(data.classes), **counts}


@lru_cache(maxsize=2)
def without_pictures(data: str, folder: Path | None) -> Dataset:
    """Kept, because many runs are on the same data, and a live page asks again and again."""
    return replace(load(data, folder), images=np.empty(0, np.uint8))


@lru_cache(maxsize=64)
def dealt(data: str, folder: Path | None, clients: int, alpha: Alpha | None, seed: int, label_ratio: float | None) -> Split:
    return split_of(without_pictures(data, folder), clients, alpha, seed, label_ratio)


def headline(run: dict[str, Any]) -> dict[str, Any]:
    """The few numbers that come first; the same as in the summary where the run is finished."""
    fairness = (run["clients"] or {}).get("fairness") or {}
    audit, summary, cost = run["audit"], run["summary"], run["cost"]
    best = max(known(run["curve"]["mean"]), default=None) if run["curve"] else None
    return {
        "test": rounded(summary["test_at_best_val"]) if "test_at_best_val" in summary else fairness.get("mean"),
        "round": summary.get("best_val_round", (run["clients"] or {}).get("best_round")),
        "best_test": rounded(summary["best_test"]) if "best_test" in summary else best,
        "worst_decile": fairness.get("worst_decile"),
        "variance": fairness.get("variance"),
        "label_error": audit["error"][-1] if audit else None,
        "coverage": audit["coverage"][-1] if audit else None,
        "megabytes": cost["megabytes"] if cost else None,
        "seconds": cost["seconds"][-1] if cost else None,
    }


def reached_alone(run: dict[str, Any], alone: Sequence[dict[str, Any]]) -> Sequence[float | None] | None:
    """What its clients reach in the local run of the same split and experiment; where only others are given, a remark."""
    twins = {tuple(unlike(run, local)): local for local in alone if local["twin"] == run["twin"]}
    if twins and () not in twins:
        differs, local = min(twins.items(), key=lambda twin: len(twin[0]))
        run["remarks"].append(f"The gain over {local['name']} is not shown: that run has another {', '.join(differs)}.")
    return twins[()]["clients"]["test"] if () in twins else None


def compare_with(local: Sequence[float | None] | None, run: dict[str, Any]) -> None:
    """Add every client's gain over training alone, where that run is among those given."""
    clients = run["clients"]
    if not clients or local is None or run["method"] == "local" or len(local) != len(clients["test"]):
        return
    gains = [None if a is None or b is None else b - a for a, b in zip(local, clients["test"], strict=True)]
    clients["gain"] = rounded(gains)
    if known(gains):
        run["headline"] |= {"gain": rounded(fmean(known(gains))), "harmed": rounded(harmed(known(gains)))}
