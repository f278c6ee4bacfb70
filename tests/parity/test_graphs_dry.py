"""The graphs compute without a GPU: lanes, tapes, feeds and dealing give the reference's answers. Capturing is left out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kithkin import dice
from kithkin.compute import Eager, Fit, Graphs, Lesson, Predict, Recipe
from kithkin.compute import graphs as module
from kithkin.compute.graphs import Lane
from kithkin.nets import ResNet9, builder, initial_vector

EXAMPLES = Path(__file__).parents[2] / "examples"
CPU = torch.device("cpu")
ROWS = torch.arange(700)
IMAGES = dice.bytes_(ROWS, 8 * 8).view(700, 1, 8, 8)
TARGETS = torch.softmax(dice.uniform(ROWS, 10) * 5, 1)
RECIPES = {
    "alternate": Recipe("alternate", 2, 32, 0.01),
    "weighted": Recipe("weighted", 1, 32, 0.01, prox=0.5),
    "fixmatch": Recipe("fixmatch", 1, 32, 0.01, threshold=0.1),
    "moreau": Recipe("fixmatch", 1, 32, 0.01, prox=15.0, inner_steps=3, anchor_rate=0.1, momentum=0.0, threshold=0.1),
}


def build() -> ResNet9:
    return ResNet9(1, 10, 2)


class Rerun:
    """Stands for a captured graph: what was captured is done again."""

    def __init__(self, run: Callable[[], Tensor]) -> None:
        self.run = run
        self.graph = self
        self.answer: Any = None

    def replay(self) -> None:
        self.answer = self.run()


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(Lane, "_captured", lambda self, kind, run: self.graphs.setdefault(kind, Rerun(run)))
    return Graphs(build, CPU, 10, bf16=False, lanes=3)


def fits(recipe: Recipe, labelled: int, unlabelled: int) -> list[Fit]:
    w = initial_vector(build, 0)
    lessons = [
        Lesson(IMAGES, ROWS[k : k + labelled], ROWS[:labelled] % 10, ROWS[300 : 300 + unlabelled], TARGETS[:unlabelled])
        for k in range(4)
    ]
    return [Fit(w + k / 1000, lesson, recipe, k) for k, lesson in enumerate(lessons)]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
@pytest.mark.parametrize(("labelled", "unlabelled"), [(70, 40), (40, 0), (0, 33), (1, 3)])
def test_fits_are_the_references(compute: Graphs, recipe: Recipe, labelled: int, unlabelled: int):
    jobs = fits(recipe, labelled, unlabelled)
    for mine, theirs in zip(compute.work(jobs), Eager(build, CPU).work(jobs), strict=True):
        torch.testing.assert_close(mine.w, theirs.w, rtol=0, atol=1e-6)
        torch.testing.assert_close(mine.anchor, theirs.anchor, rtol=0, atol=1e-6)
        torch.testing.assert_close(mine.loss, theirs.loss, rtol=0, atol=1e-5)
        assert (mine.p_u is None) == (recipe.objective != "fixmatch" or not unlabelled)
        torch.testing.assert_close(mine.p_u, theirs.p_u, rtol=0, atol=1e-5)
        assert (mine.anchor is mine.w) == (theirs.anchor is theirs.w)


def test_weights_of_targets_arrive(compute: Graphs):
    (job, *_) = fits(RECIPES["alternate"], 40, 40)
    job = replace(job, lesson=replace(job.lesson, weights=torch.arange(40) % 3 / 2))
    torch.testing.assert_close(compute.work([job])[0].w, Eager(build, CPU).work([job])[0].w, rtol=0, atol=1e-6)


def test_a_longer_fit_after_a_short_one_gets_a_longer_tape(compute: Graphs):
    short, long = fits(RECIPES["alternate"], 3, 0)[0], fits(replace(RECIPES["alternate"], epochs=40), 70, 0)[0]
    for job in (short, long, short):
        torch.testing.assert_close(compute.work([job])[0].w, Eager(build, CPU).work([job])[0].w, rtol=0, atol=1e-5)


def test_predictions_of_all_kinds_at_once_are_the_references(compute: Graphs, monkeypatch: pytest.MonkeyPatch):
    """Two models, asked by several with other rows, keys, passes and shifts; packed into passes of 64 and 16."""
    monkeypatch.setattr(module, "SIZES", (64, 16))
    models = [initial_vector(build, k) for k in range(2)]
    plain = [Predict(w, IMAGES, ROWS[k : k + n], key=9 * k) for k, n in enumerate((70, 0, 1, 33)) for w in models]
    mc = [replace(job, passes=3, key=job.key + 2**62) for job in plain]
    shifted = [replace(job, shift=torch.linspace(-1, i / 9, 10)) for i, job in enumerate([*plain, *mc])]
    jobs = [*plain, *mc, *shifted]
    for mine, theirs in zip(compute.work(jobs), Eager(build, CPU).work(jobs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def test_a_prediction_after_a_fit_is_of_the_model_that_was_asked(compute: Graphs):
    fit = fits(RECIPES["alternate"], 40, 0)[0]
    ask = Predict(fit.w, IMAGES, ROWS[:50])
    before = compute.work([ask])[0].clone()
    compute.work([fit] * 3)
    assert torch.equal(compute.work([ask])[0], before)


def test_a_network_of_ones_own_gives_the_references_answers(compute: Graphs):
    vit = builder(f"{EXAMPLES / 'small_vit.py'}:build", (1, 8, 8), 10, 0)
    own = Graphs(vit, CPU, 10, bf16=False, lanes=2)
    w = initial_vector(vit, 0)
    lesson = Lesson(IMAGES, ROWS[:40], ROWS[:40] % 10, ROWS[300:333], TARGETS[:33])
    jobs = [
        Fit(w, lesson, RECIPES["alternate"], 0),
        Fit(w, lesson, RECIPES["fixmatch"], 1),
        Predict(w, IMAGES, ROWS[:70], 3, 5),
    ]
    mine, theirs = own.work(jobs), Eager(vit, CPU).work(jobs)
    for k in (0, 1):
        torch.testing.assert_close(mine[k].w, theirs[k].w, rtol=0, atol=1e-5)
    torch.testing.assert_close(mine[2], theirs[2], rtol=0, atol=1e-5)


class Still(torch.nn.Module):
    """With a layer that is held still, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Linear(64, 16).requires_grad_(False)
        self.unused = torch.nn.Linear(3, 3)
        self.head = torch.nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.frozen(x.flatten(1)).relu())


def test_what_a_network_holds_still_or_leaves_unused_stays_as_it_is(compute: Graphs):
    w = initial_vector(Still, 0)
    job = Fit(w, Lesson(IMAGES, ROWS[:40], ROWS[:40] % 10, ROWS[:0]), RECIPES["weighted"], 0)
    mine, theirs = Graphs(Still, CPU, 10, bf16=False).work([job])[0].w, Eager(Still, CPU).work([job])[0].w
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
    moved = int((mine != w).sum())
    assert 0 < moved <= 16 * 10 + 10


def test_a_new_kind_of_step_is_rehearsed_from_the_head_of_the_tape(compute: Graphs, monkeypatch: pytest.MonkeyPatch):
    """Wherever the last fit left the counter: the tape may end there."""
    found: list[int] = []

    def captured(self: Lane, kind: Any, run: Callable[[], Tensor]) -> Any:
        if kind not in self.graphs:
            found.append(int(self.step))
        return self.graphs.setdefault(kind, Rerun(run))

    monkeypatch.setattr(Lane, "_captured", captured)
    for recipe in RECIPES.values():
        compute.work(fits(recipe, 70, 40))
    assert len(found) >= 2 * len(RECIPES)
    assert set(found) == {0}
