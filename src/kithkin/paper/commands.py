"""The commands of `kithkin paper`: list, report, and every table and figure by its name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import get_args

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kithkin.config import bad
from kithkin.data.sources import SOME
from kithkin.errors import KithkinError, unknown
from kithkin.methods import entry_of
from kithkin.paper.cells import Cell, Grid, fill, strangers
from kithkin.paper.drawing import Block, table, write_page
from kithkin.paper.plan import MAIN, MEDICAL, MOST_SEEDS, SEEDS, Plan, Rate, Scale
from kithkin.paper.recipes import RECIPES, page, recipe_of
from kithkin.paper.tables import leaders
from kithkin.record.assembling import pick_device

RESULTS = Path("results")
WIDE = 150  # columns of a terminal that has room for titles
MEANINGS = {
    "tuned": "with the learning rates that a grid found best, not the paper's 1e-4",
    "short": "with fewer rounds",
    "small": f"with {SOME:,} pictures of each set at half their size, a small network and fewer clients",
    "smoke": "with digits for every set; it shows that all runs, nothing else",
}
ALL = "all"  # stands for every name of RECIPES


def list_recipes(results: Path = RESULTS) -> None:
    """List the tables and figures, and how many of their runs are there.

    Args:
        results: Folder of the finished cells.
    """
    if results != RESULTS:  # which nobody misspells
        _must_be_there(results)
    console = Console()
    title = "Runs that are there: at the paper's learning rate + at the tuned one, of so many"
    screen = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    scales: tuple[Scale, ...] = ("small", "short", "paper")
    wide = console.width >= WIDE
    for head in ("name", "in the paper", *scales, *(["what it is"] if wide else [])):
        screen.add_column(head, no_wrap=head != "in the paper")
    for name, recipe in RECIPES.items():
        counts: list[str] = []
        before: list[Cell] = []
        for scale in scales:
            plans = [Plan(scale, rate, SEEDS[scale]) for rate in get_args(Rate)]
            first, second = (recipe.plan(plan) for plan in plans)
            apart = [first] if first == second else [first, second]
            grids = [recipe.gather(cells, plan, results) for cells, plan in zip(apart, plans, strict=False)]
            there = " + ".join(str(len(grid.records)) for grid in grids)
            counts.append("the same" if first == before else f"{there} of {len(grids[0].cells)}")
            before = first
        screen.add_row(name, recipe.place, *counts, *([recipe.title] if wide else []))
    console.print(screen)


def regenerating(name: str) -> Callable[..., None]:
    """The command of one table or figure, or of all."""
    about = "Every table and figure" if name == ALL else f"{RECIPES[name].title} ({RECIPES[name].place})"

    def command(
        scale: Scale = "paper",
        lr: Rate = "paper",
        seeds: int | None = None,
        budget: float | None = None,
        methods: tuple[str, ...] = (),
        alphas: tuple[float, ...] = (),
        out: Path | None = None,
        results: Path = RESULTS,
        device: str | None = None,
        quiet: bool = False,
    ) -> None:
        if seeds is not None and seeds < 1:
            raise bad("seeds", seeds, "must be 1 or more")
        if budget is not None and not budget >= 0:
            raise bad("budget", budget, "must be 0 or more")
        if budget == 0 and results != RESULTS:
            _must_be_there(results)
        plan = Plan(scale, lr, SEEDS[scale] if seeds is None else seeds)
        wanted_by = {each: recipe_of(each).plan(plan) for each in (RECIPES if name == ALL else (name,))}
        cells = sorted(chain.from_iterable(wanted_by.values()), key=lambda cell: cell.config.seed)
        for method in methods:
            entry_of(method)
        for alpha in alphas:
            if alpha not in {cell.config.alpha for cell in cells}:
                raise unknown("alpha of this table", f"{alpha:g}", {f"{cell.config.alpha:g}" for cell in cells})
        if device:
            pick_device(device)
        _tell(strangers(results))
        chosen = [c for c in cells if (not methods or c.config.method in methods) and (not alphas or c.config.alpha in alphas)]
        if budget != 0:
            looks = _looks(plan)
            wanted = [replace(c, looks=looks.get(c.file, frozenset())) for c in chosen]
            wanted = [replace(c, config=replace(c.config, device=device)) for c in wanted] if device else wanted
            filled = fill(wanted, results, budget, quiet, partial(_needless, wanted_by.get("tuning", ()), plan, results))
        else:
            filled = None
        folder = out or results / "drawn"
        drawn = replace(plan, seeds=seeds or MOST_SEEDS)
        for each in wanted_by:
            path = folder / f"{each}{plan.stem}.md"
            recipe = RECIPES[each]
            text = write_page(path, page(each, recipe.gather(recipe.plan(drawn), drawn, results), drawn), folder / "figures")
            if not quiet:
                print(path if name == ALL else text)
        if filled:
            left = {"out of time": filled.out_of_time, "left to other processes": filled.elsewhere}
            told = "".join(f", {count} {what}" for what, count in left.items() if count)
            print(f"{filled.done} runs done{told}.", file=sys.stderr)
            if filled.broken:
                raise KithkinError(
                    f"{len(filled.broken)} runs broke off: {'; '.join(filled.broken)}.",
                    "Their places stay blank; the others are drawn.",
                )

    command.__doc__ = f"""{about}.

    Runs what is missing, the important runs first, and draws what there is. Several such commands may run at once.

    Args:
        scale: smoke, seconds, on digits; small, a minute a run on a CPU; short, with fewer rounds; paper, the paper's setting.
        lr: The paper's learning rate 1e-4, or the tuned one; smoke and small have their own.
        seeds: Runs of each cell; left out, 20 at scale paper, else 1, and all that are there are drawn.
        budget: Minutes after which to stop; 0 only draws.
        methods: Run only these methods; all that are there are drawn.
        alphas: Run only at these; all that are there are drawn.
        out: Folder for the drawing; left out, drawn/ below the results.
        results: Folder of the finished cells.
        device: auto, cpu, cuda or cuda:N.
        quiet: Show nothing while running.
    """
    return command


def _looks(plan: Plan) -> dict[str, frozenset[str]]:
    """What all recipes want to see of a run, so that one that several of them want is run once."""
    looks: dict[str, frozenset[str]] = {}
    for recipe in RECIPES.values():
        for cell in recipe.cells(replace(plan, seeds=1)):
            looks[cell.file] = looks.get(cell.file, frozenset()) | cell.looks
    return looks


def _needless(tuning: Sequence[Cell], plan: Plan, results: Path, cell: Cell) -> bool:
    """Whether a run tries a learning rate that can no longer be the best."""
    rivals = [c for c in tuning if c.row == cell.row]
    wanted = RECIPES["tuning"].gather(rivals, plan, results).cells
    return cell.file in {c.file for c in rivals} - {c.file for c in wanted}


def _must_be_there(results: Path) -> None:
    if not results.is_dir():
        raise KithkinError(f"There is no folder {results}.", "Give the --results of finished runs.")


def _tell(problems: Iterable[str]) -> None:
    for problem in problems:
        print(f"skipped: {problem}", file=sys.stderr)


def _ahead(compared: dict[str, Grid]) -> list[str]:
    """A table of who is ahead on which data, at every alpha at which methods can be compared."""
    alphas = sorted(Plan().alphas)
    told = {name: [leaders(grid, alpha) for alpha in alphas] for name, grid in compared.items()}
    shown = [i for i in range(len(alphas)) if any(texts[i] for texts in told.values())]
    if not shown:
        return []
    words = (
        "Test accuracy (%) at the round of best mean validation accuracy, of the best three that were run and do not know all "
        "labels, over the seeds that all of these have; *harmed*: clients of the first that end more than 3 points below their "
        "own `local` model."
    )
    lines = [[name, *(texts[i] for i in shown)] for name, texts in told.items() if any(texts)]
    return ["## Who is ahead", table(["", *(f"α = {alphas[i]:g}" for i in shown)], lines), words, "## What there is"]


def report(out: Path = RESULTS / "report.md", results: Path = RESULTS, scale: Scale | None = None) -> None:
    """Write all tables and figures that anything was run for as Markdown, and as a page beside it.

    Args:
        out: The Markdown file; the page has its name with .html, the figures lie in figures/ beside it.
        results: Folder of the finished cells.
        scale: Only this scale; left out, all but smoke.
    """
    _must_be_there(results)
    _tell(strangers(results))
    scales: tuple[Scale, ...] = (scale,) if scale else ("paper", "short", "small")
    plans = [Plan(s, r, MOST_SEEDS) for s in scales for r in get_args(Rate)]
    heads = ["# The paper's tables and figures, ours beside theirs"]
    heads.append(
        "Written by `kithkin paper report` from the finished runs. *Here*: mean ± standard deviation over n seeds; blank where "
        "nothing was run. *Paper*: Shi, Chen, Zhang, IEEE TNSE 2022, the mean of 20 runs."
    )
    blocks: list[Block] = []
    files: set[str] = set()
    compared: dict[str, Grid] = {}  # methods on a data set, by what to call it
    told: dict[str, dict[Plan, str]] = {name: {} for name in RECIPES}  # how much of it is there
    for name, recipe in RECIPES.items():
        shown: list[list[str]] = []
        for plan in plans:
            cells = recipe.plan(plan)
            if (names := [cell.file for cell in cells]) in shown or not (grid := recipe.gather(cells, plan, results)).files:
                continue
            shown.append(names)
            blocks += page(name, grid, plan, level=2)
            files |= grid.files
            if name in (*MAIN, *MEDICAL):
                compared[f"[{name}{''.join(f', {word}' for word in plan.words)}](#{name}{plan.stem})"] = grid
            told[name][plan] = f"[{grid.filled} of {len(grid.wanted)}](#{name}{plan.stem})"
    heads += _ahead(compared)
    used = [plan for plan in plans if any(plan in there for there in told.values())]
    lines = [
        [f"{RECIPES[name].title} (`{name}`)", *(there.get(plan, "") for plan in used), RECIPES[name].place]
        for name, there in told.items()
        if there
    ]
    heads.append(table(["", *(", ".join(plan.words) or "as in the paper" for plan in used), "there"], lines))
    words = [word for word in MEANINGS if any(word in plan.words for plan in used)]
    heads.append(" ".join(["How many of its places are filled.", *(f"*{word}*: {MEANINGS[word]}." for word in words)]))
    heads.append(f"{len(files)} finished runs in all; one may serve several tables.")
    nothing = [f"`kithkin paper {name}`" for name, places in told.items() if not places]
    if nothing:
        heads.append(f"Nothing was run yet for {', '.join(nothing)}.")
    write_page(out, [*heads, *blocks], out.parent / "figures", page=True)
    print(
        f"{out} and {out.with_suffix('.html')}: {len(files)} finished runs, {sum(map(len, told.values()))} tables and figures."
    )
