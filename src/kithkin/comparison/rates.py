"""A learning rate of its own for every method of a comparison: of those tried, the one that does best on validation pictures.

They are tried at the comparison's first alpha, with a seed that its table does not show, in runs as long as the table's.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from kithkin import own
from kithkin.comparison.cells import Cell, check_same, do_all, told
from kithkin.comparison.table import written
from kithkin.config import bad
from kithkin.errors import KithkinError
from kithkin.federation import DivergedError
from kithkin.record import Folder
from kithkin.record.run import folder_name

SEED = 100


@dataclass(frozen=True)
class Tried:
    """The validation accuracy of a method by learning rate; of a rate at which training diverged there is none."""

    method: str
    val: dict[float, float | None]

    @property
    def best(self) -> float:
        """The smaller of two that are equal."""
        known = {lr: val for lr, val in self.val.items() if val is not None}
        if not known:
            raise KithkinError(f"{self.method} diverges at every rate of --lrs.", "Give smaller ones too.")
        return max(known, key=lambda lr: (known[lr], -lr))

    @property
    def at_edge(self) -> bool:
        return self.best in (min(self.val), max(self.val))


def trials(cells: Sequence[Cell], rates: Sequence[float], out: Path) -> dict[tuple[str, float], Cell]:
    """A cell for every method and rate, like the method's first one in the comparison."""
    if words := [lr for lr in rates if not isinstance(lr, int | float)]:
        raise bad("lrs", repr(words[0]), "must be float")
    rates = sorted(set(rates))
    if len(rates) < 2:
        raise KithkinError("There is one rate in --lrs.", "Name those to choose from; --lr gives all methods the same.")
    if any(cell.config.seed == SEED for cell in cells):
        raise KithkinError(f"Rates are chosen with seed {SEED}, which is in --seeds too.", "Give another seed there.")
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.config.method, cell)
    return {
        (method, lr): replace(
            cell,
            config=replace(cell.config, seed=SEED, lr=lr, save_models=False).checked(),
            folder=out / "rates" / f"{folder_name(method, '', cell.config.alpha, SEED)}-lr{lr:g}",
        )
        for method, cell in first.items()
        for lr in rates
    }


def check_there(cells: Sequence[Cell], rates: Sequence[float]) -> None:
    """Refuse what no choice of a rate can reconcile with the runs that are there, before hours are spent on choosing one."""
    for cell in cells:
        if (folder := Folder(cell.folder)).manifest.exists():
            lr = folder.read_manifest().get("config", {}).get("lr")
            check_same(replace(cell, config=replace(cell.config, lr=lr)))
            if lr not in rates:
                problem = f"{cell.folder} holds a run with lr {lr}, which is not among --lrs."
                raise KithkinError(problem, "Nothing was run. Give another --out.")


def choose(cells: Sequence[Cell], rates: Sequence[float], out: Path, jobs: int, quiet: bool) -> list[Tried]:
    """Try every rate with every method; what was tried before is read."""
    tried = trials(cells, rates, out)
    check_there(cells, rates)
    results, broken = do_all(list(tried.values()), jobs, quiet)
    if others := [(cell, e) for cell, e in broken if not isinstance(e, DivergedError)]:
        problem = f"{len(others)} of {len(tried)} runs that try rates broke off. {told(others)}"
        raise KithkinError(problem, "The same command tries these again.")
    found = {result.folder: result.summary["best_val"] for result in results}
    if None in found.values():
        raise KithkinError("Nobody has a picture to validate with, and no rate can be chosen.", "Give --lr, or more pictures.")
    val: dict[str, dict[float, float | None]] = {}
    for (method, lr), cell in tried.items():
        val.setdefault(method, {})[lr] = found.get(cell.folder)
    return [Tried(method, by_rate) for method, by_rate in val.items()]


def at_rates(cells: Sequence[Cell], rates: Sequence[float], out: Path, jobs: int, quiet: bool) -> tuple[list[Cell], str]:
    """The comparison's cells, every method at its rate, and what a reader of their table must know."""
    tried = choose(cells, rates, out, jobs, quiet)
    best = {each.method: each.best for each in tried}
    write(out, tried)
    if not quiet:
        show(tried)
    return [replace(cell, config=replace(cell.config, lr=best[cell.config.method])) for cell in cells], in_words(tried)


def in_words(tried: Sequence[Tried]) -> str:
    """What a reader of the table must know."""
    rates = ", ".join(f"{own.short(each.method)} {each.best:g}" for each in tried)
    edge = ", ".join(own.short(each.method) for each in tried if each.at_edge)
    beyond = f" At the edge of what was tried, where a better one may lie beyond: {edge}." if edge else ""
    return f"Learning rates by validation accuracy with seed {SEED}: {rates}.{beyond}"


def show(tried: Sequence[Tried]) -> None:
    """On the screen."""
    screen = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    screen.add_column("method", overflow="fold")
    for lr in tried[0].val:
        screen.add_column(f"{lr:g}", justify="right", no_wrap=True)
    for each in tried:
        figures = (
            "-" if val is None else f"[bold]{val:.3f}[/]" if lr == each.best else f"{val:.3f}" for lr, val in each.val.items()
        )
        screen.add_row(own.short(each.method), *figures)
    Console().print(f"Validation accuracy with seed {SEED}, by learning rate:", screen)


def write(out: Path, tried: Sequence[Tried]) -> None:
    """rates.csv: what every rate gave."""
    with written(out / "rates.csv") as f:
        table = csv.writer(f)
        table.writerow(["method", "lr", "best_val", "chosen"])
        table.writerows([own.short(t.method), lr, val, int(lr == t.best)] for t in tried for lr, val in t.val.items())
