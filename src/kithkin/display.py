"""How a run shows itself: a live line on a terminal, plain lines elsewhere, nothing when quiet; and what it came to."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from kithkin.config import RunConfig
from kithkin.own import short
from kithkin.record.run import Display, Quiet

PATIENCE = 30  # seconds without a line, where there is no terminal
HANGING: dict[str, Any] = {"subsequent_indent": " " * 34, "break_long_words": False, "break_on_hyphens": False}
ROOMY = 100  # columns of a terminal: on a narrower one the figures and the time left come first
WARMING = "warming up: every client trains on its own labelled pictures"


def display_for(quiet: bool, title: str = "") -> Display:
    if quiet:
        return Quiet()
    console = Console(stderr=True)
    return Live(console, title) if console.is_terminal else Lines(title)


def describe(line: dict[str, Any], moved: int, last: dict[str, Any]) -> str:
    """The figures of a round; validation accuracy is that of the last evaluated one."""
    if line["val_mean"] is not None:
        last["val"] = line["val_mean"]
    parts = [f"val {last['val']:.3f}" if "val" in last else "val -"]
    if line["pseudo_error"] is not None:
        parts.append(f"label error {line['pseudo_error']:.3f}")
    parts.append(f"{moved / 1e6:,.1f} MB")
    return "  ".join(parts)


class Live:
    """A progress bar that stays on one line."""

    def __init__(self, console: Console, title: str) -> None:
        self.title = title
        self.last: dict[str, Any] = {}
        whole = Column(no_wrap=True, min_width=len("0:00:00"))
        self.counted = Column(no_wrap=True)
        columns = [
            TextColumn("[bold]{task.description}"),
            MofNCompleteColumn(table_column=self.counted),
            TextColumn("{task.fields[figures]}"),
            TextColumn("left"),
            TimeRemainingColumn(table_column=whole),
        ]
        if console.width >= ROOMY:
            columns.insert(1, BarColumn(bar_width=24))
            columns.insert(-2, TimeElapsedColumn(table_column=whole.copy()))
        self.progress = Progress(*columns, console=console)

    def start(self, config: RunConfig, already: int, machine: str) -> None:
        name = self.title or name_of(config)
        self.figures = WARMING if already < 0 else "starting"
        self.counted.min_width = len(f"{config.rounds}/{config.rounds}")  # on the narrowest terminal
        self.task = self.progress.add_task(escape(name), total=config.rounds, completed=max(0, already), figures=self.figures)
        self.progress.start()
        self.say(f"{name}  {machine}")

    def round(self, line: dict[str, Any], moved: int) -> None:
        self.figures = describe(line, moved, self.last)
        self.progress.update(self.task, completed=line["round"], figures=self.figures)

    def tick(self, done: int, jobs: int) -> None:
        self.progress.update(self.task, figures=f"{self.figures}  ({done}/{jobs})")

    def say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        self.progress.stop()


def name_of(config: RunConfig) -> str:
    """What a line has room for: of one's own data the last part of the path."""
    return f"{short(config.method)} on {Path(config.data).name or config.data}"


class Lines:
    """One line a round, with the time left."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.last: dict[str, Any] = {}

    def start(self, config: RunConfig, already: int, machine: str) -> None:
        self.title = self.title or name_of(config)
        self.rounds = config.rounds or 0
        self.already = max(0, already)
        self.began = time.monotonic()
        self.say(f"{self.title}  {machine}")
        if already < 0:
            self.say(f"{self.title}  {WARMING}")
        self.spoke = time.monotonic()

    def tick(self, done: int, jobs: int) -> None:
        """A word where nothing was said for long."""
        if time.monotonic() - self.spoke > PATIENCE and done < jobs:
            self.say(f"{self.title}  {done} of {jobs} jobs of this step done")
            self.spoke = time.monotonic()

    def round(self, line: dict[str, Any], moved: int) -> None:
        t = line["round"]
        left = (time.monotonic() - self.began) / (t - self.already) * (self.rounds - t)
        self.spoke = time.monotonic()
        self.say(f"{self.title}  round {t}/{self.rounds}  {describe(line, moved, self.last)}  {left:.0f} s left")

    def say(self, text: str) -> None:
        with suppress(OSError):  # whoever read this is gone, or its disk is full: no reason to end a run
            print(text, file=sys.stderr, flush=True)

    def stop(self) -> None: ...


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    moved = summary["down_bytes"] + summary["up_bytes"]
    causes = ", ".join(f"{cause} {size / 1e6:,.1f}" for cause, size in summary["bytes_by_cause"].items())
    host, gpu = (summary["memory"][place] / 1e9 for place in ("host_bytes", "gpu_bytes"))
    memory = f"{gpu:,.1f} GPU, {host:,.1f} host" if gpu else f"{host:,.1f}"
    rows = [
        (
            "test accuracy at best validation",
            f"{summary['test_at_best_val']:.4f} (round {summary['best_val_round']}"
            f"{', the last: nobody has validation pictures' if summary['best_val'] is None else ''})",
        ),
        ("test accuracy at the end", f"{summary['final_test_mean']:.4f}, variance {summary['final_test_var']:.4f}"),
        ("best test accuracy of any round", f"{summary['best_test']:.4f}"),
        ("MB moved", f"{moved / 1e6:,.1f} ({causes})" if causes else "0"),
        ("seconds", f"{summary['seconds']:,.1f}"),
        ("GB of memory at most", memory),
        ("folder", str(folder)),
    ]
    if summary["cost_formulas"]:
        lists = summary["cost_formulas"]["helper_lists_28"]
        greedy = summary["cost_formulas"]["greedy_27"]
        rows.insert(4, ("MB by the paper's formulas", f"{lists / 1e6:,.1f} helper lists (28), {greedy / 1e6:,.1f} greedy (27)"))
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000  # who reads lines elsewhere wants them whole
    for name, value in rows:
        print(textwrap.fill(f"{name:33} {value}", room, **HANGING))
