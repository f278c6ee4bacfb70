"""Whose word weighs how much in an average, and clients without labels or without anything else."""

from __future__ import annotations

import math

import pytest
import torch
from real import CLASSES, clients_of, courier_of, method_of, normed, simulate
from scripted import W0, Scripted, adding, client, make

from kithkin.compute import together
from kithkin.federation import LocalCourier, open_world, play
from kithkin.methods import METHODS
from kithkin.nets import initial_vector

AVERAGING = sorted(set(METHODS) - {"um", "um-plus", "local", "mix"})


def one_round(method, *clients):
    world = open_world(method, clients, W0)
    return play(method, LocalCourier(clients, [], Scripted()), world, set(range(len(clients))))[0]


def test_the_average_counts_pictures_not_batches():
    """In batches of 4, five pictures make two batches and three one; 2 : 1 would add 16/3, 1 : 1 would add 6."""
    world = one_round(make("fixavg"), client(0, 5, 0), client(1, 3, 0))
    assert (world.server.w - W0).tolist() == [5.5] * 7  # (5 * 4 + 3 * 8) / 8


def test_fixmatch_counts_labelled_and_unlabelled_pictures():
    world = one_round(make("fixavg"), client(0, 0, 1), client(1, 2, 1))
    assert (world.server.w - W0).tolist() == [7] * 7


@pytest.mark.parametrize("objective", ["labelled-only", "supervised"])
def test_labelled_training_counts_labelled_pictures_only(objective):
    world = one_round(make("fixavg", objective=objective), client(0, 3, 90), client(1, 1, 0))
    assert (world.server.w - W0).tolist() == [5] * 7


@pytest.mark.parametrize("name", AVERAGING)
def test_a_cohort_without_examples_leaves_the_global_model_untouched(name):
    method = make(name, objective="labelled-only")
    world = open_world(method, [client(0, 0, 3), client(1, 0, 4)], W0)
    after = one_round(method, client(0, 0, 3), client(1, 0, 4))
    assert after.server.w.tolist() == world.server.w.tolist() == W0.tolist()


def test_mix_leaves_all_three_models_untouched_by_a_cohort_without_examples():
    after = one_round(make("mix", objective="labelled-only"), client(0, 0, 3), client(1, 0, 4))
    assert [part.w.tolist() for part in after.server.parts] == [W0.tolist()] * 3


def test_a_client_without_examples_weighs_nothing_beside_one_with_some():
    world = one_round(make("fedavg-sl"), client(0, 0, 5), client(1, 2, 5))
    assert (world.server.w - W0).tolist() == [8] * 7


def test_a_fully_unlabelled_client_weighs_by_its_unlabelled_pictures_in_fixmatch():
    world = one_round(make("fixavg"), client(0, 0, 3), client(1, 1, 0))
    assert (world.server.w - W0).tolist() == [5] * 7


def test_um_averages_by_relation_and_not_by_pictures():
    """All relations are 1/2 though client 1 has ten times the pictures: the mean of 4 and 8 is 6, plus 4."""
    clients = (client(0, 1, 1), client(1, 10, 10))
    method, fake = make("um", helpers=2, candidates=0, search_rounds=0), Scripted()
    courier = LocalCourier(clients, [], fake)
    world, _ = play(method, courier, open_world(method, clients, W0), set())
    play(method, courier, world, {0})
    assert (fake.fits[-1].w - W0).tolist() == pytest.approx([6] * 7)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_clients_without_labelled_or_without_unlabelled_pictures_take_part(name):
    """Client 0 has no labels, 1 all, 2 some, 3 a single labelled picture, 4 a single unlabelled one."""
    clients = clients_of((0, 6), (6, 0), (3, 4), (1, 0), (0, 1))
    changes = {"helpers": 3, "candidates": 1} if name in ("um", "um-plus") else {}
    method = method_of(name, normed, **changes)
    everyone = set(range(5))
    courier = courier_of(clients, normed)
    world = simulate(method, clients, normed, [everyone])
    briefs = {k: method.brief(world.server, k, 2, True) for k in everyone}
    replies = courier.visit(method, world.states, briefs)
    for reply in replies.values():
        assert reply.loss.isfinite()
        assert all(parcel.w.isfinite().all() for parcel in reply.parcels)
        assert all(math.isfinite(h.relation) and 0 <= h.relation <= 1 for h in reply.holds)
    if name not in ("um", "um-plus", "local"):
        own = [len(c.labelled) if name.endswith("-sl") else len(c.labelled) + len(c.unlabelled) for c in clients]
        assert [reply.examples for reply in replies.values()] == own
    world, _ = play(method, courier, world, everyone)
    w0 = initial_vector(normed, 0)
    for c, state in zip(clients, world.states, strict=True):
        (models,) = together([method.personal(world.server, c, state, world.round)], courier.compute.work)
        for w in models:
            assert w.isfinite().all()
            assert torch.equal(w, w0) == (name == "local" and not len(c.labelled)), "alone and without labels nothing is learnt"
    marks = courier.examine(method, world.server, world.states, world.round)
    assert [v is None for v in marks.val] == [True, False, False, False, True], "no labelled picture to be asked for"
    assert None not in marks.test


def test_the_lesson_a_client_trains_on_never_holds_another_clients_pictures():
    clients = clients_of((3, 4), (2, 5))
    fake = Scripted(adding, lambda job: torch.full((len(job.rows), CLASSES), 1 / CLASSES))
    for name in sorted(METHODS):
        method = method_of(name, normed, **({"helpers": 2, "candidates": 0} if name in ("um", "um-plus") else {}))
        courier = LocalCourier(clients, [], fake)
        world = open_world(method, clients, initial_vector(normed, 0))
        for _ in range(2):
            world, _ = play(method, courier, world, {0, 1})
    assert fake.fits
    for fit in fake.fits:
        rows = {*fit.lesson.labelled.tolist(), *fit.lesson.unlabelled.tolist()}
        assert rows <= set(range(7)) or rows <= set(range(7, 14))
