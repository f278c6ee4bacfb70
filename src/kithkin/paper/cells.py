"""Cells: a finished run as one small JSON file, found again by what was run. Several processes may fill one folder at once."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import kithkin
from kithkin.config import WHERE, RunConfig, as_json
from kithkin.data.official import DIGITS, source_of
from kithkin.disk import disk_errors, write_text
from kithkin.display import display_for
from kithkin.errors import KithkinError
from kithkin.federation import DivergedError
from kithkin.methods import entry_of
from kithkin.paper.looks import look_at
from kithkin.processes import is_alive, this_process
from kithkin.record import Display, Folder, Result, StopRunError, resume, run

FORMAT = 1
HEAD = {"format", "kithkin", "config", "settings"}
PARTS = HEAD | {"machine", "seconds", "summary", "curves", "label_error", "clients", "confusion"}
DIVERGED = "diverged"  # where a record has this, it has its head and what happened, and nothing else
NAMED = ("method", "data", "clients", "alpha", "label_ratio", "rounds", "sample_rate", "epochs", "batch_size", "lr", "momentum")
NAMED += ("width", "seed", "eval_every", "precision")  # with those above: what of a config changes a run's numbers
ELSEWHERE = (*WHERE, "preset", "data_folder", "save_models", "checkpoint_every")  # and what does not
RENEWAL = 60  # seconds between two signs of life of a claim
SILENCE = 1800  # seconds after which a claim made on another machine or in another container, and not renewed, is void

Record = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A run that a table or figure needs, and its place there."""

    config: RunConfig  # resolved
    settings: Any
    row: Hashable
    column: Hashable
    looks: frozenset[str] = frozenset()  # what must be seen of the trained models, beyond the confusion matrix

    @cached_property
    def key(self) -> str:
        """A hash of what was run on which data. What is new in a config or its settings counts only where it is used."""
        config, entry = self.config, entry_of(self.config.method)
        new = [f.name for f in fields(config) if f.name not in NAMED + ELSEWHERE and getattr(config, f.name) != f.default]
        usual, files = asdict(entry.settings), () if config.data == DIGITS else source_of(config.data).files
        named = {
            "data": [file.sha256 for file in files],
            "config": {name: getattr(config, name) for name in (*NAMED, *new)},
            "settings": {name: value for name, value in asdict(self.settings).items() if usual.get(name) != value},
            "revision": entry.revision,
        }
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def file(self) -> str:
        c = self.config
        return f"{c.data}/{c.method}-a{c.alpha:g}-s{c.seed}-{self.key}.json"

    def __str__(self) -> str:
        c = self.config
        usual = asdict(entry_of(c.method).settings)
        own = in_words({name: v for name, v in asdict(self.settings).items() if usual.get(name) != v})
        return ", ".join([f"{c.method} on {c.data}", f"alpha {c.alpha:g}", *own, f"seed {c.seed}"])


def in_words(settings: Mapping[str, Any]) -> list[str]:
    """As a reader is told of them."""
    return [f"{name.replace('_', ' ')} {value}" for name, value in settings.items()]


@dataclass(frozen=True)
class Grid:
    """What there is of a recipe's cells: every place with the records of its seeds."""

    wanted: dict[tuple[Hashable, Hashable], list[Cell]]
    found: dict[tuple[Hashable, Hashable], list[Record]]
    files: frozenset[str] = frozenset()  # where the records were
    diverged: dict[tuple[Hashable, Hashable], list[Record]] = field(default_factory=dict[Any, list[Record]])

    @property
    def rows(self) -> list[Any]:
        return list(dict.fromkeys(row for row, _ in self.wanted))

    @property
    def columns(self) -> list[Any]:
        return list(dict.fromkeys(column for _, column in self.wanted))

    @property
    def cells(self) -> list[Cell]:
        return [cell for cells in self.wanted.values() for cell in cells]

    def at(self, row: Hashable, column: Hashable) -> list[Record]:
        return self.found.get((row, column), [])

    @property
    def records(self) -> list[Record]:
        return [record for records in self.found.values() for record in records]

    @property
    def filled(self) -> int:
        """Of how many places it is known what came of them."""
        return len(self.wanted) - len(self.lacking)

    @property
    def lacking(self) -> list[tuple[Hashable, Hashable]]:
        """Places of which nothing was run."""
        return [place for place in self.wanted if place not in self.found and place not in self.diverged]


@dataclass
class Filled:
    """What came of filling."""

    done: int = 0
    out_of_time: int = 0
    elsewhere: int = 0  # another process is at it
    broken: list[str] = field(default_factory=list[str])


class OutOfTimeError(StopRunError):
    """The budget is spent."""


