"""How jobs are dealt to lanes: each once, evenly, and predictions of one model on one lane."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from kithkin.compute.graphs import SIZES, deal, sizes
from kithkin.compute.jobs import Fit, Lesson, Predict, Recipe

NONE = torch.zeros(0, dtype=torch.int64)
MODELS = [torch.zeros(1) for _ in range(5)]


def fit(n: int) -> Fit:
    rows = torch.zeros(n, dtype=torch.int64)
    return Fit(MODELS[0], Lesson(rows, rows, rows, NONE), Recipe("alternate", 1, 32, 0.1), 0)


def predict(model: int, n: int = 10) -> Predict:
    return Predict(MODELS[model], NONE, torch.zeros(n, dtype=torch.int64))


@given(st.lists(st.one_of(st.integers(0, 4).map(predict), st.integers(0, 500).map(fit)), max_size=40), st.integers(1, 8))
def test_every_job_is_dealt_once(jobs: list, lanes: int):
    hands = deal(jobs, lanes)
    assert len(hands) == lanes
    assert sorted(i for hand in hands for piece in hand for i in piece) == list(range(len(jobs)))


def test_the_heaviest_fits_go_first_and_apart():
    assert deal([fit(100), fit(300), fit(200), fit(400)], 2) == [[[3], [0]], [[1], [2]]]


def test_predictions_of_one_model_stay_together():
    jobs = [predict(i % 4) for i in range(40)]
    for hand in deal(jobs, 4):
        assert all(len({id(jobs[i].w) for i in piece}) == 1 for piece in hand)
        assert any(len(piece) > 1 for piece in hand)


def test_other_pictures_are_another_piece_and_other_passes_the_end_of_it():
    other = replace(predict(0, 1), images=torch.zeros(1))
    mine = [replace(predict(0, 1), passes=3), other, *(predict(1, 99) for _ in range(9)), predict(0, 1)]
    pieces = [piece for hand in deal(mine, 1) for piece in hand]
    assert [piece for piece in sorted(pieces) if {0, 1} & {*piece}] == [[1], [11, 0]]


def test_one_model_asked_by_everybody_is_on_every_lane():
    hands = deal([predict(0, 128) for _ in range(40)], 4)
    assert all(8 <= sum(map(len, hand)) <= 12 for hand in hands)


@given(st.integers(0, 2000))
def test_passes_take_all_pictures_and_only_the_last_is_not_full(n: int):
    passes = sizes(n)
    assert sum(passes) >= n > sum(passes[:-1]) or n == 0 == len(passes)
    assert sum(passes) - n < SIZES[-1]
    assert {*passes} <= {*SIZES}
