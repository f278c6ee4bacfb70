"""The page's figures for print: PNG and PDF, in the same colours, from the same numbers."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from kithkin.comparison import HARM
from kithkin.data import called
from kithkin.data.picture import any_names
from kithkin.disk import disk_errors, write_whole
from kithkin.palette import COLOURS, INK, LINE, MUTED

DASHES = ("-", (0, (5, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)), (0, (9, 3)), (0, (2.5, 2.5)))  # and shapes as in draw.js
MARKERS = "o^sDvX"
SHARES = -0.02, 1.02  # limits of an axis on which a line at 0% or 100% is seen
STYLE: dict[Any, Any] = {
    "font.size": 8, "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": LINE, "grid.linewidth": 0.6, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.major.size": 0,
    "ytick.major.size": 0, "legend.frameon": False, "text.color": INK, "pdf.fonttype": 42,
    "figure.constrained_layout.use": True,
}  # fmt: skip
Run = dict[str, Any]


@dataclass(frozen=True)
class Look:
    """How a run is drawn among others, and what the key calls it."""

    colour: str
    dash: Any
    marker: str
    name: str


Runs = list[tuple[Run, Look]]


def write_figures(data: dict[str, Any], out: Path) -> list[Path]:
    """Every figure that these runs have numbers for, as PNG and PDF."""
    written: list[Path] = []
    with disk_errors(out, "Give another --figures."), mpl.rc_context(STYLE), any_names():
        out.mkdir(parents=True, exist_ok=True)
        for name, figure in figures_of(data["runs"]):
            for kind in ("png", "pdf"):
                path = out / f"{name}.{kind}"
                write_whole(path, lambda draft, f=figure, k=kind: f.savefig(draft, format=k, dpi=200))
                written.append(path)
    return written


def figures_of(runs: list[Run]) -> Iterator[tuple[str, Figure]]:
    together: dict[str, tuple[Callable[[Runs], Figure], Callable[[Run], Any]]] = {
        "accuracy": (accuracy, lambda run: run["curve"]),
        "clients": (clients, lambda run: run["clients"] and run["clients"].get("ratio")),
        "gains": (gains, lambda run: run["clients"] and run["clients"].get("gain")),
        "fairness": (fairness, lambda run: run["clients"]),
        "churn": (churn, lambda run: run["helpers"] and run["helpers"]["churn"]["round"]),
        "labels": (labels, lambda run: run["audit"]),
        "worth": (worth, lambda run: run["cost"] and run["cost"]["accuracy"]["test"]),
    }
    looks = looks_of(runs)
    for name, (draw, has) in together.items():
        those = [(run, look) for run, look in zip(runs, looks, strict=True) if has(run)]
        if those:
            yield name, draw(those)
    single: dict[str, tuple[Callable[[Run], Figure], Callable[[Run], Any]]] = {
        "helpers": (helpers, lambda run: run["helpers"]),
        "audit": (audit, lambda run: run["audit"] and run["audit"]["steps"][0]["by_class"]),
        "bytes": (moved, lambda run: run["cost"] and run["cost"]["moved"]),
        "confusion": (confusion, lambda run: run["confusion"]),
        "features": (features, lambda run: run["features"]),
        "split": (split, lambda run: run["split"]),
    }
    for i, run in enumerate(runs):
        tail = f"-{i}-{re.sub(r'[^A-Za-z0-9.-]+', '-', run['name']).strip('-.')[:40]}" if len(runs) > 1 else ""
        for name, (draw, has) in single.items():
            if has(run):
                yield name + tail, draw(run)


def looks_of(runs: list[Run]) -> list[Look]:
    """As on the page: a colour, a dash and a marker for each group, whose seeds share a line of the key."""
    sizes = Counter(run["group"] for run in runs)
    looks: list[Look] = []
    for run in runs:
        (colour, style), seeds = run["look"], sizes[run["group"]]
        name = run["name"] if seeds == 1 else f"{run['group']}, {seeds} seeds"
        looks.append(Look(COLOURS[colour], DASHES[style % len(DASHES)], MARKERS[style % len(MARKERS)], textwrap.fill(name, 50)))
    return looks


def sheet(title: str, x: str = "", y: str = "", size: tuple[float, float] = (5.2, 3.2)) -> tuple[Figure, Axes]:
    figure = Figure(size)
    axes = figure.subplots()
    name_axes(axes, textwrap.fill(title, int(12 * size[0] - 12)), x, y)
    return figure, axes


def name_axes(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set(title=title, xlabel=x, ylabel=y)
    if x == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))  # one round is one tick


def key_of(figure: Figure, axes: Axes, below: bool = False, **words: Any) -> Figure:
    """With a key outside the panels, which keep their size: the sheet grows. Below, it has as many columns as fit."""
    marks = {name: mark for mark, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    below |= len(marks) < 4
    words |= {"handles": marks.values(), "labels": marks.keys(), "loc": f"outside {'lower center' if below else 'right upper'}"}
    column = figure.legend(**words)
    taken, (width, height) = column.get_window_extent(), figure.get_size_inches()
    columns = max(1, min(5, int(figure.dpi * width / taken.width))) if below else math.ceil(taken.height / figure.dpi / height)
    column.remove()
    taken = figure.legend(**words, ncols=columns).get_window_extent()
    figure.set_size_inches(width + (not below) * taken.width / figure.dpi, height + below * taken.height / figure.dpi)
    return figure


def say(axes: Axes, text: str) -> None:
    axes.set(xticks=[], yticks=[])  # of an empty panel, they tell nothing
    axes.text(0.5, 0.5, text, ha="center", va="center", color=MUTED, transform=axes.transAxes)


def draw_line(axes: Axes, xs: Any, ys: Any, look: Look, **more: Any) -> None:
    """A point without neighbours is a dot."""
    seen = np.isfinite([math.nan, *ys, math.nan])
    alone = np.flatnonzero(seen[1:-1] & ~seen[:-2] & ~seen[2:]).tolist()
    marks = {"marker": look.marker, "markevery": alone, "markersize": 4} if alone else {}
    axes.plot(xs, ys, **{"color": look.colour, "linestyle": look.dash, "label": look.name} | marks | more)


def with_width(xs: list[Any], *sides: Any) -> tuple[Any, ...]:
    """For an area: over one round alone it would not be seen."""
    return (xs, *sides) if len(xs) > 1 else ([xs[0] - 0.2, xs[0] + 0.2], *(np.repeat(side, 2) for side in sides))


def in_percent(*sides: Any) -> None:
    for side in sides:
        side.set_major_formatter(PercentFormatter(1, decimals=0))


def numbers(values: Any) -> np.ndarray:
    """None as NaN, which is not drawn."""
    return np.array([math.nan if v is None else v for v in values], float)


def accuracy(runs: Runs) -> Figure:
    banded = len(runs) < 4
    figure, axes = sheet("Accuracy over rounds", "round", "test accuracy: mean" + ", and middle 80% of clients" * banded)
    for run, look in runs:
        curve = run["curve"]
        if curve["low"] and banded:
            low, high = numbers(curve["low"]), numbers(curve["high"])
            axes.fill_between(*with_width(curve["round"], low, high), color=look.colour, alpha=0.14, linewidth=0)
        draw_line(axes, curve["round"], numbers(curve["mean"]), look)
    axes.set_ylim(SHARES)
    in_percent(axes.yaxis)
    return key_of(figure, axes)


def clients(runs: Runs) -> Figure:
    figure = Figure((7.2, 3.2))
    left, right = figure.subplots(1, 2, sharey=True)
    name_axes(left, "Every client by label ratio", "labelled share", "test accuracy")
    name_axes(right, "and by size", "training pictures", "")
    for run, look in runs:
        for axes, across in ((left, "ratio"), (right, "size")):
            dots = {"s": 14, "color": look.colour, "marker": look.marker, "alpha": 0.75, "linewidths": 0, "label": look.name}
            axes.scatter(numbers(run["clients"][across]), numbers(run["clients"]["test"]), **dots)
    in_percent(left.xaxis, left.yaxis)
    return key_of(figure, left)


def gains(runs: Runs) -> Figure:
    figure, axes = sheet("Who gained, who lost", "share of clients", "gain over local, points")
    axes.axhline(0, color=MUTED, linewidth=0.8)
    for run, look in runs:
        order = np.sort([g for g in run["clients"]["gain"] if g is not None]) * 100
        draw_line(axes, (np.arange(len(order)) + 0.5) / len(order), order, look)
    axes.axhline(-100 * HARM, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)), label=f"−{100 * HARM:g} points: harmed below")
    in_percent(axes.xaxis)
    return key_of(figure, axes)


def fairness(runs: Runs) -> Figure:
    figure, axes = sheet("How accuracies are distributed", "test accuracy", "clients at or below")
    for run, look in runs:
        order = np.sort([v for v in run["clients"]["test"] if v is not None])
        alike = [other["clients"]["fairness"] for other, its in runs if its == look]
        worst, variance = (np.mean([f[what] for f in alike]) for what in ("worst_decile", "variance"))
        told = f"{look.name}:\nworst tenth {worst:.1%}, variance {variance:.4f}"
        heights = [0, *((np.arange(len(order)) + 1) / len(order)), 1]
        draw_line(axes, [0, *order, 1], heights, look, drawstyle="steps-post", label=told)
    in_percent(axes.xaxis, axes.yaxis)
    return key_of(figure, axes)


def churn(runs: Runs) -> Figure:
    figure, axes = sheet("Churn of the helper lists", "round", "helpers new since the last evaluation")
    for run, look in runs:
        draw_line(axes, run["helpers"]["churn"]["round"], run["helpers"]["churn"]["share"], look)
    axes.set_ylim(bottom=0)
    in_percent(axes.yaxis)
    return key_of(figure, axes)


def labels(runs: Runs) -> Figure:
    figure = Figure((7.2, 3.2))
    left, right = figure.subplots(1, 2)
    name_axes(left, "Wrong pseudo labels", "round", "of the labels given")
    name_axes(right, "and how many were given", "round", "of the pictures without a label")
    rounds = [t for run, _ in runs for t in run["audit"]["round"]]
    edge = max(0.5, 0.04 * (max(rounds) - min(rounds)))
    across = min(rounds) - edge, max(rounds) + edge  # on both: a run may give no label for long
    for axes, what in ((left, "error"), (right, "coverage")):
        for run, look in runs:
            draw_line(axes, run["audit"]["round"], numbers(run["audit"][what]), look)
        axes.set(xlim=across, ylim=SHARES)
        in_percent(axes.yaxis)
    if not any(known is not None for run, _ in runs for known in run["audit"]["error"]):
        say(left, "no label was given")
    return key_of(figure, left)


def worth(runs: Runs) -> Figure:
    figure, axes = sheet("Accuracy for what was moved", "MB moved so far", "test accuracy")
    for run, look in runs:
        there = run["cost"]["accuracy"]
        part = slice(None) if there["megabytes"][-1] else slice(-1, None)
        draw_line(axes, there["megabytes"][part], numbers(there["test"][part]), look)
    axes.set_ylim(SHARES)
    in_percent(axes.yaxis)
    return key_of(figure, axes)


def helpers(run: Run) -> Figure:
    """The last round's lists as a ring: clients by the class that they have most of, lines in the helper's colour."""
    lists = run["helpers"]["lists"][-1]
    K = len(lists)
    groups = (run["clients"] or {}).get("class") or [0] * K
    order = sorted(range(K), key=lambda k: (groups[k], k))
    angles = {k: math.pi / 2 - 2 * math.pi * (i + 0.5) / K for i, k in enumerate(order)}
    place = {k: (math.cos(a), math.sin(a)) for k, a in angles.items()}
    pairs = [(row[i], k, row[i + 1] / 1000) for k, row in enumerate(lists) for i in range(0, len(row), 2) if row[i] in place]
    strongest = max((r for _, _, r in pairs), default=1) or 1
    helped = np.bincount([j for j, k, _ in pairs if j != k], minlength=K)
    figure, axes = sheet(f"Who helps whom: {run['name']}, round {run['helpers']['round'][-1]}", size=(4.6, 4.7))
    axes.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    axes.axis("off")
    for j, k, r in sorted(pairs, key=lambda pair: pair[2]):
        if j != k:
            bend = FancyArrowPatch(
                place[j], place[k], connectionstyle="arc3,rad=0.25", arrowstyle="-", color=COLOURS[groups[j] % 11],
                linewidth=0.3 + 1.5 * r / strongest, alpha=0.15 + 0.5 * r / strongest,
            )  # fmt: skip
            axes.add_patch(bend)
    sizes = (6 + 60 * helped / max(1, helped.max())) * min(1, 60 / K) + 2
    axes.scatter(
        *np.array([place[k] for k in range(K)]).T, s=sizes, c=[COLOURS[g % 11] for g in groups], zorder=3, edgecolors="white"
    )
    for k in range(K) if K <= 60 else ():
        axes.text(1.09 * place[k][0], 1.09 * place[k][1], str(k), ha="center", va="center", fontsize=7, color=MUTED)
    if run["split"]:
        for g in sorted(set(groups)):
            axes.scatter([], [], color=COLOURS[g % 11], s=16, label=short(run["split"]["classes"][g], 28))
        key_of(figure, axes, below=True, fontsize=7, title="mostly of class", title_fontsize=7)
    return figure


def short(name: Any, most: int = 14) -> str:
    return str(name) if len(str(name)) <= most else f"{str(name)[: most - 1]}…"


def names_of_classes(run: Run, count: int) -> list[str]:
    return [short(name) for name in (run["split"]["classes"] if run["split"] else range(count))]


def audit(run: Run) -> Figure:
    """Error by uncertainty, by class and by helper, over all rounds."""
    figure = Figure((9.6, 3.2))
    figure.suptitle(f"Pseudo labels: {run['name']}", x=0.005, ha="left", fontsize=9, fontweight="bold")
    left, middle, right = figure.subplots(1, 3)
    steps = run["audit"]["steps"]
    n, wrong = np.sum([step["by_entropy"] for step in steps], 0).T
    at = (np.arange(len(n)) + 0.5) / len(n)
    name_axes(left, "Does certainty mean right?", "uncertainty of the answer", "wrong answers")
    left.bar(at, wrong / np.maximum(n, 1), width=0.9 / len(n), color=COLOURS[3])
    left.bar(at, -0.2 * n / max(1, n.max()), width=0.9 / len(n), color=COLOURS[8], alpha=0.55)
    left.set_ylim(-0.25, 1)
    in_percent(left.xaxis)
    left.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
    n, wrong = np.sum([step["by_class"] for step in steps], 0).T
    name_axes(middle, "By true class", "wrong among the labels taken", "")
    bars = middle.barh(range(len(n)), wrong / np.maximum(n, 1), color=[COLOURS[c % 11] for c in range(len(n))])
    told = [f"{w:.0f} of {m:.0f}" if m and len(n) <= 20 else "" for w, m in zip(wrong, n, strict=True)]
    middle.bar_label(bars, told, padding=2, fontsize=6.5)
    middle.set_yticks(range(len(n)), names_of_classes(run, len(n)))
    middle.invert_yaxis()
    middle.set(xlim=(0, 1.4), xticks=(0, 0.5, 1))
    in_percent(middle.xaxis)
    given: dict[str, np.ndarray] = {}
    for step in steps:
        for who, pair in step["by_helper"].items():
            given[who] = given.get(who, np.zeros(2)) + pair
    name_axes(right, "By the model that gave them", "labels given", "wrong")
    count, bad = np.array(list(given.values())).reshape(-1, 2).T
    right.scatter(count, bad / np.maximum(count, 1), s=14, color=COLOURS[0], alpha=0.75, linewidths=0, clip_on=False)
    right.set(ylim=(0, 1), xlim=(0, None))
    in_percent(right.yaxis)
    if not n.any():
        say(middle, "no label was given")
    if not given:
        say(right, "each label came from several models" if n.any() else "no label was given")
    return figure


def moved(run: Run) -> Figure:
    cost = run["cost"]
    figure, axes = sheet(f"Bytes by cause: {run['name']}", "round", "MB moved so far")
    stack = with_width(cost["round"], *cost["moved"].values())
    axes.set_xmargin(0 if len(cost["round"]) > 1 else 1)  # beside one round alone the key has room
    axes.stackplot(*stack, labels=list(cost["moved"]), colors=COLOURS, alpha=0.85)
    if cost["formulas"]:
        draw_line(axes, cost["round"], cost["formulas"]["helper_lists_28"], Look(INK, "--", "^", "formula (28)"))
        draw_line(axes, cost["round"], cost["formulas"]["greedy_27"], Look(COLOURS[8], ":", "s", "formula (27)"))
    axes.legend(loc="upper left")
    return figure


def confusion(run: Run) -> Figure:
    matrix = np.array(run["confusion"], float)
    part = matrix / np.maximum(1, matrix.sum(1, keepdims=True))
    names = names_of_classes(run, len(matrix))
    figure, axes = sheet(f"What is taken for what: {run['name']}", "said", "true", (4.6, 4.4))
    axes.grid(visible=False)
    axes.imshow(part, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=0 if max(map(len, names)) < 3 else 60)
    axes.set_yticks(range(len(names)), names)
    for (a, b), value in np.ndenumerate(matrix):
        if value and len(matrix) <= 20:
            axes.text(b, a, f"{value:.0f}", ha="center", va="center", fontsize=6.5, color="white" if part[a, b] > 0.55 else INK)
    return figure


def features(run: Run) -> Figure:
    f = run["features"]
    figure, axes = sheet(
        f"Latent features: {run['name']}, model of client {called(f['model_of'], run['client_names'])}", size=(4.8, 4.2)
    )
    axes.axis("off")
    names = names_of_classes(run, max(f["class"]) + 1)
    for c in sorted(set(f["class"])):
        here = np.array(f["class"]) == c
        axes.scatter(np.array(f["x"])[here], np.array(f["y"])[here], s=7, color=COLOURS[c % 11], linewidths=0, label=names[c])
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), markerscale=2)
    return figure


def split(run: Run) -> Figure:
    """Bubbles of client by class; the full disc in each is its labelled part."""
    every, known = np.array(run["split"]["every"]), np.array(run["split"]["labelled"])
    K, C = every.shape
    size = max(5.0, min(24.0, 1.2 + 0.22 * K)), 1.0 + 0.22 * C
    figure, axes = sheet(f"Pictures by client and class: {run['name']}", "client", "class", size)
    axes.grid(visible=False)
    k, c = np.nonzero(every)
    scale = 180 * min(1, 100 / K) / max(1, every.max())
    axes.scatter(k, c, s=every[k, c] * scale, color=COLOURS[0], alpha=0.28, linewidths=0)
    axes.scatter(k, c, s=known[k, c] * scale, color=COLOURS[0], linewidths=0)
    for alpha, name in ((0.28, "training pictures"), (1, "of them labelled")):
        axes.scatter([], [], s=30, color=COLOURS[0], alpha=alpha, linewidths=0, label=name)
    figure.legend(loc="outside lower center", ncols=2)
    axes.set_yticks(range(C), names_of_classes(run, C))
    axes.invert_yaxis()
    axes.set_xlim(-0.7, K - 0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