def read(path: Path, cell: Cell | None = None) -> Record | None:
    """A finished cell; None where there is no file. What is none, or of another run, is told."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as e:
        raise _bad(path, str(e)) from None
    parts = HEAD if isinstance(record, dict) and DIVERGED in record else PARTS
    if not isinstance(record, dict) or record.get("format") != FORMAT or not record.keys() >= parts:
        raise _bad(path, "not written by `kithkin paper`, or by another version of it")
    if cell:
        wanted = {**as_json(cell.config), **asdict(cell.settings)}
        known = {**record["config"], **record["settings"]}
        differs = [k for k, v in wanted.items() if k not in ELSEWHERE and k in known and known[k] != v]
        if differs:
            raise _bad(path, f"it was run with another {', '.join(differs)}")
    return record


def is_whole(record: Record, cell: Cell) -> bool:
    """Whether it tells all that is asked of the cell: of a run that diverged there is no more to tell."""
    return DIVERGED in record or record.keys() >= cell.looks


def _bad(path: Path, why: str) -> KithkinError:
    return KithkinError(f"{path} is no finished cell ({why}).", "Move it away or delete it.")


def gather(cells: Iterable[Cell], results: Path) -> Grid:
    """Read what there is."""
    files: set[str] = set()
    wanted: dict[tuple[Hashable, Hashable], list[Cell]] = {}
    found: dict[tuple[Hashable, Hashable], list[Record]] = {}
    diverged: dict[tuple[Hashable, Hashable], list[Record]] = {}
    for cell in cells:
        place = cell.row, cell.column
        wanted.setdefault(place, []).append(cell)
        try:
            record = read(results / cell.file, cell)
        except KithkinError:
            continue  # `strangers` names it
        if record and is_whole(record, cell):
            (diverged if DIVERGED in record else found).setdefault(place, []).append(record)
            files.add(cell.file)
    return Grid(wanted, found, frozenset(files), diverged)


def strangers(results: Path) -> list[str]:
    """What lies among the results and is none, each with the reason."""
    told: list[str] = []
    for path in sorted(results.glob("*/*.json")):
        try:
            read(path)
        except KithkinError as e:
            told.append(e.problem)
    return told


def fill(
    cells: Sequence[Cell],
    results: Path,
    minutes: float | None,
    quiet: bool,
    needless: Callable[[Cell], bool] = lambda cell: False,
) -> Filled:
    """Run what is missing, in the given order, until the time is up; `needless` is asked when a cell's turn comes."""
    until = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    missing: dict[Path, Cell] = {}
    took: dict[tuple[Any, ...], float] = {}  # seconds of the like
    for cell in cells:
        record = read(results / cell.file, cell)
        if record and DIVERGED not in record:
            took[_like(cell)] = record["seconds"]
        if not (record and is_whole(record, cell)):
            path = results / cell.file
            looks = missing[path].looks if path in missing else frozenset()
            missing[path] = replace(cell, looks=cell.looks | looks)
    filled = Filled()
    if not missing:
        return filled
    running = results / ".running"
    with disk_errors(results, "Give another --results."):
        running.mkdir(parents=True, exist_ok=True)
    for number, (path, cell) in enumerate(missing.items(), 1):
        if needless(cell):
            continue
        begun = (running / cell.key / "manifest.json").exists()  # then it takes less
        if time.monotonic() + (0 if begun else took.get(_like(cell), 0)) >= until:
            filled.out_of_time += 1
            continue
        with claimed(running / f"{cell.key}.lock") as mine:
            record = read(path, cell)
            if not mine or (record and is_whole(record, cell)):
                filled.elsewhere += 1
                continue
            display = Timed(display_for(quiet, f"[{number}/{len(missing)}] {cell}"), until, running / f"{cell.key}.lock")
            began = time.monotonic()
            try:
                done = do(cell, running / cell.key, display, record)
            except OutOfTimeError:
                filled.out_of_time += 1
                continue
            except KeyboardInterrupt:
                display.say("What was done is kept: the same `kithkin paper` command goes on with it.")
                raise
            except KithkinError as e:
                if not display.started:
                    raise  # the others would fare alike
                filled.broken.append(f"{cell}: {e.problem}")
                if not isinstance(e, DivergedError) or record:
                    continue
                done = head_of(cell) | {DIVERGED: e.problem}  # as it would again
            else:
                in_all = max(time.monotonic() - began, done["summary"]["seconds"])  # it may have been begun before
                done["seconds"] = took[_like(cell)] = round(in_all, 1)
                filled.done += 1
            with disk_errors(path, "Free some room, or give another --results."):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, as_text(done))
            shutil.rmtree(running / cell.key, ignore_errors=True)
            gc.collect()  # the next federation needs this one's memory
    return filled


