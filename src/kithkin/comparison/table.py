"""The table of a comparison: a row for every method at every alpha, over its seeds, on the screen and as files."""

from __future__ import annotations

import csv
import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table

from kithkin.config import Alpha
from kithkin.disk import disk_errors
from kithkin.record import Result

HARM = 0.03  # a client is harmed if it is more than 3 points below its own local model


@dataclass(frozen=True)
class Row:
    """One method at one alpha, over all seeds."""

    method: str
    alpha: Alpha
    seeds: int
    test: float
    test_sd: float  # over seeds; NaN with one seed
    variance: float  # over clients
    worst_decile: float  # mean test accuracy of the worst tenth of the clients
    label_error: float  # of the pseudo labels of the last round,
    coverage: float  # which so many of the pictures without a label got
    megabytes: float
    seconds: float
    gain: float  # mean over clients of the gain over `local`
    harmed: float  # share of clients that are more than 3 points below their own local model


def rows(results: Sequence[Result]) -> list[Row]:
    """The table's rows, in the order of the cells."""
    groups: dict[tuple[str, Alpha], list[Result]] = {}
    for result in results:
        groups.setdefault((result.summary["method"], result.summary["alpha"]), []).append(result)
    alone = by_itself(results)
    table: list[Row] = []
    for (method, alpha), group in groups.items():
        others = [] if method == "local" else group  # over itself nobody gains
        gains = [g for r in others for g in gains_over(alone.get((alpha, r.summary["seed"])), accuracies(r))]
        tests = [r.summary["test_at_best_val"] for r in group]
        row = Row(
            method=method,
            alpha=alpha,
            seeds=len(group),
            test=fmean(tests),
            test_sd=stdev(tests) if len(tests) > 1 else math.nan,
            variance=fmean(r.summary["test_var_at_best_val"] for r in group),
            worst_decile=fmean(worst_decile(accuracies(r)) for r in group),
            label_error=mean_known(r.summary["final_pseudo_error"] for r in group),
            coverage=mean_known(r.summary.get("final_pseudo_coverage") for r in group),
            megabytes=fmean((r.summary["down_bytes"] + r.summary["up_bytes"]) / 1e6 for r in group),
            seconds=fmean(r.summary["seconds"] for r in group),
            gain=mean_known(gains),
            harmed=harmed(gains) if gains else math.nan,
        )
        table.append(row)
    return table


def mean_known(values: Iterable[float | None]) -> float:
    """The mean of those that are known; NaN where none is.

    >>> mean_known([0.5, None, 1.0]), mean_known([])
    (0.75, nan)
    """
    known = [value for value in values if value is not None]
    return fmean(known) if known else math.nan


def accuracies(result: Result) -> list[float]:
    """Each client's test accuracy at the run's best validation round."""
    return [client["test_at_best_val"] for client in result.clients]


def by_itself(results: Sequence[Result]) -> dict[tuple[Alpha, int], list[float]]:
    """What the clients of each (alpha, seed) reach alone."""
    return {(r.summary["alpha"], r.summary["seed"]): accuracies(r) for r in results if r.summary["method"] == "local"}


def gains_over(local: Sequence[float] | None, own: Sequence[float]) -> list[float]:
    return [] if local is None else [b - a for a, b in zip(local, own, strict=True)]


def harmed(gains: Sequence[float]) -> float:
    """The share of clients that are more than 3 points below their own local model, by their gains over it.

    >>> harmed([0.1, -0.01, -0.05, 0.0])
    0.25
    """
    return fmean(gain < -HARM - 1e-6 for gain in gains)  # three points are not more than three, however they are rounded


def luck(results: Sequence[Result]) -> str:
    """What to think of harm where a client's test picture weighs more than the points that count as harm."""
    pictures = median(client["test"] for result in results for client in result.clients)
    methods = {result.summary["method"] for result in results}
    if "local" not in methods or methods == {"local"} or pictures * HARM >= 1:
        return ""
    weight = f"Half of the clients have {pictures:g} test pictures or fewer, each {100 / pictures:.0f} points or more:"
    return f"{weight}\nthat a few are harmed may be luck."


