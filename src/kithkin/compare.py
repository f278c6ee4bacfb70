"""Many runs side by side: every method at every alpha with every seed, one folder a cell, then one table."""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TextIO

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kithkin import own
from kithkin.compute import cores
from kithkin.config import WHERE, Alpha, RunConfig, as_json
from kithkin.data import load, resolved
from kithkin.data.sources import is_official
from kithkin.disk import disk_errors
from kithkin.display import display_for
from kithkin.errors import KithkinError
from kithkin.methods import check, entry_of
from kithkin.processes import Ended, die_with_parent, ending_softly
from kithkin.record import Folder, Result, resume, run
from kithkin.record.assembling import fingerprint_of, in_full, sources
from kithkin.record.run import Quiet, folder_name

HARM = 0.03  # a client is harmed if it is more than 3 points below its own local model


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    config: RunConfig
    settings: Any
    folder: Path

    def __reduce__(self) -> tuple[Callable[..., Cell], tuple[Any, ...]]:
        """So that it passes to processes that have not imported a user's own method."""
        return _cell, (self.config, asdict(self.settings), self.folder)


def _cell(config: RunConfig, settings: dict[str, Any], folder: Path) -> Cell:
    return Cell(config, type(entry_of(config.method).settings)(**settings), folder)


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


def do(cell: Cell, quiet: bool = True, one_thread: bool = False) -> Result:
    """Run a cell, go on with it, or read it if it is finished."""
    if one_thread:
        torch.set_num_threads(1)
    display = Stoppable() if one_thread else display_for(quiet)
    if not Folder(cell.folder).manifest.exists():
        return run(cell.config, cell.settings, cell.folder, display)
    return resume(cell.folder, display, where={name: getattr(cell.config, name) for name in WHERE})


def check_same(cell: Cell) -> None:
    """Refuse a cell whose folder holds a run with other settings, data or code: no table mixes two experiments."""
    folder = Folder(cell.folder)
    if not folder.manifest.exists():
        return
    manifest = folder.read_manifest()
    found = {**manifest.get("config", {}), **manifest.get("settings", {})}
    config = in_full(cell.config)
    wanted = json.loads(json.dumps({**as_json(config), **asdict(cell.settings)}))  # as a manifest holds it
    usual = {**as_json(RunConfig()), **asdict(entry_of(config.method).settings)}  # of what is newer than the run
    differs = sorted(
        k for k in wanted if k not in ("data_folder", "checkpoint_every", *WHERE) and found.get(k, usual[k]) != wanted[k]
    )
    if differs:
        problem = f"{cell.folder} holds a run with another {', '.join(differs)}."
        raise KithkinError(problem, "Nothing was run. Give the same flags and data, or another --out.")
    changed = [what for what, sha256 in sources(config).items() if manifest.get("sources", {}).get(what) != sha256]
    changed += ["data"] if manifest.get("fingerprint", now := fingerprint(config.data)) != now else []
    if changed:
        problem = f"{cell.folder} holds a run with another {', '.join(changed)} of the same name."
        raise KithkinError(problem, "Nothing was run. Give another --out: no table mixes two experiments.")


def blaming(cell: Cell, quiet: bool, one_thread: bool = False) -> Result:
    """Do a cell; what fails in a user's own code is told as a mistake there, while its lines are still known."""
    try:
        return do(cell, quiet=quiet, one_thread=one_thread)
    except Exception as e:
        raise own.blamed(e) from e


@lru_cache(maxsize=1)
def fingerprint(data: str) -> str | None:
    return None if is_official(data) else fingerprint_of(data, load(data))


Broken = list[tuple[Cell, Exception]]


