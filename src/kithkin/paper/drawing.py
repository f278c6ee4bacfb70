"""Tables as Markdown, figures in one style that colour-blind eyes can read, and the pages that hold them."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

import numpy as np
from markdown_it import MarkdownIt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kithkin.disk import disk_errors, write_text, write_whole
from kithkin.palette import BLACK, BLUE, GREEN, GREY, LINE, OLIVE, ORANGE, PURPLE, RED, SKY, schemes
from kithkin.paper.cells import Grid, Record

MARKERS = "osD^vPX*<>p"
KEY_WIDTH = 1.1  # inches of an entry in a key
LINES: dict[str, dict[str, Any]] = {
    "um": {"color": RED, "linewidth": 2.4},
    "um-plus": {"color": BLACK, "linewidth": 2.4},
    "fixavg": {"color": BLUE},
    "fixprox": {"color": SKY},
    "fixbn": {"color": GREEN},
    "mix": {"color": ORANGE},
    "fixavg-ft": {"color": BLUE, "linestyle": "--"},
    "fedper": {"color": ORANGE, "linestyle": "--"},
    "lg-fedavg": {"color": PURPLE, "linestyle": "--"},
    "pfedme": {"color": OLIVE, "linestyle": "--"},
    "local": {"color": GREY, "linestyle": "--"},
    "fedavg-sl": {"color": BLUE, "linestyle": ":"},
    "fedprox-sl": {"color": SKY, "linestyle": ":"},
    "fedbn-sl": {"color": GREEN, "linestyle": ":"},
}
LINES_IN_WORDS = (
    "Thick: clients learn from helpers. Dashed: each has a model of its own, or a part of one, and no helpers. Thin and solid, "
    "or dotted: one common model (of the -bn methods all but its batch norms), dotted with all labels known."
)


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure and the words below it."""

    name: str
    caption: str
    figure: Figure
    grid: Grid | None = None  # what it shows, where that is not all of its table


