"""The round: who is drawn, what is counted, and what happens when it is broken off."""

from __future__ import annotations

import copy
import gc
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from real import clients_of, courier_of, method_of, normed, simulate
from scripted import W0, Scripted, adding, asker, client, fitted, make
from torch import nn

from kithkin.errors import KithkinError
from kithkin.federation import Ledger, LocalCourier, cohort, open_world, play
from kithkin.methods import METHODS
from kithkin.nets import initial_vector

CLIENTS = [client(0, 1, 1), client(1, 1, 1), client(2, 1, 1)]


def tensors(value) -> list[torch.Tensor]:
    """Every tensor in a state."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [t for each in value for t in tensors(each)]
    return [t for each in vars(value).values() for t in tensors(each)] if hasattr(value, "__dict__") else []


def same_world(a, b) -> bool:
    xs, ys = tensors((a.server, a.states)), tensors((b.server, b.states))
    alike = len(xs) == len(ys) and all(torch.equal(x, y) for x, y in zip(xs, ys, strict=True))
    return alike and a.round == b.round and a.ledger == b.ledger


# -- cohorts


@pytest.mark.parametrize(
    ("clients", "rate", "size"),
    [(100, 0.1, 10), (20, 1.0, 20), (10, 0.25, 3), (10, 0.24, 2), (10, 0.01, 1), (1, 0.5, 1), (3, 0.5, 2), (50, 0.29, 15)],
)
def test_a_cohort_is_the_rate_rounded_half_up_and_never_empty(clients, rate, size):
    drawn = cohort(0, 1, clients, rate)
    assert len(drawn) == size
    assert drawn <= set(range(clients))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**40), st.integers(1, 500), st.integers(1, 60), st.floats(0.001, 1))
def test_a_cohort_has_distinct_clients_and_is_near_its_rate(seed, t, clients, rate):
    drawn = cohort(seed, t, clients, rate)
    assert drawn <= set(range(clients))
    assert len(drawn) == 1 or abs(len(drawn) - rate * clients) <= 0.5 + 1e-9


def test_a_cohort_depends_on_seed_and_round_alone_whatever_was_drawn_before():
    forward = [cohort(0, t, 50, 0.2) for t in range(1, 9)]
    backward = [cohort(0, t, 50, 0.2) for t in range(8, 0, -1)]
    assert forward == backward[::-1]
    assert len({frozenset(c) for c in forward}) == 8
    assert forward != [cohort(1, t, 50, 0.2) for t in range(1, 9)]


def test_a_cohort_may_be_drawn_from_some_clients_alone():
    drawn = [cohort(0, t, [3, 7, 8], 0.34) for t in range(1, 9)]
    assert set().union(*drawn) == {3, 7, 8}
    assert {len(each) for each in drawn} == {1}


def test_every_client_is_drawn_sooner_or_later():
    assert set().union(*(cohort(3, t, 20, 0.1) for t in range(1, 200))) == set(range(20))


# -- the world


def test_the_world_opens_before_a_warm_up_or_before_round_one():
    for name in sorted(METHODS):
        method = make(name)
        world = open_world(method, CLIENTS, W0)
        assert world.round == (-1 if name in ("um", "um-plus", "local") else 0)
        assert len(world.states) == 3
        assert world.ledger == Ledger()


def test_a_round_counts_one_on_and_leaves_who_was_not_visited_as_it_was():
    method, fake = make("fixavg"), Scripted()
    world = open_world(method, CLIENTS, W0)
    after, _ = play(method, LocalCourier(CLIENTS, [], fake), world, {1})
    assert after.round == 1
    assert after.ledger.moved == {"start": 28, "upload": 28}
    assert after.states[0] is world.states[0]
    assert after.states[2] is world.states[2]
    assert after.states[1] is not world.states[1]
    assert [asker(fit) for fit in fake.fits] == [1]


def opened(name, clients, courier):
    method = make(name, **({"helpers": 2, "candidates": 1, "refresh_every": 1} if name in ("um", "um-plus") else {}))
    world = open_world(method, clients, W0)
    for trained in ({0, 1, 2}, {0, 1}):
        world, _ = play(method, courier, world, trained)
    return method, world


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_round_changes_nothing_of_the_old_world(name):
    courier = LocalCourier(CLIENTS, [], Scripted())
    method, world = opened(name, CLIENTS, courier)
    before = copy.deepcopy(world)
    after, _ = play(method, courier, world, {0, 1, 2})
    assert same_world(world, before)
    assert not same_world(after, before)


class Unplugged(Scripted):
    """Breaks off at the n-th fit."""

    def __init__(self, at: int) -> None:
        super().__init__(self.train)
        self.left = at

    def train(self, job):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return adding(job)


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_round_broken_off_leaves_the_old_world_and_can_be_played_again(name, at):
    courier = LocalCourier(CLIENTS, [], Scripted())
    method, world = opened(name, CLIENTS, courier)
    before = copy.deepcopy(world)
    with pytest.raises(KeyboardInterrupt):
        play(method, LocalCourier(CLIENTS, [], Unplugged(at)), world, {0, 1, 2})
    assert same_world(world, before)
    again, _ = play(method, courier, world, {0, 1, 2})
    undisturbed, _ = play(method, courier, before, {0, 1, 2})
    assert same_world(again, undisturbed)


def test_a_visit_that_fails_at_once_leaves_no_visit_behind():
    """The error is the visit's own, and nothing warns that the visits after it were never awaited."""

    class Broken(type(make("fixavg"))):
        async def visit(self, client, state, brief):
            if client.number == 0:
                raise LookupError("client 0")
            return await super().visit(client, state, brief)

    method = Broken(**vars(make("fixavg")))
    world = open_world(method, CLIENTS, W0)
    with pytest.raises(LookupError, match="client 0"):
        play(method, LocalCourier(CLIENTS, [], Scripted()), world, {0, 1, 2})
    gc.collect()


