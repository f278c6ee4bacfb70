"""The paper's figures, and one of ours: the runs that each needs, and how it is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from kithkin.comparison import worst_decile
from kithkin.data.official import DIGITS, source_of
from kithkin.palette import COLOURS
from kithkin.paper.cells import Cell, Grid, Record
from kithkin.paper.drawing import (
    LINES,
    LINES_IN_WORDS,
    MARKERS,
    Block,
    Picture,
    draw_means,
    here,
    key_of,
    mean_curve,
    measured,
    panels_of,
    running_mean,
    say,
    sheet,
    table,
    widen,
    write_on,
)
from kithkin.paper.measures import TERMS, at_best, finals, harmed_share, label_error, moved, variance
from kithkin.paper.plan import ALL, LISTED, MAIN, MEDICAL, Plan

SHORT_NAMES = {
    "pathmnist": ("ADI", "BACK", "DEB", "LYM", "MUC", "MUS", "NORM", "STR", "TUM"),
    "organamnist": ("BLD", "LFH", "RF", "HRT", "LK", "RK", "LVR", "LL", "RL", "PCR", "SPL"),
}


AT_ALPHA = Plan().alphas


# Figs. 4, 5 and 6: all methods over rounds, and how far clients differ
def all_cells(methods: Sequence[str], plan: Plan) -> Iterator[Cell]:
    for alpha in plan.alphas:
        for data in MAIN:
            for method in methods:
                yield from plan.cells((data, method), alpha, data, method, alpha)


def curves_draw(grid: Grid, plan: Plan) -> list[Block]:
    blocks: list[Block] = []
    for data in MAIN:
        mine = part_of(grid, data)
        run = {alpha: sum(bool(mine.at(method, alpha)) for method in ALL) for alpha in grid.columns}
        enough = min(2, max(run.values()))  # one curve alone compares nothing, where there are more
        alphas = sorted(alpha for alpha, count in run.items() if count >= enough)
        figure, panels = sheet(1, len(alphas), f"Mean validation accuracy, {data}", (2.9, 2.9), same_height=True)
        for axes, alpha in zip(panels.flat, alphas, strict=True):
            write_on(axes, f"α = {alpha:g}", "round", "validation accuracy")
            for method in ALL:
                records = mine.at(method, alpha)
                if records:
                    rounds = records[0]["curves"]["round"]
                    curve = mean_curve([r["curves"]["val"] for r in records])
                    axes.plot(rounds, curve, label=method, **{"linewidth": 1.2, **LINES[method]})
        key_of(figure, panels)
        caption = f"{data}: mean over clients (and seeds) of validation accuracy. {LINES_IN_WORDS}"
        blocks.append(Picture(f"curves-{data}", caption, figure, mine))
    return blocks


def part_of(grid: Grid, data: str) -> Grid:
    """Methods by alpha on one data set."""

    def mine(places: dict[Any, Any]) -> dict[Any, Any]:
        return {(row[1], alpha): there for (row, alpha), there in places.items() if row[0] == data}

    return replace(grid, wanted=mine(grid.wanted), found=mine(grid.found), diverged=mine(grid.diverged))


def fairness_draw(grid: Grid, plan: Plan) -> list[Block]:
    alphas = panels_of(sorted(grid.columns), (alpha for _, alpha in grid.found))
    figure, panels = sheet(1, len(MAIN), "Variance of test accuracy over clients, at the end", (4.2, 3.0), same_height=True)
    heads = ["", *(f"{what}, α = {a:g}" for a in alphas for what in ("variance", "worst tenth", "harmed"))]
    lines: list[list[str]] = []
    for axes, data in zip(panels.flat, MAIN, strict=True):
        write_on(axes, data, "α", "variance")
        axes.set_yscale("log")  # the fairest lie a hundredfold below the others
        alone = {a: finals(grid.at((data, "local"), a)) for a in alphas}
        for i, (_, method) in enumerate(row for row in grid.rows if row[0] == data):
            texts: list[str] = []
            variances: dict[float, list[float]] = {}
            for a in alphas:
                var = measured(grid, (data, method), a, variance)
                worst = measured(grid, (data, method), a, lambda r: 100 * worst_decile(r["clients"]["final"]))
                harm = measured(grid, (data, method), a, partial(harmed_share, alone[a])) if method != "local" else []
                texts += [here(var, 4), here(worst), here(harm)]
                variances[a] = var
            draw_means(axes, variances, marker=MARKERS[i % 11], label=method, **{"linewidth": 1.2, **LINES[method]})
            lines += [[f"{data} {method}", *texts]] if any(texts) else []
    key_of(figure, panels)
    caption = (
        "Lower is fairer; a method that fails everybody alike is fair too, so below stand the worst tenth (%) and the harmed: "
        "clients (%) that end more than 3 points below their own `local` model of the same seed. A line breaks where an α was "
        f"not run. {LINES_IN_WORDS}"
    )
    return [Picture("fairness", caption, figure), table(heads, lines)]


# Figs. 7 and 10: how long to search, and how many helpers
def shown_of(grid: Grid) -> list[Any]:
    """A sweep's rows (data set, method, ...): all of the paper's method, of ours those that were run."""
    found = {row for row, _ in grid.found}
    return sorted((row for row in grid.rows if "um" in row or row in found), key=lambda row: MAIN.index(row[0]))


def search_cells(plan: Plan) -> Iterator[Cell]:
    n = plan.rounds("fashion-mnist")
    for method in LISTED:
        for F in sorted({*(F for F in (5, 15, 30, 60, 100) if n > F), n // 2, n}, key=lambda F: (F not in (30, n), F)):
            for data in MAIN:
                yield from plan.cells((data, method), F, data, method, 0.5, search_rounds=F)


def search_draw(grid: Grid, plan: Plan) -> list[Block]:
    F_all = sorted(grid.columns)
    figure, panels = sheet(2, len(MAIN), "Rounds of search F: accuracy and cost", (3.6, 2.1))
    lines: list[list[str]] = []
    for data, method in shown_of(grid):
        upper, lower = panels[:, MAIN.index(data)]
        accuracy = {F: measured(grid, (data, method), F, at_best) for F in F_all}
        whole = measured(grid, (data, method), F_all[-1], moved)
        cost = {F: [100 * b / fmean(whole) for b in measured(grid, (data, method), F, moved)] if whole else [] for F in F_all}
        for axes, values, y in ((upper, accuracy, "test accuracy (%)"), (lower, cost, "bytes moved (%)")):
            write_on(axes, data, "F", y)
            draw_means(axes, values, marker="o", label=method, **{**LINES[method], "linewidth": 1.5})
        if any(accuracy.values()) and not lower.has_data() and not lower.texts:
            say(lower, f"a share of that with F = {F_all[-1]},\nwhich was not run yet")
        lines += [[data, method, str(F), here(accuracy[F]), here(cost[F])] for F in F_all]
    key_of(figure, panels)
    for row in panels:
        widen(row, 2.0)
    caption = f"α = 0.5. Cost as a share of that with F = {F_all[-1]}, the most that this run length allows."
    return [Picture("search-rounds", caption, figure), table(["", "method", "F", "accuracy (%)", "cost (%)"], lines)]


def length_cells(plan: Plan) -> Iterator[Cell]:
    for method in LISTED:
        for alpha in plan.alphas:
            for M in (2, 3, 4) if plan.scale == "smoke" else (5, 3, 10, 15, 7):
                for data in MAIN:
                    yield from plan.cells((data, method, alpha), M, data, method, alpha, helpers=M)


def length_draw(grid: Grid, plan: Plan) -> list[Block]:
    lengths = sorted(grid.columns)
    figure, panels = sheet(1, len(MAIN), "Length of the helper list M", (4.0, 2.8))
    lines: list[list[str]] = []
    for row in shown_of(grid):
        data, method, alpha = row
        axes, at = panels.flat[MAIN.index(data)], AT_ALPHA.index(alpha)  # the same look at every scale
        values = {M: measured(grid, row, M, at_best) for M in lengths}
        write_on(axes, data, "M", "test accuracy (%)")
        style = {"color": COLOURS[at], "marker": MARKERS[at], "linestyle": "-" if method == "um" else "--"}
        draw_means(axes, values, label=f"{method}, α = {alpha:g}", **style)
        lines.append([data, method, f"{alpha:g}", *(here(values[M]) for M in lengths)])
    widen(panels.flat, 2.0)
    key_of(figure, panels)
    heads = ["", "method", "α", *(f"M = {M}" for M in lengths)]
    return [Picture("list-length", "M counts the client itself.", figure), table(heads, lines)]


# Figs. 8 and 9: what the terms of the relation do
def label_error_draw(grid: Grid, plan: Plan) -> list[Block]:
    rows = panels_of(grid.rows, (row for row, _ in grid.found))
    figure, panels = sheet(1, len(rows), "Wrong pseudo labels by the terms of the relation", (4.0, 2.8), same_height=True)
    for axes, row in zip(panels.flat, rows, strict=True):
        write_on(axes, row, "round", "label error")
        for (terms, name), colour, style in zip(TERMS.items(), COLOURS, (":", "--", "-"), strict=False):
            curve = mean_curve([r["label_error"] for r in grid.at(row, terms)])
            if curve:
                rounds = range(1, len(curve) + 1)
                axes.plot(rounds, curve, color=colour, alpha=0.25, linewidth=0.7)
                axes.plot(rounds, running_mean(curve, 10), color=colour, linestyle=style, label=name, linewidth=1.6)
    key_of(figure, panels)
    ends = [[row, *(here(measured(grid, row, c, label_error)) for c in TERMS)] for row in grid.rows]
    caption = (
        "Share of wrong labels among those that helpers gave in a round, over all clients that trained (faint), and its mean "
        "over ten rounds."
    )
    text = table(["label error (%) in the last round", *TERMS.values()], ends)
    return [Picture("label-error", caption, figure), text]


def features_draw(grid: Grid, plan: Plan) -> list[Block]:
    shown = panels_of(TERMS, (terms for _, terms in grid.found))
    figure, panels = sheet(1, len(shown), "Latent features (t-SNE)", (3.2, 3.2))
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
    if data == DIGITS:
        return [str(c) for c in range(len(record["confusion"]))]
    source = source_of(data)
    return SHORT_NAMES.get(source.name, source.classes)


# Fig. 11: confusion matrices
def confusion_cells(plan: Plan) -> Iterator[Cell]:
    for data in MEDICAL:
        for method in ("um", "mix", "um-plus"):
            yield from plan.cells(data, method, data, method, 0.5)


def confusion_draw(grid: Grid, plan: Plan) -> list[Block]:
    rows = panels_of(grid.rows, (data for data, _ in grid.found))
    columns = panels_of(grid.columns, (method for _, method in grid.found))
    figure, panels = sheet(len(rows), len(columns), "Confusion matrices of all clients", (4.4, 4.2))
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
                axes.text(predicted, true, text, ha="center", va="center", fontsize=7, color=colour)
        mix = recall.get("mix")
        for method, each in recall.items():
            better = "" if mix is None or method == "mix" else f"{int((each > mix).sum())} of {len(each)}"
            lines.append([data, method, f"{100 * each.min():.1f}", f"{100 * each.mean():.1f}", better])
    caption = "α = 0.5. Rows: true class; each number is the share of that class's test pictures."
    heads = ["", "method", "worst class (%)", "mean over classes (%)", "classes better than mix"]
    return [Picture("confusion", caption, figure), table(heads, lines)]


# Ours: does the relation choose the right helpers?
def relation_cells(plan: Plan) -> Iterator[Cell]:
    for data in MAIN:
        yield from plan.cells(data, "um", data, "um", 0.5, looks=("relation",))


def relation_draw(grid: Grid, plan: Plan) -> list[Block]:
    rows = panels_of(MAIN, (data for data, _ in grid.found))
    figure, panels = sheet(len(rows), len(TERMS), "Relation of a pair against the truth", (3.1, 2.8))
    lines: list[list[str]] = []
    for i, data in enumerate(rows):
        for axes, (terms, name) in zip(panels[i], TERMS.items(), strict=True):
            write_on(axes, f"{data}, {name}", f"relation by {terms}", "true accuracy of $w_j$ on client k")
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
