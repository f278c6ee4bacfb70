"""What each table and figure of the paper needs (cells) and how it is drawn. `RECIPES[name]` is all there is to one."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from kithkin.compare import gains_over, harmed, worst_decile
from kithkin.config import PAPER
from kithkin.data.official import SOURCES
from kithkin.errors import unknown
from kithkin.paper.cells import Cell, Grid, Record
from kithkin.paper.drawing import (
    COLOURS,
    LINES,
    MARKERS,
    Block,
    Measure,
    Picture,
    beside,
    here,
    key_of,
    lacks,
    mean_curve,
    measured,
    named,
    panels_of,
    sheet,
    table,
    write_on,
)
from kithkin.paper.plan import HOME, SHORT, TUNED, Plan

PUBLISHED: dict[str, Any] = tomllib.loads((HOME / "published.toml").read_text(encoding="utf-8"))
MAIN, MEDICAL = ("fashion-mnist", "cifar-10"), ("pathmnist", "organamnist")
SUPERVISED = ("fedavg-sl", "fedprox-sl", "fedbn-sl")
SEMI = ("fixavg", "fixprox", "fixbn", "fedper", "lg-fedavg", "pfedme", "um")
OURS = ("um-plus", "local", "fixavg-ft")  # not in the paper
ALL = (*SUPERVISED, *SEMI, *OURS)
GRID = (3e-3, 1e-3, 1e-2, 3e-4)  # learning rates that every method may choose from
TUNING_SEED = 100
TERMS = {"accuracy": "TA", "entropy": "EN", "both": "EN + TA"}  # the paper's names of the relation's terms
PARTS: dict[str, dict[str, Any]] = {  # UM+, and what is left of it without one of its parts
    "um-plus": {},
    "class priors left in": {"smoothing": 1e9},
    "no helpers": {"helpers": 1, "candidates": 0},
    "no pseudo labels": {"threshold": 1.1},
    "labels from every vote": {"threshold": 0.0},
    "last common model, not the steady one": {"window": 0.0},
    "losses weighted by (1)": {"losses": "weighted"},
    "no pass before evaluation": {"tune_epochs": 0},
    "views plain": {"views": "plain"},
    "views weak": {"views": "weak"},
    "views strong": {"views": "strong"},
}
SHORT_NAMES = {
    "pathmnist": ("ADI", "BACK", "DEB", "LYM", "MUC", "MUS", "NORM", "STR", "TUM"),
    "organamnist": ("BLD", "LFH", "RF", "HRT", "LK", "RK", "LVR", "LL", "RL", "PCR", "SPL"),
}


@dataclass(frozen=True)
class Recipe:
    title: str
    place: str  # in the paper
    cells: Callable[[Plan], Iterator[Cell]]
    draw: Callable[[Grid, Plan], list[Block]]
    words: str  # what differs from the paper, and why
    setting: str = ""  # where scale and learning rate are its own

    def plan(self, plan: Plan) -> list[Cell]:
        """All cells, the important ones first: every place with one seed before any with two."""
        return sorted(self.cells(plan), key=lambda cell: cell.config.seed)


def published(name: str, row: Any, column: Any) -> float | None:
    """The paper's number at a place of its table."""
    values = PUBLISHED[name]["rows"].get(row)
    return float(values[PUBLISHED[name]["columns"].index(column)]) if values else None


# What is measured, in percent where the paper has percent.
def at_best(record: Record) -> float:
    return 100 * record["summary"]["test_at_best_val"]


def best_of_any(record: Record) -> float:
    return 100 * record["summary"]["best_test"]


def moved(record: Record) -> int:
    return record["summary"]["down_bytes"] + record["summary"]["up_bytes"]


MEASURES: dict[str, Measure] = {
    "Test accuracy (%) at the round of best mean validation accuracy": at_best,
    "The largest test accuracy (%) of any round, which is what the paper's words say": best_of_any,
}


# Tables I, II, VI, VII: methods by alpha
def accuracy_cells(data: str, plan: Plan) -> Iterator[Cell]:
    for alpha in plan.alphas:
        for method in ("um", *(name for name in ALL if name != "um")):
            yield from plan.cells(method, alpha, data, method, alpha)