def do_all(cells: Sequence[Cell], jobs: int, quiet: bool) -> tuple[list[Result], Broken]:
    """All cells, several at a time in processes of one thread each where there is no GPU to share.

    One that breaks off keeps none of the others from being run: these come last, with what is wrong.
    """
    for cell in cells:
        check_same(cell)
    results: dict[int, Result] = {}
    broken: dict[int, Exception] = {}
    if jobs <= 1 or len(cells) == 1:
        for i, cell in enumerate(cells):
            try:
                results[i] = blaming(cell, quiet)
            except Exception as e:
                broken[i] = e
        return _in_order(cells, results, broken)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    bar = (TextColumn("[bold]runs"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    columns = (*bar, TextColumn("{task.fields[last]}"))
    with (
        Progress(*columns, console=Console(stderr=True), disable=quiet) as progress,
        ProcessPoolExecutor(jobs, context, begin_work, (stop,)) as pool,
    ):
        task = progress.add_task("runs", total=len(cells), last=f"{min(jobs, len(cells))} at a time")
        try:
            waiting = {pool.submit(work, cell): i for i, cell in enumerate(cells)}
            for future in as_completed(waiting):
                i = waiting[future]
                try:
                    results[i] = future.result()
                except BrokenProcessPool:
                    remedy = "If memory is short, give fewer --jobs; the same command goes on where it was."
                    raise KithkinError("A process that did runs was killed.", remedy) from None
                except Exception as e:
                    broken[i] = e
                got = f"{results[i].summary['test_at_best_val']:.3f}" if i in results else "broke off"
                progress.update(task, advance=1, last=f"{cells[i].folder.name}: {got}")
        except BaseException:
            stop.set()  # for the cells that run or wait in a process: a signal may have reached us alone
            pool.shutdown(cancel_futures=True)
            raise
    return _in_order(cells, results, broken)


def _in_order(cells: Sequence[Cell], results: dict[int, Result], broken: dict[int, Exception]) -> tuple[list[Result], Broken]:
    if not results:
        raise broken[0]
    return [results[i] for i in sorted(results)], [(cells[i], broken[i]) for i in sorted(broken)]


def told(broken: Broken) -> str:
    """Which runs broke off, and why."""

    def what(e: Exception) -> str:
        return str(e) if isinstance(e, KithkinError) else f"{own.told(e)}. `kithkin resume` of this one shows where."

    return " ".join(f"{cell.folder}: {what(e)}" for cell, e in broken)


stopped: Any = None  # in a process of a comparison: whether the others have stopped


class Stoppable(Quiet):
    """Shows nothing, and ends its run, as Ctrl-C would, where the comparison was stopped."""

    def tick(self, done: int, jobs: int) -> None:
        if stopped and stopped.is_set():
            raise KeyboardInterrupt

    def round(self, line: dict[str, Any], moved: int) -> None:
        self.tick(0, 0)


def begin_work(stop: Any) -> None:
    global stopped
    stopped = stop
    die_with_parent()
    if (parent := multiprocessing.parent_process()) and parent.pid != os.getppid():
        os._exit(1)  # it was killed before it could be asked
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for runs; a process that waits for one has nothing to save


def work(cell: Cell) -> Result:
    """Do a cell in a process of its own, unless the comparison was stopped."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if stopped.is_set():
            raise KeyboardInterrupt
        with ending_softly():
            return blaming(cell, quiet=True, one_thread=True)
    except KeyboardInterrupt as e:
        stopped.set()
        if isinstance(e, Ended):
            os._exit(e.code)  # whoever asked waits for this process
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def default_jobs(device: str) -> int:
    """On a GPU one run at a time; else a process a core."""
    gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    return 1 if gpu else cores()


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
    Console().print(screen)
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


def cells_of(
    methods: Sequence[str],
    alphas: Sequence[Alpha],
    seeds: Sequence[int],
    out: Path,
    settle: Callable[[str], tuple[RunConfig, Any]],
) -> list[Cell]:
    """Every cell, alpha by alpha; `settle` gives a method's config and settings."""
    methods = list(dict.fromkeys(map(own.whole, methods)))
    alphas, seeds = list(dict.fromkeys(alphas)), list(dict.fromkeys(seeds))
    if not (methods and alphas and seeds):
        raise KithkinError("There is nothing to compare.", "Name at least one of --methods, --alphas and --seeds.")
    cells: dict[Path, Cell] = {}
    for alpha in alphas:
        for method in methods:
            config, settings = settle(method)
            check(settings, resolved(replace(config, alpha=alpha).checked()).clients or 0)  # before hours are spent
            for seed in seeds:
                folder = out / folder_name(method, "", alpha, seed)
                if folder in cells:
                    problem = f"{method} at alpha {alpha} and {cells[folder].config.method} at {cells[folder].config.alpha}"
                    raise KithkinError(f"{problem} would both be {folder}.", "Rename one's file, or give it another --out.")
                cells[folder] = Cell(replace(config, alpha=alpha, seed=seed), settings, folder)
    return list(cells.values())