Block = str | Picture
Measure = Callable[[Record], float | None]
Value = TypeVar("Value")


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Markdown, in which columns of numbers stand on the right, so that digits stand below digits.

    >>> print(table(["", "%"], [["um", "9.5"], ["mix", ""]]))
    |  | % |
    | --- | ---: |
    | um | 9.5 |
    | mix |  |
    """
    lines = list(lines)
    columns = [[line[i] for line in lines if line[i]] for i in range(len(heads))]
    rules = ["---:" if all(re.match(r"[\[*+-]*\d", text) for text in column) else "---" for column in columns]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rules, *lines))


def here(values: Sequence[float], digits: int = 1) -> str:
    """Mean, deviation over seeds, and how many; blank where nothing was run.

    >>> here([70.0, 72.0]), here([70.0]), here([])
    ('71.0 ± 1.4 (n 2)', '70.0 (n 1)', '')
    """
    if not values:
        return ""
    sd = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{sd} (n {len(values)})"


def beside(values: Sequence[float], published: float | None, alone: bool = False) -> list[str]:
    """Ours, the paper's, and the difference; alone: ours.

    >>> beside([70.0], 72.5), beside([], 72.5), beside([70.0], None)
    (['70.0 (n 1)', '72.50', '-2.5'], ['', '72.50', ''], ['70.0 (n 1)', '', ''])
    """
    if alone:
        return [here(values)]
    difference = f"{fmean(values) - published:+.1f}" if values and published is not None else ""
    return [here(values), "" if published is None else f"{published:.2f}", difference]


def heads_beside(name: str, alone: bool = False) -> list[str]:
    """The heads of what `beside` gives."""
    return [name] if alone else [name, "paper", "diff."]


def measured(grid: Grid, row: Any, column: Any, measure: Measure) -> list[float]:
    """A measure of every record at a place that has it."""
    return [value for record in grid.at(row, column) if (value := measure(record)) is not None]


def named(place: tuple[Any, Any], letter: str = "α") -> str:
    """A place of a grid in words; a number among its columns is this letter's, among its rows α.

    >>> named((("cifar-10", "um"), 0.5)), named((("cifar-10", 0.5), 3), "M"), named(("cifar-10", "mix"))
    ('cifar-10, um at α = 0.5', 'cifar-10 at α = 0.5, M = 3', 'cifar-10, mix')
    """
    row, column = place
    parts = [("α", part) for part in (row if isinstance(row, tuple) else (row,))] + [(letter, column)]
    words = ", ".join(part for _, part in parts if isinstance(part, str))
    values = ", ".join(f"{name} = {part:g}" for name, part in parts if not isinstance(part, str))
    return " at ".join(filter(None, (words, values)))


def lacks(grid: Grid, letter: str = "α", most: int = 6) -> str:
    """Which cells a figure or table is without, and in which training diverged."""
    told: list[str] = []
    lacking = f"Lacks {len(grid.lacking)} of {len(grid.wanted)} cells"
    for what, places in ((lacking, grid.lacking), ("Diverged", [*grid.diverged])):
        rest = f"; and {len(places) - most} more" if len(places) > most else ""
        told += [f"{what}: {'; '.join(named(p, letter) for p in places[:most])}{rest}."] if places else []
    return " ".join(told)


def sheet(
    rows: int, columns: int, title: str, size: tuple[float, float] = (3.2, 2.6), same_height: bool = False
) -> tuple[Figure, np.ndarray]:
    """An empty figure of so many panels; those side by side may share their upright axis."""
    figure = Figure((max(5.0, columns * size[0]), rows * size[1] + 0.7), facecolor="white", layout="constrained")
    entitle(figure, title)
    panels = figure.subplots(rows, columns, squeeze=False, sharey="row" if same_height else False)
    for axes in panels.flat:
        axes.grid(color=LINE, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(which="both", labelsize=8, length=0)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def entitle(figure: Figure, title: str) -> None:
    figure.suptitle(title, fontsize=11, fontweight="bold")


def panels_of(values: Iterable[Value], known: Iterable[Any]) -> list[Value]:
    """The values that get a panel: those of which something is known, or all where nothing is."""
    values, known = list(values), set(known)
    return [value for value in values if value in known] or values


def write_on(axes: Axes, title: str = "", x: str = "", y: str = "") -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    if len(beside_it(axes)) > 1:
        axes.label_outer(remove_inner_ticks=False)


def beside_it(axes: Axes) -> list[Axes]:
    """The panels that share its upright axis, itself among them."""
    return list(axes.get_shared_y_axes().get_siblings(axes))


def say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=8, color=GREY, transform=axes.transAxes)


def along(axes: Axes, values: Sequence[float]) -> dict[float, int]:
    """Where each value stands: all have their tick, evenly, whether they were run or not."""
    axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    axes.set_xlim(-0.3, len(values) - 0.7)
    return {value: i for i, value in enumerate(values)}


def draw_means(axes: Axes, values: dict[float, list[float]], **style: Any) -> None:
    """A mean at the tick of every value; where one was not run, the line breaks."""
    places = along(axes, list(values))
    if any(values.values()):
        means = [fmean(known) if known else math.nan for known in values.values()]
        axes.plot(list(places.values()), means, markersize=4, **style)


def widen(panels: Iterable[Axes], least: float) -> None:
    """Let upright axes span the same, and at least this much, or chance looks large."""
    drawn = [axes for axes in panels if axes.has_data()]
    span = max([least, *(high - low for low, high in (axes.get_ylim() for axes in drawn))])
    for axes in drawn:
        middle = sum(axes.get_ylim()) / 2
        axes.set_ylim(middle - span / 2, middle + span / 2)


def key_of(figure: Figure, panels: np.ndarray) -> None:
    """One key for all panels, below them, where the narrowest screen shows it; none where nothing is drawn."""
    lines = {label: line for axes in panels.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if lines:
        columns = min(len(lines), int(figure.get_figwidth() / KEY_WIDTH))
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def mean_curve(curves: Sequence[Sequence[float | None]]) -> list[float]:
    """The mean over seeds at every point; NaN where none has a value."""
    points = zip(*curves, strict=False)
    return [fmean(known) if (known := [v for v in point if v is not None]) else math.nan for point in points]


def running_mean(curve: Sequence[float], span: int) -> np.ndarray:
    """The mean of the last `span` points that have a value, at every point.

    >>> running_mean([1.0, 2.0, math.nan, 6.0], 2).tolist()
    [1.0, 1.5, 2.0, 6.0]
    """
    windows = [np.array(curve[max(0, i + 1 - span) : i + 1]) for i in range(len(curve))]
    return np.array([w[~np.isnan(w)].mean() if (~np.isnan(w)).any() else math.nan for w in windows])


def png(figure: Figure) -> bytes:
    """The figure as it is written; a panel in which nothing was drawn says so."""
    for axes in figure.axes:
        if not axes.has_data() and not axes.texts:
            say(axes, "not run yet")
        if not any(other.has_data() for other in beside_it(axes)):
            axes.set_yticks([])
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def write_page(path: Path, blocks: Sequence[Block], figures: Path, page: bool = False) -> str:
    """Markdown with its figures in a folder beside it, and one self-contained HTML page if asked. Gives the text."""
    text: list[str] = []
    pictures: dict[str, bytes] = {}
    for block in blocks:
        if isinstance(block, str):
            text.append(block)
            continue
        address = (figures / f"{block.name}.png").relative_to(path.parent).as_posix()
        pictures[address] = png(block.figure)
        text.append(f"![{block.figure.get_suptitle()}]({address})\n\n*{block.caption}*")
    whole = "\n\n".join(text) + "\n"
    with disk_errors(path, "Give another --out."):
        path.parent.mkdir(parents=True, exist_ok=True)
        for address, content in pictures.items():
            (path.parent / address).parent.mkdir(parents=True, exist_ok=True)
            write_whole(path.parent / address, partial(Path.write_bytes, data=content))
        write_text(path, whole)
        if page:
            write_text(path.with_suffix(".html"), as_html(whole, pictures))
    return whole


BESIDE = r"<th[^>]*>[^<]*</th>\n<th[^>]*>paper</th>\n<th[^>]*>diff.</th>\n"  # ours, the paper's, the difference


def as_html(text: str, pictures: dict[str, bytes]) -> str:
    body = MarkdownIt().enable("table").render(text)
    body = re.sub(r'<h2>(.*) <a id="(.*)"></a></h2>', r'<h2 id="\2">\1</h2>', body)
    body = re.sub(rf"<table>(?=\n<thead>\n<tr>\n<th>[^<]*</th>\n({BESIDE})+</tr>)", '<table class="beside">', body)
    body = re.sub(r"\(n \d+\)", r"<small>\g<0></small>", body)
    for address, content in pictures.items():
        least = int.from_bytes(content[16:20], "big") * 3 // 4  # of a PNG's width: smaller, nobody can read its words
        source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        box = f'<p class="picture" tabindex="0"><img style="min-width:{least}px" src="{source}"'
        body = body.replace(f'<p><img src="{address}"', box)
    title = re.sub("<.*?>", "", body.partition("</h1>")[0])
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title} · kithkin</title><link rel="icon" href="data:,"><style>{style()}</style>'
    )
    body += '<a class="up" href="#">↑ Contents</a>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def style() -> str:
    """The report's colours and sizes, dark where the reader's screen is, and what this page has of its own."""
    light, dark = schemes()
    own = files("kithkin.paper").joinpath("page.css").read_text(encoding="utf-8")
    return f":root {{{light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{{dark}}} }}\n{own}"