def _like(cell: Cell) -> tuple[Any, ...]:
    c = cell.config
    return c.method, c.data, c.rounds, c.sample_rate, c.clients, cell.looks


def do(cell: Cell, where: Path, display: Display, before: Record | None = None) -> Record:
    """Run a cell, or go on with it, and tell what its tables and figures need."""
    seen: Record = {}
    folder = Folder(where)
    if where.exists() and (folder.summary.exists() or not folder.manifest.exists()):
        shutil.rmtree(where)  # broken off before it began, or after its models were gone

    def look(federation: Any, world: Any) -> None:
        seen.update(look_at(federation, world, cell.looks), machine=federation.machine())

    if folder.manifest.exists():
        result = resume(where, display, look, {name: getattr(cell.config, name) for name in WHERE})
    else:
        result = run(cell.config, cell.settings, where, display, look)
    return {**{k: v for k, v in (before or {}).items() if k not in PARTS}, **told(cell, result), **seen}


def head_of(cell: Cell) -> Record:
    """What was run."""
    return {
        "format": FORMAT,
        "kithkin": kithkin.__version__,
        "revision": entry_of(cell.config.method).revision,
        "config": {k: v for k, v in as_json(cell.config).items() if k not in ELSEWHERE},
        "settings": asdict(cell.settings),
    }


def told(cell: Cell, result: Result) -> Record:
    """What a run's files say, cut down to what tables and figures are drawn from."""
    evaluated = [m for m in result.metrics if m["test_mean"] is not None]
    columns = {"round": "round", "val": "val_mean", "test": "test_mean", "variance": "test_var"}
    return head_of(cell) | {
        "summary": {k: v for k, v in result.summary.items() if k != "memory"},  # which is that of all cells before, too
        "curves": {name: [rounded(m[column]) for m in evaluated] for name, column in columns.items()},
        "label_error": [rounded(m["pseudo_error"]) for m in result.metrics],
        "clients": {
            "label_ratio": [rounded(c["label_ratio"]) for c in result.clients],
            "test": [rounded(c["test_at_best_val"]) for c in result.clients],
            "final": [rounded(c["test_accuracy"]) for c in result.clients],
        },
    }


def rounded(value: float | None) -> float | None:
    return value if value is None else round(value, 4)


def as_text(record: Record) -> str:
    """JSON with a line for each part, so that a change is seen where it is."""
    return "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in record.items()) + "\n}\n"


@contextmanager
def claimed(lock: Path) -> Generator[bool, None, None]:
    """Whether the cell is ours to run. A claim names its process; that of a dead one is taken over.

    Of one elsewhere, be it in another container, that cannot be asked: its claim stands for as long as it is renewed.
    """
    owner = {"host": socket.gethostname(), **this_process()}
    with disk_errors(lock, "Give another --results."), (lock.parent / "guard").open("a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # the system lets go of it if we die
        mine = not _held(lock, owner)
        if mine:
            lock.unlink(missing_ok=True)
            with lock.open("x", encoding="utf-8") as f:
                f.write(json.dumps(owner))
    try:
        yield mine
    finally:
        if mine:
            lock.unlink(missing_ok=True)


def _held(lock: Path, asking: dict[str, Any]) -> bool:
    try:
        text, renewed = lock.read_text(encoding="utf-8"), lock.stat().st_mtime
    except FileNotFoundError:
        return False
    try:
        owner = json.loads(text)
        if owner["host"] == asking["host"] and owner.get("within", asking["within"]) == asking["within"]:
            return owner != asking and is_alive(owner)
    except (ValueError, KeyError, TypeError):
        pass
    return time.time() - renewed < SILENCE


class Timed:
    """A display that ends the run when the time is up, and renews its claim."""

    def __init__(self, display: Display, until: float, lock: Path) -> None:
        self.display, self.until, self.lock = display, until, lock
        self.started, self.renewed = False, time.monotonic()

    def start(self, config: RunConfig, already: int, machine: str) -> None:
        self.started = True
        self.display.start(config, already, machine)

    def tick(self, done: int, jobs: int) -> None:
        self.display.tick(done, jobs)
        self.mind_the_time()  # a warm-up, or a round on a CPU, may be long

    def round(self, line: dict[str, Any], moved: int) -> None:
        self.display.round(line, moved)
        self.mind_the_time()

    def mind_the_time(self) -> None:
        if time.monotonic() >= self.until:
            raise OutOfTimeError
        if time.monotonic() >= self.renewed + RENEWAL:
            with suppress(FileNotFoundError):  # taken over while this machine slept, and done with
                os.utime(self.lock)
            self.renewed = time.monotonic()

    def say(self, text: str) -> None:
        self.display.say(text)

    def stop(self) -> None:
        self.display.stop()
