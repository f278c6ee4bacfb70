"""A picture of a split: each client's training pictures by class, how many have labels, and its label ratio."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kithkin.data.split import Split, class_counts
from kithkin.palette import BLUE, LINE, MUTED, ORANGE

PALE = "#DCEAF4"  # blue on white, thinly
HEAD = 1.0  # inches for the title and the key
CELL = 0.3  # inches per client and class
PER_ROW = 40  # clients side by side; more go to further rows, so that bubbles keep their size
MOST = 1000  # clients drawn; more would only be dust
LARGEST = (0.94 * CELL * 72) ** 2  # area of the largest bubble, in square points


@contextmanager
def any_names() -> Generator[None, None, None]:
    """Names are drawn as they are, with dollar signs and in any script; the font may not have it."""
    with mpl.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing")
        yield


@any_names()
def draw(
    split: Split, labels: np.ndarray, classes: tuple[str, ...], title: str, out: Path, clients: tuple[str, ...] = ()
) -> None:
    """Bubbles of client by class; the blue disc in each is its labelled part. Below them, each client's label ratio."""
    shares = split.shares[:MOST]
    every = class_counts([share.train for share in shares], labels, len(classes))
    labelled = class_counts([share.labelled for share in shares], labels, len(classes))
    scale = LARGEST / every.max()
    names, called = ([_cut(name) for name in some] for some in (classes, clients or map(str, range(len(shares)))))
    room = 0.05 * max(map(len, called)) if clients else 0.0  # for names that stand upright
    left = 0.35 + 0.068 * max(len(name) for name in (*names, "label ratio"))

    rows = math.ceil(len(shares) / PER_ROW)
    per_row = math.ceil(len(shares) / rows)
    bubbles, strip, between, head = CELL * len(classes), 0.4, 0.55 + room, HEAD
    width = max(6.6, left + CELL * per_row + 0.3)
    height = head + rows * (bubbles + strip + between)
    figure = Figure((width, height), facecolor="white")

    def axes(x: float, top: float, wide: float, high: float) -> Axes:
        """Axes by inches from the upper left corner."""
        return figure.add_axes((x / width, 1 - (top + high) / height, wide / width, high / height))

    _head(axes(0, 0, width, head), title, every, scale, len(split.shares))
    for row in range(rows):
        here = np.arange(row * per_row, min((row + 1) * per_row, len(shares)))
        top = head + row * (bubbles + strip + between)
        grid = axes(left, top, CELL * len(here), bubbles)
        _bubbles(grid, here, every[here], labelled[here], scale, names)
        _ratios(axes(left, top + bubbles + 0.05, CELL * len(here), strip - 0.05), here, shares, called, bool(clients))
    figure.savefig(out, dpi=150)


def _head(axes: Axes, title: str, every: np.ndarray, scale: float, clients: int) -> None:
    width, height = axes.figure.get_figwidth(), HEAD  # type: ignore[union-attr]
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    shown = f" (the first {len(every)} of {clients} clients)" if clients > len(every) else ""
    axes.text(0.2, height - 0.28, title + shown, fontsize=11, fontweight="bold", va="center")
    x, y = 0.35, 0.36
    for count in _round_steps(int(every.max())):
        axes.scatter([x], [y], s=max(count * scale, 2), c=PALE, edgecolors=BLUE, linewidths=0.7)
        text = f"{count:,}"
        axes.text(x + 0.2, y, text, fontsize=8, va="center", color=MUTED)
        x += 0.5 + 0.075 * len(text)
    axes.text(x - 0.15, y, "training pictures", fontsize=8, va="center", color=MUTED)
    x += 1.2
    axes.scatter([x], [y], s=LARGEST * 0.7, c=PALE, edgecolors=BLUE, linewidths=0.7)
    axes.scatter([x], [y], s=LARGEST * 0.3, c=BLUE, linewidths=0)
    axes.text(x + 0.2, y, "of them labelled", fontsize=8, va="center", color=MUTED)
    axes.scatter([x + 1.45], [y], s=80, c=ORANGE, marker="s", linewidths=0)
    axes.text(x + 1.6, y, "label ratio, 0 to 1", fontsize=8, va="center", color=MUTED)


def _round_steps(largest: int) -> list[int]:
    """One to three round numbers up to the largest count, each a fifth of the next."""
    unit = 10 ** int(math.log10(max(largest, 1)))
    top = (largest // unit) * unit
    return sorted({max(1, top // 25), max(1, top // 5), top})


def _bubbles(axes: Axes, clients: np.ndarray, every: np.ndarray, labelled: np.ndarray, scale: float, names: list[str]) -> None:
    column, row = np.nonzero(every)
    total, known = every[column, row], labelled[column, row]
    axes.scatter(clients[column], row, s=np.maximum(total * scale, 1.5), c=PALE, edgecolors=BLUE, linewidths=0.6)
    some = known > 0
    axes.scatter(clients[column[some]], row[some], s=np.maximum(known[some] * scale, 1), c=BLUE, linewidths=0)
    axes.set(xlim=(clients[0] - 0.5, clients[-1] + 0.5), ylim=(len(names) - 0.5, -0.5), xticks=[])
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_yticks(np.arange(len(names) - 1) + 0.5, minor=True)
    axes.grid(axis="y", which="minor", color=LINE, linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_color("#BBBBBB")


def _cut(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:39]}…"


def _ratios(axes: Axes, clients: np.ndarray, shares, called: list[str], upright: bool) -> None:
    ratios = [shares[k].label_ratio for k in clients]
    axes.bar(clients, np.ones(len(clients)), width=0.8, color="#F1F1F1")
    axes.bar(clients, ratios, width=0.8, color=ORANGE)
    axes.set(xlim=(clients[0] - 0.5, clients[-1] + 0.5), ylim=(0, 1))
    size, angle = 7 if clients[-1] < 100 else 6, 90 if upright else 0
    axes.set_xticks(clients, [called[k] for k in clients], fontsize=size, rotation=angle)
    axes.set_yticks([0.5], ["label ratio"], fontsize=8)
    axes.set_xlabel("client", fontsize=8, color=MUTED, labelpad=1)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