def worst_decile(values: Sequence[float]) -> float:
    """The mean of the worst tenth, at least one client.

    >>> worst_decile([0.9, 0.1, 0.5])
    0.1
    """
    return fmean(sorted(values)[: max(1, len(values) // 10)])


HEADS = ("method", "alpha", "test", "var", "worst\n10%", "label\nerror", "given", "MB", "sec", "vs\nlocal", "harm")
LEGEND = (
    "Accuracies are those of the round of best validation accuracy.\n"
    "test: mean over clients (± sd over seeds). var: variance over them.\n"
    "worst 10%: mean of the worst tenth of the clients.\n"
    "label error: wrong pseudo labels in the last round. given: pictures with one.\n"
    "MB: moved in all. sec: seconds. vs local: mean gain of a client over its own\n"
    "local model. harm: clients more than 3 points below it."
)


def shown(row: Row) -> list[str]:
    """A row as people read it; a dash where there is nothing to say."""
    sd = "" if math.isnan(row.test_sd) else f" ± {row.test_sd:.3f}"
    figures = [f"{row.test:.3f}{sd}", f"{row.variance:.4f}", f"{row.worst_decile:.3f}"]
    labels = [f"{row.label_error:.3f}", f"{row.coverage:.0%}"]
    spent = [f"{value:,.{1 if value < 100 else 0}f}" for value in (row.megabytes, row.seconds)]
    alpha = row.alpha if isinstance(row.alpha, str) else f"{row.alpha:g}"
    told = [*figures, *labels, *spent, f"{row.gain:+.3f}", f"{row.harmed:.0%}"]
    return [row.method, alpha, *("-" if "nan" in figure else figure for figure in told)]


FITTING = 80  # columns that hold every figure


def print_table(table: Sequence[Row], folder: Path | None = None, note: str = "") -> None:
    """On the screen, with what the columns mean and where all of it is kept."""
    seeds = sorted({row.seeds for row in table})  # more than one number where runs broke off
    title = f"mean over {' to '.join(map(str, seeds[:: len(seeds) - 1 or 1]))} seed{'s' * (seeds[-1] > 1)}"
    screen = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for i, head in enumerate(HEADS):
        screen.add_column(head, justify="right" if i else "left", no_wrap=i > 0, overflow="fold")  # a name gives way to figures
    for before, row in zip([None, *table], table, strict=False):
        if before and before.alpha != row.alpha:
            screen.add_section()
        screen.add_row(*shown(row))
    Console(width=max(FITTING, Console().width)).print(screen)  # a narrower terminal breaks lines, which loses no figure
    Console().print(f"{LEGEND}\n{note}".strip(), style="dim", highlight=False)
    if folder:
        print(f"\n{folder} has table.md, table.csv, gains.csv and a folder a run: `kithkin report {folder} --open` shows them.")


def write_table(folder: Path, table: Sequence[Row], results: Sequence[Result], note: str = "") -> None:
    """table.md and table.csv; gains.csv has every client's gain over its local model."""
    heads = [*(head.replace("\n", " ") for head in HEADS), "seeds"]
    lines = [heads, ["---"] * len(heads), *([*shown(row), str(row.seeds)] for row in table)]
    with written(folder / "table.md") as f:
        f.writelines(f"| {' | '.join(line)} |\n" for line in lines)
        f.write(note and f"\n{note}\n")
    with written(folder / "table.csv") as f:
        writer = csv.DictWriter(f, list(Row.__dataclass_fields__))
        writer.writeheader()
        writer.writerows({k: "" if v != v else v for k, v in vars(row).items()} for row in table)
    alone = by_itself(results)
    with written(folder / "gains.csv") as f:
        out = csv.writer(f)
        out.writerow(["method", "alpha", "seed", "client", "test_at_best_val", "gain_over_local"])
        for r in results:
            s, own = r.summary, accuracies(r)
            gains: Sequence[Any] = gains_over(alone.get((s["alpha"], s["seed"])), own) or [""] * len(own)
            out.writerows(
                [s["method"], s["alpha"], s["seed"], k, a, g] for k, (a, g) in enumerate(zip(own, gains, strict=True))
            )


@contextmanager
def written(path: Path) -> Generator[TextIO, None, None]:
    remedy = "Mend that; the same command writes it again."
    with disk_errors(path, remedy), path.open("w", newline="", encoding="utf-8") as file:
        yield file
