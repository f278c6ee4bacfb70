"""Runs side by side: every method at every alpha with every seed, one folder a cell."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kithkin import own
from kithkin.compute import cores
from kithkin.config import WHERE, Alpha, RunConfig, as_json
from kithkin.data import load, resolved
from kithkin.data.sources import is_official
from kithkin.disk import write_text
from kithkin.display import display_for
from kithkin.errors import KithkinError
from kithkin.federation import DivergedError
from kithkin.methods import check, entry_of
from kithkin.processes import Ended, die_with_parent, ending_softly
from kithkin.record import Folder, Result, resume, run
from kithkin.record.assembling import fingerprint_of, in_full, sources
from kithkin.record.run import Quiet, folder_name


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    config: RunConfig
    settings: Any
    folder: Path

    def __reduce__(self) -> tuple[Callable[..., Cell], tuple[Any, ...]]:
        """So that it passes to processes that have not imported a user's own method."""
        return _cell, (self.config, asdict(self.settings), self.folder)

    @property
    def note(self) -> Path:
        """Where it is told that the run diverged: it would do so again."""
        return self.folder / "diverged.txt"


def _cell(config: RunConfig, settings: dict[str, Any], folder: Path) -> Cell:
    return Cell(config, type(entry_of(config.method).settings)(**settings), folder)


def do(cell: Cell, quiet: bool = True, one_thread: bool = False) -> Result:
    """Run a cell, go on with it, or read it if it is finished."""
    if one_thread:
        torch.set_num_threads(1)
    display = Stoppable() if one_thread else display_for(quiet)
    folder = Folder(cell.folder)
    if cell.note.exists() and not folder.summary.exists():
        problem = cell.note.read_text(encoding="utf-8", errors="replace").strip()
        raise DivergedError(problem, f"Give a smaller --lr; without {cell.note} it is tried again.")
    try:
        if not folder.manifest.exists():
            return run(cell.config, cell.settings, cell.folder, display)
        return resume(cell.folder, display, where={name: getattr(cell.config, name) for name in WHERE})
    except DivergedError as e:
        with suppress(OSError):  # without it, it is tried again
            write_text(cell.note, f"{e.problem}\n")
        raise


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
    there = {k: found.get(k, usual[k]) for k in sorted(wanted) if k not in ("data_folder", "checkpoint_every", *WHERE)}
    differs = [f"{k} {value} instead of {wanted[k]}" for k, value in there.items() if value != wanted[k]]
    if differs:
        problem = f"{cell.folder} holds a run with {', '.join(differs)}."
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

    One that breaks off keeps none of the others from being run: these come last, with what is wrong. What is finished is read
    here, for which no process has to start; what diverged before is not tried again.
    """
    for cell in cells:
        check_same(cell)
    results: dict[int, Result] = {}
    broken: dict[int, Exception] = {}
    alone = jobs <= 1 or len(cells) == 1
    for i, cell in enumerate(cells):
        if alone or Folder(cell.folder).summary.exists() or cell.note.exists():
            try:
                results[i] = blaming(cell, quiet or not alone)
            except Exception as e:
                broken[i] = e
    left = {i: cell for i, cell in enumerate(cells) if i not in results | broken}
    if not left:
        return _in_order(cells, results, broken)
    console, display = Console(stderr=True), display_for(quiet)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    bar = (TextColumn("[bold]runs"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    columns = (*bar, TextColumn("{task.fields[last]}"))
    with (
        Progress(*columns, console=console, disable=quiet or not console.is_terminal) as progress,
        ProcessPoolExecutor(jobs, context, begin_work, (stop,)) as pool,
    ):

        def tell(last: str) -> None:
            done = len(results | broken)
            progress.update(task, completed=done, last=last)
            if not console.is_terminal:
                display.say(f"runs {done}/{len(cells)}  {last}")

        task = progress.add_task("runs", total=len(cells), last="")
        try:
            tell(f"{min(jobs, len(left))} at a time")
            waiting = {pool.submit(work, cell): i for i, cell in left.items()}
            for future in as_completed(waiting):
                i = waiting[future]
                try:
                    results[i] = future.result()
                except BrokenProcessPool:
                    remedy = "If memory is short, give fewer --jobs; from a script, call it below `if __name__ == '__main__':`."
                    raise KithkinError("A process that did runs ended early; finished ones are kept.", remedy) from None
                except Exception as e:
                    broken[i] = e
                got = f"{results[i].summary['test_at_best_val']:.3f}" if i in results else "broke off"
                tell(f"{cells[i].folder.name}: {got}")
        except BaseException:
            stop.set()  # for the cells that run or wait in a process: a signal may have reached us alone
            pool.shutdown(cancel_futures=True)
            raise
    return _in_order(cells, results, broken)


def _in_order(cells: Sequence[Cell], results: dict[int, Result], broken: dict[int, Exception]) -> tuple[list[Result], Broken]:
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
                cells[folder] = Cell(replace(config, alpha=alpha, seed=seed).checked(), settings, folder)
    return list(cells.values())
