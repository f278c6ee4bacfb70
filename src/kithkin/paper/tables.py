"""The paper's tables, and two of ours: the runs that each needs, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from kithkin.comparison.rates import SEED as TUNING_SEED
from kithkin.config import PAPER
from kithkin.paper.cells import Cell, Grid
from kithkin.paper.drawing import Block, Measure, beside, heads_beside, here, measured, named, panels_of, table
from kithkin.paper.measures import (
    MEASURES,
    PUBLISHED,
    TERMS,
    at_best,
    best_of_any,
    finals,
    harmed_share,
    label_error,
    labelled,
    moved,
    published,
    variance_at_best,
)
from kithkin.paper.plan import ALL, LISTED, MAIN, MEDICAL, OURS, SHORT, SUPERVISED, TUNED, Plan

GRID = (3e-3, 1e-3, 1e-2, 3e-4)  # learning rates that every method may choose from, from the middle outwards,
WORST = -math.inf  # the accuracy of a run that diverged
SMALL_GRID = (3e-3, 1e-2, 1e-3, 3e-2, 3e-4, 1e-1)  # and on small sets
PARTS: dict[str, dict[str, Any]] = {  # UM+, and what is left of it without one of its parts
    "um-plus": {},
    "class priors left in": {"smoothing": 1e9},
    "no helpers": {"helpers": 1, "candidates": 0},
    "no pseudo labels": {"threshold": 1.1},
    "labels from every vote": {"threshold": 0.0},
    "no server momentum": {"server_momentum": 0.0},
    "last common model, not the steady one": {"window": 0.0},
    "labels never pooled": {"losses": "sum"},
    "losses weighted by (1)": {"losses": "weighted"},
    "no pass before evaluation": {"tune_epochs": 0},
    "never moved": {"views": "plain"},
    "moved from the start": {"views": "weak"},
    "all moved": {"moved": 1.0},
    "views strong": {"views": "strong"},
}

BOLD = " (bold: the best of those that do not know all labels)"


# Tables I, II, VI, VII: methods by alpha
def accuracy_cells(data: str, plan: Plan) -> Iterator[Cell]:
    for alpha in plan.alphas:
        for method in ("um", *(name for name in ALL if name != "um")):
            yield from plan.cells(method, alpha, data, method, alpha)


def accuracy_draw(name: str, grid: Grid, plan: Plan) -> list[Block]:
    alphas = sorted(grid.columns)
    alone = plan.reduced  # on other pictures the paper's figures say nothing
    heads = ["method", *(head for a in alphas for head in heads_beside(f"α = {a:g}", alone))]
    blocks: list[Block] = []
    for title, measure in MEASURES.items():
        first = {a: next(iter(ranked(grid, a, measure)), None) for a in alphas}
        lines: list[list[str]] = []
        for row in (row for row in ALL if row in grid.rows):
            texts = {a: beside(measured(grid, row, a, measure), published(name, row, a), alone) for a in alphas}
            shown = [f"**{text}**" if i == 0 and row == first[a] else text for a in alphas for i, text in enumerate(texts[a])]
            lines += [[row, *shown]] if any(shown) else []
        blocks += [f"{title}{BOLD if any(first.values()) else ''}:", table(heads, lines)]
    return [*blocks, *differences(name, grid, plan)]


def ranked(grid: Grid, alpha: float, measure: Measure = at_best) -> dict[str, float]:
    """The means of the methods that do not know all labels, the best first; none where there are not two of them.

    Over the seeds that all of them have, if there are any: a seed deals the pictures anew, and some splits are easy.
    """
    rows: dict[str, dict[int, float]] = {}
    for row in grid.rows:
        found = {r["config"]["seed"]: v for r in grid.at(row, alpha) if (v := measure(r)) is not None}
        rows |= {row: found} if found and row not in SUPERVISED else {}
    if len(rows) < 2:
        return {}
    common = set.intersection(*map(set, rows.values()))
    means = {row: fmean(v for seed, v in values.items() if seed in common or not common) for row, values in rows.items()}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def leaders(grid: Grid, alpha: float, most: int = 3) -> str:
    """The first few in words, and which share of its clients the best leaves worse off than alone."""
    means = ranked(grid, alpha)
    if not means:
        return ""
    first = next(iter(means))
    harm = [] if first == "local" else measured(grid, first, alpha, partial(harmed_share, finals(grid.at("local", alpha))))
    texts = [f"{row}&nbsp;{mean:.1f}" for row, mean in means.items()][:most]
    texts[0] = f"**{texts[0]}**" + (f" ({fmean(harm):.0f}% harmed)" if harm else "")
    return ", ".join(texts)


def differences(name: str, grid: Grid, plan: Plan) -> list[Block]:
    """In words: how far ours lie from the paper's, where they were run on the same pictures."""
    if plan.reduced:
        return []
    both = {
        (row, column): fmean(ours) - theirs
        for row, column in grid.wanted
        if (ours := measured(grid, row, column, at_best)) and (theirs := published(name, row, column)) is not None
    }
    if not both:
        return []
    far = max(both, key=lambda place: abs(both[place]))
    mean = fmean(both.values())
    side = "above" if mean > 0 else "below"
    return [
        f"Of the {len(both)} places that both have, ours lie {abs(mean):.1f} points {side} the paper's on average "
        f"({sum(d > 0 for d in both.values())} above, {sum(d < 0 for d in both.values())} below); "
        f"farthest: {named(far)} ({both[far]:+.1f})."
    ]


