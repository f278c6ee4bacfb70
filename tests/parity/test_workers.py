"""Worker processes give the reference's run bit for bit, and neither depends on the number of threads."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import RUN, Heard, assert_same_run, break_off, start

from kithkin import dice
from kithkin.compute import Eager, Fit, Lesson, Predict, Recipe, Workers
from kithkin.compute.workers import start_method
from kithkin.nets import ResNet9, initial_vector
from kithkin.record import resume

pytestmark = pytest.mark.skipif(start_method() != "fork", reason="workers are not forked here")
RECIPES = {
    "alternate": Recipe("alternate", 2, 32, 0.01),
    "weighted": Recipe("weighted", 2, 32, 0.01),
    "fixmatch": Recipe("fixmatch", 2, 32, 0.01, threshold=0.1, flip=True),
    "proximal": Recipe("fixmatch", 1, 32, 0.01, prox=1.0, threshold=0.1),
    "moreau": Recipe("fixmatch", 1, 32, 0.01, prox=15.0, inner_steps=3, anchor_rate=0.1, momentum=0.0, threshold=0.1),
}
IMAGES = dice.bytes_(torch.arange(120), 3 * 8 * 8).view(120, 3, 8, 8)
ROWS = torch.arange(120)
TARGETS = torch.softmax(dice.uniform(ROWS, 10) * 5, 1)


def build() -> ResNet9:
    return ResNet9(3, 10, 4)


@pytest.fixture(scope="module")
def computes() -> Iterator[tuple[Eager, Workers]]:
    workers = Workers(build, 2)
    yield Eager(build, torch.device("cpu")), workers
    workers.close()


def lesson(k: int, labelled: int, unlabelled: int) -> Lesson:
    rows = ROWS.roll(k)
    return Lesson(IMAGES, rows[:labelled], rows[:labelled] % 10, rows[-unlabelled or 120 :], TARGETS[:unlabelled])


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
@pytest.mark.parametrize(("labelled", "unlabelled"), [(40, 35), (40, 0), (0, 35), (1, 3), (0, 0)])
def test_a_fit_is_the_same_whoever_does_it(computes: tuple[Any, Any], recipe: Recipe, labelled: int, unlabelled: int):
    eager, workers = computes
    jobs = [Fit(initial_vector(build, k), lesson(k, labelled, unlabelled), recipe, k) for k in range(3)]
    jobs.append(replace(jobs[0], lesson=replace(jobs[0].lesson, weights=TARGETS[:unlabelled, 0].clone())))
    for mine, theirs in zip(workers.work(jobs), eager.work(jobs), strict=True):
        assert all(torch.equal(getattr(mine, part), getattr(theirs, part)) for part in ("w", "anchor", "loss"))
        assert (mine.p_u is None) == (theirs.p_u is None) == (recipe.objective != "fixmatch" or not unlabelled)
        assert mine.p_u is None or torch.equal(mine.p_u, theirs.p_u)
        assert (mine.anchor is mine.w) == (theirs.anchor is theirs.w)
    for mine, theirs in zip(workers.work([*jobs[::-1]])[::-1], eager.work(jobs), strict=True):
        assert torch.equal(mine.w, theirs.w)


@pytest.mark.parametrize("passes", [0, 4])
@pytest.mark.parametrize("n", [0, 1, 70])
def test_a_prediction_is_the_same_whoever_makes_it(computes: tuple[Any, Any], passes: int, n: int):
    eager, workers = computes
    jobs = [Predict(initial_vector(build, k), IMAGES, ROWS[:n], passes, 2**63 - 1 - k) for k in range(3)]
    jobs.append(replace(jobs[0], shift=torch.linspace(-1, 1, 10)))
    for mine, theirs in zip(workers.work(jobs), eager.work(jobs), strict=True):
        assert mine.shape == (n, 10)
        assert torch.equal(mine, theirs)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine where torch takes two threads unless it is told otherwise."""
    monkeypatch.setattr(sys.modules["kithkin.compute.choose"], "cores", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2  # a run leaves it as it was
    torch.set_num_threads(before)


def machine(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())["machine"]


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("method", ["um", "local", "fixavg", "fixbn", "pfedme", "mix", "fixavg-ft"])
def test_a_run_of_workers_is_the_references_run(method: str, tmp_path: Path):
    heard = Heard()
    start(tmp_path / "workers", method, heard)  # auto
    assert heard.machine == "workers on cpu, processes: 2"
    start(tmp_path / "eager", method, compute="eager")
    assert machine(tmp_path / "workers") == {"device": "cpu", "compute": "workers", "processes": 2}
    assert machine(tmp_path / "eager") == {"device": "cpu", "compute": "eager", "processes": 1}
    assert_same_run(tmp_path / "workers", tmp_path / "eager")


@pytest.mark.usefixtures("two_cores")
def test_a_run_broken_off_with_workers_goes_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    break_off(tmp_path / "run", "um", 3)
    assert machine(tmp_path / "run")["compute"] == "workers"
    monkeypatch.setattr(sys.modules["kithkin.compute.choose"], "cores", lambda: 1)
    heard = Heard()
    resume(tmp_path / "run", heard)
    assert (heard.already, heard.machine) == (2, "eager on cpu, processes: 1")
    start(tmp_path / "whole", "um")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.usefixtures("two_cores")
def test_a_run_computes_with_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    threads: set[int] = set()
    play = RUN.play
    monkeypatch.setattr(RUN, "play", lambda *a: (threads.add(torch.get_num_threads()), play(*a))[1])
    start(tmp_path / "run", "fixbn", rounds=1)
    assert threads == {1}