def accuracy_draw(name: str, grid: Grid, plan: Plan) -> list[Block]:
    alphas = sorted(grid.columns)
    heads = ["method", *(head for a in alphas for head in (f"α = {a:g}", "paper", "diff."))]
    blocks: list[Block] = []
    for title, measure in MEASURES.items():
        lines = [
            [row, *(text for a in alphas for text in beside(measured(grid, row, a, measure), published(name, row, a)))]
            for row in ALL
            if row in grid.rows
        ]
        blocks += [f"{title}:", table(heads, lines)]
    return [*blocks, *differences(name, grid)]


def differences(name: str, grid: Grid) -> list[Block]:
    """In words: how far ours lie from the paper's."""
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


# Table III, and Figs. 8 and 9: the terms of the relation
def component_cells(
    plan: Plan, alphas: Sequence[float] = (), sets: Sequence[str] = MAIN, looks: Sequence[str] = ()
) -> Iterator[Cell]:
    for alpha in alphas or plan.alphas:
        for data in sets:
            for terms in ("both", "entropy", "accuracy"):
                yield from plan.cells(f"{data}, alpha {alpha:g}", terms, data, "um", alpha, looks, relation=terms)


def component_draw(grid: Grid, plan: Plan) -> list[Block]:
    heads = ["", *(head for name in TERMS.values() for head in (name, "paper", "diff."))]
    blocks: list[Block] = []
    for title, measure in MEASURES.items():
        lines = [
            [row, *(t for c in TERMS for t in beside(measured(grid, row, c, measure), published("components", row, c)))]
            for row in PUBLISHED["components"]["rows"]
            if row in grid.rows
        ]
        blocks += [f"{title}:", table(heads, lines)]
    return [*blocks, *differences("components", grid)]


def label_error_draw(grid: Grid, plan: Plan) -> list[Block]:
    rows = panels_of(grid.rows, (row for row, _ in grid.found))
    figure, panels = sheet(grid, 1, len(rows), "Wrong pseudo labels by the terms of the relation", (4.0, 2.8))
    for axes, row in zip(panels.flat, rows, strict=True):
        write_on(axes, row, "round", "label error")
        for (terms, name), colour, style in zip(TERMS.items(), COLOURS, ("-", "--", ":"), strict=False):
            curve = mean_curve([r["label_error"] for r in grid.at(row, terms)])
            if curve:
                axes.plot(range(1, len(curve) + 1), curve, color=colour, linestyle=style, label=name, linewidth=1.3)
    key_of(figure, panels)
    ends = [
        [row, *(here(measured(grid, row, c, lambda r: _percent(r["summary"]["final_pseudo_error"]))) for c in TERMS)]
        for row in grid.rows
    ]
    caption = "Share of wrong labels among those that helpers gave in a round, over all clients that trained."
    text = table(["label error (%) in the last round", *TERMS.values()], ends)
    return [Picture("label-error", caption, figure), text]


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def features_draw(grid: Grid, plan: Plan) -> list[Block]:
    shown = panels_of(TERMS, (terms for _, terms in grid.found))
    figure, panels = sheet(grid, 1, len(shown), "Latent features (t-SNE)", (3.2, 3.2))
    for axes, terms in zip(panels.flat, shown, strict=True):
        write_on(axes, TERMS[terms])
        axes.set(xticks=[], yticks=[])
        for record in grid.at(grid.rows[0], terms)[:1]:
            seen = record["features"]
            x, y, c = (np.array(seen[part]) for part in ("x", "y", "class"))
            write_on(axes, f"{TERMS[terms]}: model of client {seen['model_of']}")
            for k, label in enumerate(_classes(record)):
                mine = c == k
                axes.scatter(x[mine], y[mine], 9, COLOURS[k % 11], marker=MARKERS[k % 11], linewidths=0, label=label)
    key_of(figure, panels)
    caption = (
        "Test pictures of all clients, as the last hidden layer of one personal model sees them: that of the client with the "
        "best accuracy on its own validation pictures. Colour and form: class."
    )
    return [Picture("features", caption, figure)]