# Table III: the terms of the relation
def component_cells(
    plan: Plan, alphas: Sequence[float] = (), sets: Sequence[str] = MAIN, looks: Sequence[str] = ()
) -> Iterator[Cell]:
    for alpha in alphas or plan.alphas:
        for data in sets:
            for terms in ("both", "entropy", "accuracy"):
                yield from plan.cells(f"{data}, alpha {alpha:g}", terms, data, "um", alpha, looks, relation=terms)


def component_draw(grid: Grid, plan: Plan) -> list[Block]:
    heads = ["", *(head for name in TERMS.values() for head in heads_beside(name, plan.reduced))]
    theirs = partial(published, "components")
    blocks: list[Block] = []
    for title, measure in MEASURES.items():
        lines = [
            [row, *(t for c in TERMS for t in beside(measured(grid, row, c, measure), theirs(row, c), plan.reduced))]
            for row in PUBLISHED["components"]["rows"]
            if row in grid.rows
        ]
        blocks += [f"{title}:", table(heads, lines)]
    return [*blocks, *differences("components", grid, plan)]


# Tables IV and V: one setting against accuracy and cost
def sweep_cells(setting: str, values: Sequence[float], plan: Plan) -> Iterator[Cell]:
    usual = 10 if setting == "refresh_every" else 0.1
    for method in LISTED:
        for value in sorted(values, key=lambda v: v != usual):
            yield from plan.cells(method, value, "fashion-mnist", method, 0.5, (), **{setting: value})


def sweep_draw(name: str, letter: str, whole: float, grid: Grid, plan: Plan) -> list[Block]:
    alone = plan.reduced
    lines: list[list[str]] = []
    for method in panels_of(grid.rows, ["um", *(row for row, _ in grid.found)]):
        base = measured(grid, method, whole, moved)
        for value in sorted(grid.columns):
            share = [100 * bytes_ / fmean(base) for bytes_ in measured(grid, method, value, moved)] if base else []
            accuracy, cost = (published(name, row, value) if method == "um" else None for row in ("accuracy", "cost"))
            best, largest = (measured(grid, method, value, measure) for measure in (at_best, best_of_any))
            lines.append([method, f"{value:g}", *beside(best, accuracy, alone), here(largest), *beside(share, cost, alone)])
    heads = ["", letter, *heads_beside("accuracy (%)", alone), "largest of any evaluation", *heads_beside("cost (%)", alone)]
    words = "Test accuracy at the round of best mean validation accuracy; cost: bytes moved, as a share of those with"
    return [f"{words} {letter} = {whole:g}.", table(heads, lines)]


# (27) to (29)
def cost_cells(plan: Plan) -> Iterator[Cell]:
    for data in (*MAIN, *MEDICAL):
        yield from plan.cells(data, "um", data, "um", 0.5)


def cost_draw(grid: Grid, plan: Plan) -> list[Block]:
    causes = ("warm-up", "search", "refresh", "fill", "upload")
    heads = ["GB", "greedy (27)", "lists (28)", "saved (29)", "saved (%)", "moved", *causes, "moved / (28)"]
    lines: list[list[str]] = []
    for data in grid.rows:
        records = grid.at(data, "um")
        if not records:
            lines.append([data, *[""] * (len(heads) - 1)])
            continue
        formulas = records[0]["summary"]["cost_formulas"]
        greedy, lists, saved = (formulas[name] for name in ("greedy_27", "helper_lists_28", "saved_29"))
        by_cause = [fmean(r["summary"]["bytes_by_cause"].get(cause, 0) for r in records) for cause in causes]
        all_moved = fmean(map(moved, records))
        by_formula, moves = (list(map(gigabytes, part)) for part in ((greedy, lists, saved), (all_moved, *by_cause)))
        lines.append([data, *by_formula, f"{100 * saved / greedy:.1f}", *moves, f"{100 * all_moved / lists:.0f}%"])
    return ["Bytes of `um` at α = 0.5 (mean over seeds), beside the paper's formulas:", table(heads, lines)]


def gigabytes(size: float) -> str:
    """To three digits, in plain numbers.

    >>> gigabytes(5.364e12), gigabytes(2.68e9), gigabytes(0)
    ('5,360', '2.68', '0')
    """
    return f"{float(f'{size / 1e9:.3g}'):,.12g}"


