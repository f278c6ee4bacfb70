"""Runs that take a second, ways to break them off, and what of them must be equal afterwards."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import kithkin
from kithkin.federation import World
from kithkin.flags import settle
from kithkin.record import Result, resume, run

RUN: Any = importlib.import_module("kithkin.record.run")  # the module: the package's attribute `run` is its function

COMMON: dict[str, Any] = {
    "clients": 6, "width": 2, "rounds": 4, "epochs": 1, "batch_size": 64, "sample_rate": 0.34, "checkpoint_every": 2,
    "device": "cpu",
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "um": {"warmup_epochs": 1, "mc_samples": 2, "helpers": 3, "candidates": 2, "search_rounds": 3, "refresh_every": 2},
    "local": {"warmup_epochs": 1, "mc_samples": 2, "objective": "own-labels"},
    "fixavg": {"threshold": 0.1},
    "fixbn": {"threshold": 0.1},
    "pfedme": {"threshold": 0.1, "inner_steps": 2},
    "mix": {"threshold": 0.1},
    "fixavg-ft": {"finetune_epochs": 1},
}


class Heard:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.already: int | None = None
        self.rounds: list[int] = []
        self.stopped = False

    def start(self, config: Any, already: int, machine: str) -> None:
        self.already, self.machine = already, machine

    def tick(self, done: int, jobs: int) -> None:
        assert 0 < done <= jobs

    def round(self, line: dict[str, Any], moved: int) -> None:
        self.rounds.append(line["round"])

    def say(self, text: str) -> None:
        self.said.append(text)

    def stop(self) -> None:
        self.stopped = True


def flags(method: str, **more: Any) -> dict[str, Any]:
    needless = {"width": "model" in more, "threshold": more.get("objective") == "labelled-only"}
    tiny = {name: value for name, value in (COMMON | OWN.get(method, {})).items() if not needless.get(name)}
    return {"method": method, **tiny, **more}


def start(out: Path, method: str, display: Any = None, **more: Any) -> Result:
    """A tiny run in `out`."""
    return run(*settle(flags(method, **more)), out, display)


def argv(method: str, out: Path, **more: Any) -> list[str]:
    """The same run for the command line."""
    words = ["run", "--out", str(out)]
    for name, value in flags(method, **more).items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def stop_in_round(patch: pytest.MonkeyPatch, number: int, error: type[BaseException] = KeyboardInterrupt) -> None:
    """Have this round (0: the warm-up) broken off before it ends."""
    play: Callable[..., Any] = RUN.play

    def broken(method: Any, courier: Any, world: World, trained: set[int]) -> Any:
        if world.round + 1 == number:
            raise error
        return play(method, courier, world, trained)

    patch.setattr(RUN, "play", broken)


def break_off(out: Path, method: str, number: int, display: Any = None, **more: Any) -> Path:
    """A tiny run that Ctrl-C stops in a round; its checkpoint is that of the round before."""
    with pytest.MonkeyPatch.context() as patch:
        stop_in_round(patch, number)
        with pytest.raises(KeyboardInterrupt):
            start(out, method, display, **more)
    return out


def die_in_round(out: Path, method: str, number: int, **more: Any) -> Path:
    """A tiny run that dies without a word in a round: only the checkpoints that were due are there."""

    class Death(BaseException):
        pass

    with pytest.MonkeyPatch.context() as patch:
        stop_in_round(patch, number, Death)
        with pytest.raises(Death):
            start(out, method, None, **more)
    return out


def listen(out: Path) -> Heard:
    """Resume, and give what it said."""
    heard = Heard()
    resume(out, heard)
    return heard


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def checkpoints(folder: Path) -> list[str]:
    return sorted(p.stem for p in (folder / "checkpoints").glob("*.safetensors"))


def drafts(folder: Path) -> list[Path]:
    known = {"manifest.json", "summary.json", "models.safetensors"}
    known |= {f"{name}.jsonl" for name in ("metrics", "marks", "clients", "audit", "lists")}
    files = [p for p in folder.rglob("*") if p.is_file()]
    return [p for p in files if p.name not in known and not (p.parent.name == "checkpoints" and p.name.startswith("round-"))]


def record(folder: Path) -> dict[str, Any]:
    """All of a finished run that must not depend on how often it was broken off: everything but seconds and memory."""
    metrics = [{k: v for k, v in line.items() if k != "seconds"} for line in lines(folder / "metrics.jsonl")]
    summary = json.loads((folder / "summary.json").read_text())
    del summary["seconds"], summary["memory"]
    others = {name: (folder / f"{name}.jsonl").read_text() for name in ("marks", "clients", "audit", "lists")}
    return {"metrics": metrics, "summary": summary, **others}


def weights(folder: Path) -> dict[str, bytes]:
    return {name: w.numpy().tobytes() for name, w in load_file(folder / "models.safetensors").items()}


def assert_same_run(folder: Path, other: Path) -> None:
    assert record(folder) == record(other)
    assert weights(folder) == weights(other)
    for name in {*checkpoints(folder)} & {*checkpoints(other)}:  # the whole world, helper lists and scores included
        mine, theirs = (load_file(f / "checkpoints" / f"{name}.safetensors") for f in (folder, other))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[k].view(torch.uint8), theirs[k].view(torch.uint8)) for k in mine)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of the uninterrupted run of a method, done once."""
    done: dict[str, Path] = {}

    def folder(method: str, **more: Any) -> Path:
        name = "-".join([method, *(f"{k}{v}" for k, v in more.items())])
        if name not in done:
            done[name] = tmp_path_factory.mktemp("whole") / name
            start(done[name], method, **more)
        return done[name]

    return folder


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """This process and its children compute with one thread each, so that they round alike."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def spawn(words: list[str], before: str = "") -> subprocess.Popen[str]:
    """The command line in a process of its own; `before` is Python that it does first."""
    source = str(Path(kithkin.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    code = f"{before}\nimport sys\nsys.argv[0] = 'kithkin'\nfrom kithkin.cli import main\nmain()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=900)
    finally:
        process.kill()  # or it would be a later test's fault
    return process.returncode, out, err


def waits_in_round(number: int, go: Path) -> str:
    """For `spawn`: that run does not begin this round before there is a file `go`. However slow a test is, it is in time."""
    return f"""
import importlib, pathlib, time
run = importlib.import_module("kithkin.record.run")
play = run.play
def waiting(method, courier, world, trained):
    while world.round + 1 == {number} and not pathlib.Path({str(go)!r}).exists():
        time.sleep(0.01)
    return play(method, courier, world, trained)
run.play = waiting
"""


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Until a file has so many lines; fails where the process ends before."""
    while not (path.exists() and path.read_text().count("\n") >= count):
        assert process.poll() is None, finished(process)
        time.sleep(0.01)
