"""Exams: accuracies by hand, of the models that `personal` gives, after aggregation."""

from __future__ import annotations

import pytest
import torch
from real import clients_of, courier_of, exams_of, method_of, normed, simulate
from scripted import W0, Scripted, adding, asker, client, make

from kithkin.federation import Exam, LocalCourier, Marks, open_world, play
from kithkin.methods import METHODS

CLIENTS = [client(0, 1, 1), client(1, 1, 1)]


def exam(classes: list[int], val: int) -> Exam:
    return Exam(torch.zeros(len(classes), dtype=torch.int64), torch.tensor(classes, dtype=torch.int64), val)


def saying(answers: dict[int, list[list[float]]]):
    """Client k is answered `answers[k]`, whatever the model."""
    return Scripted(adding, lambda job: torch.tensor(answers[asker(job)]).reshape(-1, 2)[: len(job.rows)])


def test_marks_by_hand():
    """Client 0: right on 1 of 2 validation and 2 of 3 test pictures; client 1: on 1 of 1 and 0 of 2."""
    sure = [[1.0, 0.0], [0.0, 1.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]
    fake = saying({0: sure, 1: sure})
    courier = LocalCourier(CLIENTS, [exam([0, 0, 0, 1, 0], 2), exam([0, 0, 1], 1)], fake)
    method = make("fixavg")
    world = open_world(method, CLIENTS, W0)
    marks = courier.examine(method, world.server, world.states, 0)
    assert marks.val == [0.5, 1.0]
    assert marks.test == [pytest.approx(2 / 3), 0.0]
    assert [(asker(job), job.passes, len(job.rows)) for job in fake.predicts] == [(0, 0, 5), (1, 0, 3)], "no dropout in an exam"


def test_no_validation_or_no_test_pictures_is_no_mark():
    fake = saying({0: [[1.0, 0.0]] * 2, 1: [[1.0, 0.0]] * 2})
    courier = LocalCourier(CLIENTS, [exam([0, 1], 0), exam([0, 1], 2)], fake)
    method = make("fixavg")
    world = open_world(method, CLIENTS, W0)
    marks = courier.examine(method, world.server, world.states, 0)
    assert marks == Marks([None, 0.5], [0.5, None])


def test_the_exam_asks_the_personal_model_after_aggregation():
    method, fake = make("fixbn"), Scripted()
    courier = LocalCourier(CLIENTS, [exam([0], 0), exam([0], 0)], fake)
    world, _ = play(method, courier, open_world(method, CLIENTS, W0), {0, 1})
    fake.predicts.clear()
    courier.examine(method, world.server, world.states, world.round)
    assert [(job.w - W0).tolist() for job in fake.predicts] == [[6, 4, 4, 6, 6, 4, 4], [6, 8, 8, 6, 6, 8, 8]]


def test_mix_answers_with_the_mean_of_three_outputs():
    """First picture: two models lean to class 0, the third is sure of class 1; a vote would say 0, the mean says 1.

    Second: the surest answer is 0, the mean says 1.
    """
    answers = [[[0.6, 0.4], [0.4, 0.6]], [[0.6, 0.4], [0.4, 0.6]], [[0.0, 1.0], [0.65, 0.35]]]
    fake = Scripted(adding, lambda job: torch.tensor(answers[len(fake.predicts) - 1]))
    courier = LocalCourier(CLIENTS[:1], [exam([1, 1], 1)], fake)
    method = make("mix")
    world = open_world(method, CLIENTS[:1], W0)
    marks = courier.examine(method, world.server, world.states, 0)
    assert (marks.val, marks.test) == ([1.0], [1.0])
    assert len(fake.predicts) == 3


def test_fine_tuning_comes_before_the_exam_and_differs_from_round_to_round():
    method, fake = make("fixavg-ft"), Scripted()
    courier = LocalCourier(CLIENTS, [exam([0], 0), exam([0], 0)], fake)
    world = open_world(method, CLIENTS, W0)
    for t in (0, 1):
        courier.examine(method, world.server, world.states, t)
    assert [(job.w - W0).tolist() for job in fake.predicts] == [[4] * 7, [8] * 7] * 2
    assert len({fit.key for fit in fake.fits}) == 4


@pytest.mark.parametrize("name", sorted(METHODS))
def test_an_exam_gives_the_same_marks_each_time_and_changes_nothing(name):
    clients = clients_of((6, 3), (3, 6))
    method = method_of(name, normed, **({"helpers": 2, "candidates": 0} if name in ("um", "um-plus") else {}))
    world = simulate(method, clients, normed, [{0, 1}])
    courier = courier_of(clients, normed)
    first = courier.examine(method, world.server, world.states, world.round)
    assert isinstance(first, Marks)
    assert first == courier.examine(method, world.server, world.states, world.round)
    swapped = LocalCourier(clients[::-1], exams_of(clients)[::-1], courier.compute)
    other = swapped.examine(method, world.server, world.states[::-1], world.round)
    assert (first.val, first.test) == (other.val[::-1], other.test[::-1])
    assert all(0 <= v <= 1 for v in first.val + first.test)


def test_replies_belong_to_the_clients_that_were_briefed():
    method = make("fixavg")
    world = open_world(method, CLIENTS, W0)
    courier = LocalCourier(CLIENTS, [], Scripted())
    replies = courier.visit(method, world.states, {1: method.brief(world.server, 1, 1, True)})
    assert list(replies) == [1]
    assert replies[1].parcels[0].client == 1
    assert courier.visit(method, world.states, {}) == {}