# Ours: what each part of UM+ gives
def part_cells(plan: Plan) -> Iterator[Cell]:
    for data in MAIN:
        for name, own in PARTS.items():
            yield from plan.cells(name, data, data, "um-plus", 0.5, **own)


def part_draw(grid: Grid, plan: Plan) -> list[Block]:
    measures: dict[str, tuple[Measure, int]] = {
        "accuracy (%)": (at_best, 1),
        "variance": (variance_at_best, 4),
        "label error (%)": (label_error, 1),
        "labelled (%)": (labelled, 1),
    }
    places = [(data, what) for data in MAIN for what in measures]
    lines = [
        [name, *(here(measured(grid, name, data, measures[what][0]), measures[what][1]) for data, what in places)]
        for name in PARTS
    ]
    words = "α = 0.5. Labelled: pictures that got a label in the last round, of those without; label error: of those labels."
    return [words, table(["", *map(": ".join, places)], lines)]


# Ours: the learning rate of every method
def rates_of(plan: Plan) -> tuple[float, ...]:
    return SMALL_GRID if plan.scale == "small" else GRID


def tuning_cells(plan: Plan) -> Iterator[Cell]:
    """The likely rates first, the slowest method last; one setting for all data sets, the same at both larger scales."""
    plan = replace(plan, seeds=1) if plan.reduced else Plan("short")
    methods = [*OURS, *(name for name in ALL if name not in (*OURS, "pfedme")), "pfedme"]
    methods = methods[:: len(methods) - 1] if plan.scale == "smoke" else methods
    sets = {"smoke": MAIN[:1], "small": (*MAIN, *MEDICAL)}.get(plan.scale, (*MAIN, "organamnist"))
    for data in sets:
        for lr in rates_of(plan):
            for method in methods:
                own: dict[str, Any] = {"lr": lr}
                if not plan.reduced:
                    own |= {"eval_every": 10, "rounds": SHORT["*"], "sample_rate": PAPER["*"]["sample_rate"]}
                    own |= {k: v for k, v in TUNED.get(data, {}).get(method, {}).items() if k != "lr"}  # as in the tables
                for cell in plan.cells((data, method), lr, data, method, 0.5, **own):
                    yield replace(cell, config=replace(cell.config, seed=TUNING_SEED))


def tuning_draw(grid: Grid, plan: Plan) -> list[Block]:
    rates = sorted(rates_of(plan))
    lines: list[list[str]] = []
    for row in grid.rows:
        known = tried(grid, row)
        if known:
            best = settled(known, rates)
            shown = ("" if lr not in known else f"{100 * known[lr]:.1f}" if known[lr] > WORST else "diverges" for lr in rates)
            edge = " (the grid's edge)" if best in (rates[0], rates[-1]) else ""
            lines.append([*row, *shown, f"{best:g}{edge}" if best else "not settled"])
    heads = ["", "method", *(f"{lr:g}" for lr in rates), "best"]
    return [f"Largest mean validation accuracy (%) of any evaluation, α = 0.5, seed {TUNING_SEED}:", table(heads, lines)]


def tried(grid: Grid, row: Any) -> dict[float, float]:
    """The validation accuracy of every learning rate that was run; the worst there is where training diverged."""
    found = {lr: measured(grid, row, lr, lambda r: r["summary"]["best_val"]) for lr in grid.columns}
    found |= {lr: [WORST] for place, lr in grid.diverged if place == row}
    return {lr: values[0] for lr, values in found.items() if values}


def settled(known: dict[float, float], rates: Sequence[float]) -> float | None:
    """The best rate, once its neighbours in the grid are known to be worse; none where all diverge.

    >>> settled({1e-3: 0.8, 3e-3: 0.9}, GRID), settled({1e-3: 0.8, 3e-3: 0.9, 1e-2: 0.7}, GRID)
    (None, 0.003)
    """
    best = max(known, key=lambda lr: known[lr])
    return best if known[best] > WORST and known.keys() >= contenders(known, rates) else None


def contenders(known: dict[float, float], rates: Sequence[float]) -> set[float]:
    """The best rate that is known and its neighbours in the grid, beyond which none need be tried; all, if none is known.

    >>> sorted(contenders({1e-3: 0.9, 3e-3: 0.8}, GRID)), len(contenders({}, GRID))
    ([0.0003, 0.001, 0.003], 4)
    """
    if max(known.values(), default=WORST) == WORST:
        return set(rates)
    rates = sorted(rates)
    at = rates.index(max(known, key=lambda lr: known[lr]))
    return set(rates[max(0, at - 1) : at + 2])


def still_contended(grid: Grid, rates: Sequence[float]) -> Grid:
    """Without the places that what is there makes needless."""
    rivals = {row: contenders(tried(grid, row), rates) for row in grid.rows}
    wanted = {(row, lr): cells for (row, lr), cells in grid.wanted.items() if (row, lr) in grid.found or lr in rivals[row]}
    return replace(grid, wanted=wanted)