def _classes(record: Record) -> Sequence[str]:
    data = record["config"]["data"]
    found = SHORT_NAMES.get(data) or (SOURCES[data].classes if data in SOURCES else ())
    return found or [str(c) for c in range(len(record["confusion"]))]


# Tables IV and V: one setting against accuracy and cost
def sweep_cells(setting: str, values: Sequence[float], plan: Plan) -> Iterator[Cell]:
    usual = 10 if setting == "refresh_every" else 0.1
    for value in sorted(values, key=lambda v: v != usual):
        yield from plan.cells("um", value, "fashion-mnist", "um", 0.5, (), **{setting: value})


def sweep_draw(name: str, letter: str, whole: float, grid: Grid, plan: Plan) -> list[Block]:
    base = measured(grid, "um", whole, moved)
    lines: list[list[str]] = []
    for value in sorted(grid.columns):
        share = [100 * bytes_ / fmean(base) for bytes_ in measured(grid, "um", value, moved)] if base else []
        accuracy, cost = (published(name, row, value) for row in ("accuracy", "cost"))
        largest = here(measured(grid, "um", value, best_of_any))
        lines.append([f"{value:g}", *beside(measured(grid, "um", value, at_best), accuracy), largest, *beside(share, cost)])
    heads = [letter, "accuracy (%)", "paper", "diff.", "largest of any round", "cost (%)", "paper", "diff."]
    return [f"Accuracy as above; cost: bytes moved, as a share of those with {letter} = {whole:g}.", table(heads, lines)]


# Figs. 4, 5 and 6: all methods over rounds, and how far clients differ
def all_cells(methods: Sequence[str], plan: Plan) -> Iterator[Cell]:
    for alpha in plan.alphas:
        for data in MAIN:
            for method in methods:
                yield from plan.cells((data, method), alpha, data, method, alpha)


def curves_draw(grid: Grid, plan: Plan) -> list[Block]:
    blocks: list[Block] = []
    for data in MAIN:
        known = [alpha for alpha in grid.columns if any(grid.at((data, method), alpha) for method in ALL)]
        alphas = panels_of(sorted(grid.columns), known)
        figure, panels = sheet(grid, 1, len(alphas), f"Mean validation accuracy, {data}", (2.9, 2.9))
        for axes, alpha in zip(panels.flat, alphas, strict=True):
            write_on(axes, f"α = {alpha:g}", "round", "validation accuracy")
            for method in ALL:
                records = grid.at((data, method), alpha)
                if records:
                    rounds = records[0]["curves"]["round"]
                    curve = mean_curve([r["curves"]["val"] for r in records])
                    axes.plot(rounds, curve, label=method, **{"linewidth": 1.2, **LINES[method]})
        key_of(figure, panels)
        caption = (
            f"{data}: mean over clients (and seeds) of validation accuracy. Dotted: all labels known; dashed: personalised."
        )
        blocks.append(Picture(f"curves-{data}", caption, figure))
    return blocks


def fairness_draw(grid: Grid, plan: Plan) -> list[Block]:
    alphas = sorted(grid.columns)
    figure, panels = sheet(grid, 1, len(MAIN), "Variance of test accuracy over clients, at the end", (4.2, 3.0))
    heads = ["", *(f"{what}, α = {a:g}" for a in alphas for what in ("variance", "worst tenth", "harmed"))]
    lines: list[list[str]] = []
    for axes, data in zip(panels.flat, MAIN, strict=True):
        write_on(axes, data, "α", "variance")
        axes.set_xticks(range(len(alphas)), [f"{a:g}" for a in alphas])
        alone = {a: {r["config"]["seed"]: r["clients"]["final"] for r in grid.at((data, "local"), a)} for a in alphas}
        for i, (_, method) in enumerate(row for row in grid.rows if row[0] == data):
            texts: list[str] = []
            points: list[tuple[int, float]] = []
            for x, a in enumerate(alphas):
                var = measured(grid, (data, method), a, lambda r: r["summary"]["final_test_var"])
                worst = measured(grid, (data, method), a, lambda r: 100 * worst_decile(r["clients"]["final"]))
                harm = measured(grid, (data, method), a, partial(harmed_share, alone[a])) if method != "local" else []
                texts += [here(var, 4), here(worst), here(harm)]
                points += [(x, fmean(var))] if var else []
            if points:
                style = {"linewidth": 1.2, **LINES[method]}
                axes.plot(*zip(*points, strict=True), marker=MARKERS[i % 11], markersize=4, label=method, **style)
            lines.append([f"{data} {method}", *texts])
    key_of(figure, panels)
    caption = (
        "Lower is fairer; a method that fails everybody alike is fair too, so below stand the worst tenth (%) and the harmed: "
        "clients (%) that end more than 3 points below their own `local` model of the same seed."
    )
    return [Picture("fairness", caption, figure), table(heads, lines)]