# -- losses that are no numbers


def losing(who: int, loss: float, at: int = 1):
    """Client `who`'s `at`-th fit gives this loss."""
    seen = {"fits": 0}

    def fit(job):
        if asker(job) == who:
            seen["fits"] += 1
            if seen["fits"] == at:
                return fitted(job.w, loss=loss)
        return adding(job)

    return Scripted(fit)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_names_the_client_and_the_round(loss):
    method = make("fixavg")
    courier = LocalCourier(CLIENTS, [], losing(1, loss, at=2))
    world, _ = play(method, courier, open_world(method, CLIENTS, W0), {0, 1, 2})
    before = copy.deepcopy(world)
    with pytest.raises(KithkinError, match="The loss of client 1 in round 2 is not a number") as caught:
        play(method, courier, world, {0, 1, 2})
    assert "--lr" in caught.value.remedy
    assert same_world(world, before)


@pytest.mark.parametrize("name", ["um", "um-plus", "local"])
def test_a_loss_that_is_no_number_in_the_warm_up_says_so(name):
    method = make(name)
    with pytest.raises(KithkinError, match="The loss of client 2 in the warm-up is not a number"):
        play(method, LocalCourier(CLIENTS, [], losing(2, math.nan)), open_world(method, CLIENTS, W0), set())


@pytest.mark.parametrize("part", [1, 2, 3])
def test_mix_notices_a_loss_that_is_no_number_in_any_of_its_three_models(part):
    method = make("mix")
    with pytest.raises(KithkinError, match="The loss of client 1 in round 1 is not a number"):
        play(method, LocalCourier(CLIENTS, [], losing(1, math.nan, at=part)), open_world(method, CLIENTS, W0), {0, 1})


def test_real_training_that_diverges_is_noticed():
    clients = clients_of((5, 0), (5, 0))
    method = method_of("fedavg-sl", normed)
    method = replace(method, recipe=replace(method.recipe, lr=1e30))
    with pytest.raises(KithkinError, match=r"The loss of client [01] in round \d is not a number"):
        simulate(method, clients, normed, [{0, 1}] * 4)


# -- the order of clients


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_order_of_visits_changes_no_reply(name):
    clients = clients_of((3, 4), (0, 5), (4, 0))
    method = method_of(name, normed, **({"helpers": 2, "candidates": 1} if name in ("um", "um-plus") else {}))
    courier = courier_of(clients, normed)
    world = simulate(method, clients, normed, [{0, 2}])
    briefs = {k: method.brief(world.server, k, 2, True) for k in range(3)}
    forward = courier.visit(method, world.states, briefs)
    backward = courier.visit(method, world.states, {k: briefs[k] for k in (2, 0, 1)})
    assert list(backward) == [2, 0, 1]
    for k in range(3):
        a, b = forward[k], backward[k]
        assert torch.equal(a.loss, b.loss)
        assert a.holds == b.holds
        assert [p.version for p in a.parcels] == [p.version for p in b.parcels]
        pairs = list(zip(tensors((a.state, a.parcels)), tensors((b.state, b.parcels)), strict=True))
        assert pairs
        assert all(torch.equal(x, y) for x, y in pairs)


def test_the_order_of_visits_is_nothing_to_a_norm_that_counts_its_batches():
    """A batch norm with momentum None weighs by its counter of batches, which must not run on from client to client."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, momentum=None), nn.Flatten(), nn.Linear(72, 3))

    clients = clients_of((3, 4), (2, 5))
    method, w0 = method_of("fixavg", build), initial_vector(build, 0)
    world = open_world(method, clients, w0)
    briefs = {k: method.brief(world.server, k, 1, True) for k in (0, 1)}
    first = courier_of(clients, build).visit(method, world.states, briefs)[1]
    last = courier_of(clients, build).visit(method, world.states, {1: briefs[1], 0: briefs[0]})[1]
    assert torch.equal(first.parcels[0].w, last.parcels[0].w)


class Backwards(LocalCourier):
    """Brings the last client's reply first, as a network may."""

    def visit(self, method, states, briefs):
        replies = super().visit(method, states, briefs)
        return {k: replies[k] for k in reversed(replies)}


@pytest.mark.parametrize("name", ["fixavg", "mix", "um", "um-plus"])
def test_the_order_in_which_replies_arrive_changes_nothing(name):
    clients = clients_of((3, 4), (2, 5), (4, 1), (5, 2), (1, 2))
    method = method_of(name, normed, **({"helpers": 2, "candidates": 1} if name in ("um", "um-plus") else {}))
    everyone = set(range(5))
    worlds = []
    for courier in (courier_of(clients, normed), Backwards(clients, [], courier_of(clients, normed).compute)):
        world = open_world(method, clients, initial_vector(normed, 0))
        for _ in range(2):
            world, _ = play(method, courier, world, everyone)
        worlds.append(world)
    assert same_world(*worlds)