def harmed_share(alone: dict[int, list[float]], record: Record) -> float | None:
    """In percent; None where nobody was seen to train alone with this seed."""
    gains = gains_over(alone.get(record["config"]["seed"]), record["clients"]["final"])
    return 100 * harmed(gains) if gains else None


# Figs. 7 and 10: how long to search, and how many helpers
def search_cells(plan: Plan) -> Iterator[Cell]:
    n = plan.rounds("fashion-mnist")
    for F in sorted({*(F for F in (5, 15, 30, 60, 100) if n > F), n // 2, n}, key=lambda F: (F not in (30, n), F)):
        for data in MAIN:
            yield from plan.cells(data, F, data, "um", 0.5, search_rounds=F)


def search_draw(grid: Grid, plan: Plan) -> list[Block]:
    F_all = sorted(grid.columns)
    figure, panels = sheet(grid, 2, len(MAIN), "Rounds of search F: accuracy and cost", (3.6, 2.1))
    lines: list[list[str]] = []
    for i, data in enumerate(MAIN):
        accuracy = {F: measured(grid, data, F, at_best) for F in F_all}
        whole = measured(grid, data, F_all[-1], moved)
        cost = {F: [100 * b / fmean(whole) for b in measured(grid, data, F, moved)] if whole else [] for F in F_all}
        for axes, values, y in zip(panels[:, i], (accuracy, cost), ("test accuracy (%)", "bytes moved (%)"), strict=True):
            write_on(axes, data, "F", y)
            known = [F for F in F_all if values[F]]
            if known:
                axes.plot(known, [fmean(values[F]) for F in known], color=COLOURS[0], marker="o", markersize=4)
        lines += [[data, str(F), here(accuracy[F]), here(cost[F])] for F in F_all]
    caption = f"α = 0.5. Cost as a share of that with F = {F_all[-1]}, the most that this run length allows."
    return [Picture("search-rounds", caption, figure), table(["", "F", "accuracy (%)", "cost (%)"], lines)]


def length_cells(plan: Plan) -> Iterator[Cell]:
    for alpha in plan.alphas:
        for M in (2, 3, 4) if plan.scale == "smoke" else (5, 3, 10, 15, 7):
            for data in MAIN:
                yield from plan.cells((data, alpha), M, data, "um", alpha, helpers=M)


def length_draw(grid: Grid, plan: Plan) -> list[Block]:
    lengths, alphas = sorted(grid.columns), sorted({alpha for _, alpha in grid.rows})
    figure, panels = sheet(grid, 1, len(MAIN), "Length of the helper list M", (4.0, 2.8))
    lines: list[list[str]] = []
    for axes, data in zip(panels.flat, MAIN, strict=True):
        write_on(axes, data, "M", "test accuracy (%)")
        for alpha, colour, marker in zip(alphas, COLOURS, MARKERS, strict=False):
            values = {M: measured(grid, (data, alpha), M, at_best) for M in lengths}
            known = [M for M in lengths if values[M]]
            if known:
                mean = [fmean(values[M]) for M in known]
                axes.plot(known, mean, color=colour, marker=marker, markersize=4, label=f"α = {alpha:g}")
            lines.append([data, f"{alpha:g}", *(here(values[M]) for M in lengths)])
    key_of(figure, panels)
    heads = ["", "α", *(f"M = {M}" for M in lengths)]
    return [Picture("list-length", "M counts the client itself.", figure), table(heads, lines)]


# Fig. 11: confusion matrices
def confusion_cells(plan: Plan) -> Iterator[Cell]:
    for data in MEDICAL:
        for method in ("um", "mix", "um-plus"):
            yield from plan.cells(data, method, data, method, 0.5)


def confusion_draw(grid: Grid, plan: Plan) -> list[Block]:
    rows = panels_of(grid.rows, (data for data, _ in grid.found))
    columns = panels_of(grid.columns, (method for _, method in grid.found))
    figure, panels = sheet(grid, len(rows), len(columns), "Confusion matrices of all clients", (4.4, 4.2))
    lines: list[list[str]] = []
    for i, data in enumerate(rows):
        recall: dict[str, np.ndarray] = {}
        for axes, method in zip(panels[i], columns, strict=True):
            write_on(axes, f"{data}, {method}", "predicted", "true")
            axes.grid(False)
            records = grid.at(data, method)
            if not records:
                axes.set(xticks=[], yticks=[])
                continue
            counts = np.sum([r["confusion"] for r in records], 0)
            share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
            recall[method] = np.diag(share)
            axes.imshow(share, cmap="cividis", vmin=0, vmax=1)
            names = _classes(records[0])
            axes.set_xticks(range(len(names)), names, rotation=90)
            axes.set_yticks(range(len(names)), names)
            for true, predicted in np.argwhere(share >= 0.005):
                colour = "white" if share[true, predicted] < 0.5 else "black"
                text = f"{share[true, predicted]:.2f}".lstrip("0")
                axes.text(predicted, true, text, ha="center", va="center", fontsize=5.5, color=colour)
        mix = recall.get("mix")
        for method, each in recall.items():
            better = "" if mix is None or method == "mix" else f"{int((each > mix).sum())} of {len(each)}"
            lines.append([data, method, f"{100 * each.min():.1f}", f"{100 * each.mean():.1f}", better])
    caption = "α = 0.5. Rows: true class; each number is the share of that class's test pictures."
    heads = ["", "method", "worst class (%)", "mean over classes (%)", "classes better than mix"]
    return [Picture("confusion", caption, figure), table(heads, lines)]


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
        gigabytes = [f"{value / 1e9:.3g}" for value in (greedy, lists, saved)]
        lines.append(
            [data, *gigabytes, f"{100 * saved / greedy:.1f}", f"{all_moved / 1e9:.3g}"]
            + [f"{value / 1e9:.3g}" for value in by_cause]
            + [f"{100 * all_moved / lists:.0f}%"]
        )
    return ["Bytes of `um` at α = 0.5 (mean over seeds), beside the paper's formulas:", table(heads, lines)]


# Ours: does the relation choose the right helpers?
def relation_cells(plan: Plan) -> Iterator[Cell]:
    for data in MAIN:
        yield from plan.cells(data, "um", data, "um", 0.5, looks=("relation",))


def relation_draw(grid: Grid, plan: Plan) -> list[Block]:
    rows = panels_of(MAIN, (data for data, _ in grid.found))
    figure, panels = sheet(grid, len(rows), len(TERMS), "Relation of a pair against the truth", (3.1, 2.8))
    lines: list[list[str]] = []
    for i, data in enumerate(rows):
        for axes, (terms, name) in zip(panels[i], TERMS.items(), strict=True):
            write_on(axes, f"{data}, {name}", f"relation by {terms}", "true accuracy of w_j on k")
            axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
            for record in grid.at(data, "um")[:1]:
                seen = record["relation"]
                axes.scatter(seen["pairs"][terms], seen["pairs"]["truth"], 4, COLOURS[0], alpha=0.35, linewidths=0)
                rank = f"rank corr. {_figure(seen['rank'][terms])}"
                axes.text(0.02, 0.97, rank, fontsize=8, va="top", transform=axes.transAxes)
                chosen = f"{100 * seen['chosen'][terms]:.1f}"
                lines.append([data, name, _figure(seen["rank"][terms]), _figure(seen["pooled"][terms]), chosen])
        for record in grid.at(data, "um")[:1]:
            chosen = record["relation"]["chosen"]
            lines += [[data, who, "", "", f"{100 * chosen[who]:.1f}"] for who in ("truth", "anyone")]
    caption = (
        "A point: one of the sampled pairs (k, j) of a trained federation, j another client. Rank correlation: over all j for "
        "each k, then the mean over k."
    )
    heads = ["", "helpers chosen by", "rank corr. per client", "rank corr. of all pairs", "true accuracy of the chosen (%)"]
    return [Picture("relation", caption, figure), table(heads, lines)]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# Ours: what each part of UM+ gives
def part_cells(plan: Plan) -> Iterator[Cell]:
    for data in MAIN:
        for name, own in PARTS.items():
            yield from plan.cells(name, data, data, "um-plus", 0.5, **own)


def part_draw(grid: Grid, plan: Plan) -> list[Block]:
    measures: dict[str, tuple[Measure, int]] = {
        "accuracy (%)": (at_best, 1),
        "variance": (lambda r: r["summary"]["final_test_var"], 4),
        "label error (%)": (lambda r: _percent(r["summary"]["final_pseudo_error"]), 1),
        "labelled (%)": (lambda r: _percent(r["summary"]["final_pseudo_coverage"]), 1),
    }
    places = [(data, what) for data in MAIN for what in measures]
    lines = [
        [name, *(here(measured(grid, name, data, measures[what][0]), measures[what][1]) for data, what in places)]
        for name in PARTS
    ]
    words = "α = 0.5. Labelled: pictures that got a label in the last round, of those without; label error: of those labels."
    return [words, table(["", *map(": ".join, places)], lines)]


# Ours: the learning rate of every method
def tuning_cells(plan: Plan) -> Iterator[Cell]:
    """The likely rates first, the slowest method last; one setting for all data sets, the same at every scale but smoke."""
    small = plan.scale == "smoke"
    plan = plan if small else Plan("short")
    methods = [*OURS, *(name for name in ALL if name not in (*OURS, "pfedme")), "pfedme"]
    for data in MAIN[:1] if small else (*MAIN, "organamnist"):
        for lr in GRID:
            for method in methods[:: len(methods) - 1] if small else methods:
                own: dict[str, Any] = {"personal_lr" if method == "pfedme" else "lr": lr}
                if method == "um-plus":  # as it was when its rates were tried
                    own |= {"views": "plain", "tune_epochs": 0}
                own |= {} if small else {"eval_every": 10, "rounds": SHORT["*"], "sample_rate": PAPER["*"]["sample_rate"]}
                for cell in plan.cells((data, method), lr, data, method, 0.5, **own):
                    yield replace(cell, config=replace(cell.config, seed=TUNING_SEED))


def tuning_draw(grid: Grid, plan: Plan) -> list[Block]:
    lines: list[list[str]] = []
    for row in grid.rows:
        known = tried(grid, row)
        if known:
            best = settled(known)
            shown = (f"{100 * known[lr]:.1f}" if lr in known else "" for lr in sorted(GRID))
            lines.append([*row, *shown, f"{best:g}" if best else "not settled"])
    heads = ["", "method", *(f"{lr:g}" for lr in sorted(GRID)), "best"]
    return ["Largest mean validation accuracy (%) of any evaluation:", table(heads, lines)]


def tried(grid: Grid, row: Any) -> dict[float, float]:
    """The validation accuracy of every learning rate that was run."""
    found = {lr: measured(grid, row, lr, lambda r: r["summary"]["best_val"]) for lr in GRID}
    return {lr: values[0] for lr, values in found.items() if values}


def settled(known: dict[float, float]) -> float | None:
    """The best rate, once those on both sides of it are known to be worse: what lies beyond them need not be run.

    >>> settled({1e-3: 0.8, 3e-3: 0.9}), settled({1e-3: 0.8, 3e-3: 0.9, 1e-2: 0.7})
    (None, 0.003)
    """
    rates, best = sorted(GRID), max(known, key=lambda lr: known[lr])
    at = rates.index(best)
    return best if known.keys() >= set(rates[max(0, at - 1) : at + 2]) else None


WIDER = (
    "The paper gives neither the width of its ResNet-9 nor its augmentations for FixMatch; ours has 64 channels in the first "
    "layer, and FixMatch's own RandAugment and cutout."
)
FIRST = "In first runs of one seed, FedAvg and FixAvg came out above the paper with it, and `um` below."
SLOW = "At the paper's learning rate `um` still climbs when the rounds end, so a longer run or a larger rate lifts it."

RECIPES: dict[str, Recipe] = {
    **{
        data: Recipe(
            f"Accuracy on {title} over α",
            f"Table {number}",
            partial(accuracy_cells, data),
            partial(accuracy_draw, data),
            f"{words} pFedMe trains with its own paper's learning rates, which `--lr paper` leaves as they are.",
        )
        for data, title, number, words in (
            ("fashion-mnist", "Fashion-MNIST", "I", f"{WIDER} {FIRST} {SLOW}"),
            ("cifar-10", "CIFAR-10", "II", f"{WIDER} Pictures are flipped as well. {SLOW}"),
            (
                "pathmnist",
                "PathMNIST",
                "VI",
                f"{WIDER} 20 clients that all train in every round; rows with all labels are ours.",
            ),
            ("organamnist", "OrganAMNIST", "VII", f"{WIDER} No flip here: left and right organs are classes of their own."),
        )
    },
    "components": Recipe(
        "The terms of the relation: accuracy (TA), entropy (EN), both",
        "Table III",
        component_cells,
        component_draw,
        "Entropy is averaged over pictures, so that (14) lies in [0, 1]; with the paper's sum (12) it would not, and weigh "
        f"otherwise against accuracy. {SLOW}",
    ),
    "refresh-period": Recipe(
        "How often helpers are refreshed (ν)",
        "Table IV",
        partial(sweep_cells, "refresh_every", (1, 5, 10, 15, 20)),
        partial(sweep_draw, "refresh-period", "ν", 1),
        "The paper's costs are those of its upper bound (28); ours are bytes that moved. A helper that did not train since is "
        "not sent again, and a tenth of the clients trains in a round: frequent refreshing costs less than by (28).",
    ),
    "sample-rate": Recipe(
        "How many clients train in a round (τ)",
        "Table V",
        partial(sweep_cells, "sample_rate", (0.05, 0.1, 0.2, 0.5, 1)),
        partial(sweep_draw, "sample-rate", "τ", 1),
        "The paper's costs fit (28) only if its last term is τK²\\|w\\|n, as in (27), instead of τK\\|w\\|n: 160 + 20000 τ "
        "gives 5.7, 10.7, 20.6, 50.4 and 100%; by (28) as printed it is 47, 50, 56, 72 and 100%. Ours are bytes that moved.",
    ),
    "curves": Recipe(
        "Validation accuracy over rounds",
        "Figs. 4, 5",
        partial(all_cells, ALL),
        curves_draw,
        f"Drawn from the cells of Tables I and II. {WIDER} The paper prints no numbers for its curves.",
    ),
    "fairness": Recipe(
        "Variance of test accuracy over clients",
        "Fig. 6",
        partial(all_cells, (*SEMI, *OURS)),
        fairness_draw,
        "From the cells of Tables I and II, at the last round. At small α a client may have a handful of test pictures, of few "
        "classes, which alone makes variance.",
    ),
    "search-rounds": Recipe(
        "How long clients search for helpers (F)",
        "Fig. 7",
        search_cells,
        search_draw,
        "Costs are bytes that moved, not (28); the largest F is the length of the run.",
    ),
    "label-error": Recipe(
        "Wrong pseudo labels over rounds",
        "Fig. 8",
        partial(component_cells, alphas=(0.5,)),
        label_error_draw,
        "From the cells of Table III. Labels are soft here; one is wrong where its most likely class is.",
    ),
    "features": Recipe(
        "Latent features (t-SNE)",
        "Fig. 9",
        partial(component_cells, alphas=(5.0,), sets=("fashion-mnist",), looks=("features",)),
        features_draw,
        "The paper shows 'the optimal model in each case', not saying by what; ours is best by its own validation pictures.",
    ),
    "list-length": Recipe(
        "How many helpers (M)",
        "Fig. 10",
        length_cells,
        length_draw,
        "The paper names the range, 3 to 15, and prints no numbers. A list that search leaves short is filled at random.",
    ),
    "confusion": Recipe(
        "Confusion matrices of um and mix on the medical sets",
        "Fig. 11",
        confusion_cells,
        confusion_draw,
        f"{WIDER} Mix averages the outputs of FixAvg, FixProx and FixBN, each trained by itself.",
    ),
    "costs": Recipe(
        "Communication: the paper's formulas and the bytes that moved",
        "(27) to (29)",
        cost_cells,
        cost_draw,
        "(28) counts neither warm-up nor filling, and is else an upper bound: a helper that did not change is not sent. The "
        "paper's 'more than 90% of the communication cost is saved' holds by its formulas for 100 clients.",
    ),
    "relation": Recipe(
        "Does the relation choose the right helpers?",
        "(13), not in the paper",
        relation_cells,
        relation_draw,
        "The paper argues for (13) by its bounds (20) and (21) and does not measure it. *truth*: helpers chosen by their test "
        "accuracy, which nobody can know; *anyone*: all others alike.",
    ),
    "parts": Recipe(
        "What each part of UM+ gives",
        "not in the paper",
        part_cells,
        part_draw,
        "One part is changed at a time. How the method came about, and what else was tried: docs/um-plus.md.",
    ),
    "tuning": Recipe(
        "The learning rate of every method",
        "not in the paper",
        tuning_cells,
        tuning_draw,
        "Every method has the same four rates to choose from; `--lr tuned` gives it the best, by validation pictures, once "
        "the rates on both sides of it are known to be worse; until then the data set's usual one. pFedMe chooses that of its "
        "inner steps. Tables and figures have other seeds than this grid.",
        f"{SHORT['*']} rounds, a tenth of the clients in each, α = 0.5, seed {TUNING_SEED}",
    ),
}


def recipe_of(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown("table or figure", name, RECIPES)
    return RECIPES[name]


def facts(grid: Grid, plan: Plan, setting: str = "") -> str:
    """What was run, with what."""
    wanted, found = sum(map(len, grid.wanted.values())), len(grid.records)
    machines = sorted({r["machine"]["device"] for r in grid.records})
    versions = sorted({r["kithkin"] for r in grid.records})
    by = f", by kithkin {', '.join(versions)} on {', '.join(machines)}" if found else ""
    label = plan.label if plan.scale == "smoke" else setting or plan.label + chosen_beside_rates(grid, plan)
    return f"Setting: {label}. {found} of {wanted} runs{by}. {lacks(grid)}".strip()


def chosen_beside_rates(grid: Grid, plan: Plan) -> str:
    """Which flags `--lr tuned` gives methods of this table beside their rate."""
    runs = {(cell.config.data, cell.config.method) for cells in grid.wanted.values() for cell in cells}
    texts: list[str] = []
    for data, method in sorted(runs) if plan.rate == "tuned" else ():
        flags = {k: v for k, v in TUNED.get(data, {}).get(method, {}).items() if k not in ("lr", "personal_lr")}
        words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in flags.items())
        texts += [f"{method} on {data} with {words}"] if flags else []
    return f" ({'; '.join(texts)})" if texts else ""


def page(name: str, grid: Grid, plan: Plan, level: int = 1) -> list[Block]:
    """One table or figure with all that is said of it."""
    recipe = RECIPES[name]
    blocks = recipe.draw(grid, plan)
    named_apart = [
        Picture(f"{block.name}{plan.stem}", f"{block.caption} {lacks(grid)}".strip(), block.figure)
        if isinstance(block, Picture)
        else block
        for block in blocks
    ]
    return [f"{'#' * level} {recipe.title} ({recipe.place})", facts(grid, plan, recipe.setting), *named_apart, recipe.words]
