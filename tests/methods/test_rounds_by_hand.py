"""One round of two clients, in numbers that can be checked by hand.

Client 0 has 1 labelled and 1 unlabelled picture and adds 4 to what it is given; client 1 has 1 and 5 and adds 8. So an average
by all pictures adds (2 * 4 + 6 * 8) / 8 = 7, one by labelled pictures (1 * 4 + 1 * 8) / 2 = 6.
"""

from __future__ import annotations

from itertools import pairwise
from math import log

import pytest
import torch
from scripted import LAYOUT, W0, Scripted, adding, asker, client, fitted, make
from torch import nn

from kithkin.compute import Recipe
from kithkin.errors import KithkinError
from kithkin.federation import LocalCourier, open_world, play
from kithkin.methods import METHODS
from kithkin.methods.base import SERVER
from kithkin.methods.fedper import part_of
from kithkin.nets import layout_of

CLIENTS = [client(0, 1, 1), client(1, 1, 5)]
ALL, NOT_NORM, NOT_HEAD, HEAD = [1, 1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 1, 0, 0], [1, 1, 1, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0, 0]
FIXMATCH = Recipe("fixmatch", 2, 4, 0.125, 0.5, flip=True)
LABELLED = Recipe("alternate", 2, 4, 0.125, 0.5, flip=True)

# name, settings, recipe | numbers each way per client | the server after the round | where client 0 and 1 start the next round
AVERAGING = [
    ("fixavg", {}, FIXMATCH, 7, [17, 27, 37, 47, 57, 67, 77], *[[17, 27, 37, 47, 57, 67, 77]] * 2),
    ("fixavg-ft", {}, FIXMATCH, 7, [17, 27, 37, 47, 57, 67, 77], *[[17, 27, 37, 47, 57, 67, 77]] * 2),
    (
        "fixprox",
        {"prox": 0.25},
        Recipe("fixmatch", 2, 4, 0.125, 0.5, prox=0.25, flip=True),
        7,
        [17, 27, 37, 47, 57, 67, 77],
        *[[17, 27, 37, 47, 57, 67, 77]] * 2,
    ),
    (
        "fixbn",
        {"threshold": 0.5, "lambda_u": 3.0},
        Recipe("fixmatch", 2, 4, 0.125, 0.5, threshold=0.5, lambda_u=3.0, flip=True),
        3,
        [17, 20, 30, 47, 57, 60, 70],
        [17, 24, 34, 47, 57, 64, 74],
        [17, 28, 38, 47, 57, 68, 78],
    ),
    (
        "fedper",
        {},
        FIXMATCH,
        5,
        [17, 27, 37, 40, 50, 67, 77],
        [17, 27, 37, 44, 54, 67, 77],
        [17, 27, 37, 48, 58, 67, 77],
    ),
    (
        "lg-fedavg",
        {"fedavg_rounds": 0},
        FIXMATCH,
        2,
        [10, 20, 30, 47, 57, 60, 70],
        [14, 24, 34, 47, 57, 64, 74],
        [18, 28, 38, 47, 57, 68, 78],
    ),
    (  # the anchors went half as far, so their mean adds 3.5, and beta goes half of that
        "pfedme",
        {"prox": 2.0, "outer_lr": 0.25, "inner_steps": 3, "server_mix": 0.5},
        Recipe("fixmatch", 2, 4, lr=0.125, momentum=0.0, prox=2.0, inner_steps=3, anchor_rate=0.5, flip=True),
        7,
        [11.75, 21.75, 31.75, 41.75, 51.75, 61.75, 71.75],
        *[[11.75, 21.75, 31.75, 41.75, 51.75, 61.75, 71.75]] * 2,
    ),
    ("fedavg-sl", {}, LABELLED, 7, [16, 26, 36, 46, 56, 66, 76], *[[16, 26, 36, 46, 56, 66, 76]] * 2),
    (
        "fedprox-sl",
        {},
        Recipe("alternate", 2, 4, 0.125, 0.5, prox=0.01, flip=True),
        7,
        [16, 26, 36, 46, 56, 66, 76],
        *[[16, 26, 36, 46, 56, 66, 76]] * 2,
    ),
    (
        "fedbn-sl",
        {},
        LABELLED,
        3,
        [16, 20, 30, 46, 56, 60, 70],
        [16, 24, 34, 46, 56, 64, 74],
        [16, 28, 38, 46, 56, 68, 78],
    ),
]


def test_every_method_has_its_round_here():
    assert {row[0] for row in AVERAGING} | {"mix", "um", "um-plus", "local"} == set(METHODS)


def test_the_seven_numbers_are_body_norm_head_and_statistics():
    assert LAYOUT.norm.int().tolist() == [0, 1, 1, 0, 0, 1, 1]
    assert LAYOUT.head(1).int().tolist() == HEAD
    assert LAYOUT.trained == 5


@pytest.mark.parametrize(
    ("name", "changes", "recipe", "numbers", "server", "next0", "next1"), AVERAGING, ids=[row[0] for row in AVERAGING]
)
def test_a_round_of_two_clients_by_hand(name, changes, recipe, numbers, server, next0, next1):
    method, fake = make(name, **changes), Scripted()
    courier = LocalCourier(CLIENTS, [], fake)
    world = open_world(method, CLIENTS, W0)
    assert world.round == 0, "no warm-up"

    briefs = {k: method.brief(world.server, k, 1, True) for k in (0, 1)}
    for brief in briefs.values():  # down: one global model
        (parcel,) = brief.parcels
        assert (parcel.cause, parcel.client, parcel.size) == ("start", SERVER, numbers)
        assert parcel.w.tolist() == W0.tolist()
    replies = courier.visit(method, world.states, briefs)
    for k, reply in replies.items():  # up: the trained model, or where pFedMe's anchor went
        (parcel,) = reply.parcels
        assert (parcel.cause, parcel.client, parcel.size) == ("upload", k, numbers)
        moved = 4.0 * (k + 1) / (2 if name == "pfedme" else 1)
        assert parcel.w.tolist() == (W0 + moved).tolist()
        assert reply.loss == k
        labelled_only = name.endswith("-sl")
        assert reply.examples == (1 if labelled_only else [2, 6][k])
        own = numbers < 7 or name == "pfedme"  # where all is shared, nothing of the client's is ever read
        assert reply.state.w is None if not own else reply.state.w.tolist() == (W0 + 4.0 * (k + 1)).tolist()

    assert [asker(fit) for fit in fake.fits] == [0, 1]
    for fit, of in zip(fake.fits, CLIENTS, strict=True):
        assert fit.w.tolist() == W0.tolist()
        assert fit.recipe == recipe
        assert fit.lesson.labelled.tolist() == of.labelled.tolist()
        assert fit.lesson.unlabelled.tolist() == ([] if name.endswith("-sl") else of.unlabelled.tolist())
        assert fit.lesson.targets is None
    assert fake.fits[0].key != fake.fits[1].key

    after, _ = play(method, courier, world, {0, 1})
    assert after.server.w.tolist() == server
    assert after.ledger.moved == {"start": 2 * numbers * 4, "upload": 2 * numbers * 4}
    fake.fits.clear()
    later, _ = play(method, courier, after, {0, 1})
    assert [fit.w.tolist() for fit in fake.fits] == [next0, next1]
    assert later.ledger.moved == {"start": 4 * numbers * 4, "upload": 4 * numbers * 4}


def test_mix_is_fixavg_fixprox_and_fixbn_side_by_side():
    """Here a client's second model goes twice as far as its first, and its third three times: the means add 7, 14 and 21.

    Their losses are 1, 2 and 3.
    """

    def fit(job):
        nth = sum(asker(earlier) == asker(job) for earlier in fake.fits)
        return fitted(job.w + 4.0 * (asker(job) + 1) * nth, loss=float(nth))

    method, fake = make("mix", prox=0.25), Scripted(fit)
    courier = LocalCourier(CLIENTS, [], fake)
    world, _ = play(method, courier, open_world(method, CLIENTS, W0), {0, 1})
    assert [f.recipe.prox for f in fake.fits if asker(f) == 0] == [0, 0.25, 0]
    assert all(f.w.tolist() == W0.tolist() for f in fake.fits)
    assert [part.w.tolist() for part in world.server.parts] == [
        [17, 27, 37, 47, 57, 67, 77],
        [24, 34, 44, 54, 64, 74, 84],
        [31, 20, 30, 61, 71, 60, 70],
    ]
    assert world.ledger.moved == {"start": 2 * (7 + 7 + 3) * 4, "upload": 2 * (7 + 7 + 3) * 4}
    fake.fits.clear()
    play(method, courier, world, {1})
    assert [f.w.tolist() for f in fake.fits] == [
        [17, 27, 37, 47, 57, 67, 77],
        [24, 34, 44, 54, 64, 74, 84],
        [31, 44, 54, 61, 71, 84, 94],
    ]
    fake.predict = lambda job: torch.tensor([[0.0, 1.0]] if job.w[0] == 17 else [[1.0, 0.0]])  # FixAvg's model says class 1
    reply = fake.run(method.visit(CLIENTS[0], world.states[0], method.brief(world.server, 0, 2, True)))
    assert (reply.loss, reply.labels.classes.tolist()) == (2, [1]), "FixAvg's labels are those on record"


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"um", "um-plus", "local"}))
def test_who_is_not_sampled_is_not_visited(name):
    method = make(name)
    assert method.brief(method.open(2, W0), 0, 1, False) is None


def test_lg_fedavg_shares_everything_in_its_fedavg_rounds_and_the_head_afterwards():
    method, fake = make("lg-fedavg", fedavg_rounds=1), Scripted()
    courier = LocalCourier(CLIENTS, [], fake)
    world, _ = play(method, courier, open_world(method, CLIENTS, W0), {0, 1})
    assert world.server.w.tolist() == [17, 27, 37, 47, 57, 67, 77]
    assert world.ledger.moved == {"start": 56, "upload": 56}
    body = world.server.w[:3].tolist()
    world, _ = play(method, courier, world, {0, 1})
    assert world.server.w[:3].tolist() == body, "the body stays as the FedAvg rounds left it"
    assert world.server.w[3:5].tolist() == [54, 64], "every head went from 47, 57 by 7"


def test_lg_fedavg_runs_fedavg_for_a_quarter_of_the_rounds_unless_told():
    assert make("lg-fedavg").share_all_until == 2  # of 8
    assert make("lg-fedavg", fedavg_rounds=7).share_all_until == 7
    with pytest.raises(KithkinError, match="--fedavg-rounds is 8; it must be below the 8 rounds"):
        make("lg-fedavg", fedavg_rounds=8)


def test_layers_kept_or_shared_are_a_setting():
    for name, flag in (("fedper", "personal_layers"), ("lg-fedavg", "global_layers")):
        with pytest.raises(KithkinError, match="there is no body"):  # the network has two layers
            make(name, **{flag: 2})
    assert make("lg-fedavg", reverse=True).shared.int().tolist() == NOT_HEAD
    assert make("fixbn").shared.int().tolist() == NOT_NORM
    assert make("fixprox").shared.int().tolist() == ALL


def test_a_bias_alone_is_no_head():
    body, head = nn.Linear(2, 2), nn.Linear(2, 2)
    head.weight = body.weight
    with pytest.raises(KithkinError, match="has no weight of its own"):
        part_of(layout_of(nn.Sequential(body, head)), 1, "personal_layers")


def test_pfedme_takes_its_original_defaults_but_the_usual_learning_rate():
    recipe = make("pfedme").recipe
    assert (recipe.prox, recipe.inner_steps, recipe.lr, recipe.momentum) == (15, 5, 0.125, 0)
    assert recipe.anchor_rate == pytest.approx(0.005 * 15)
    assert make("pfedme").beta == 1


def test_labelled_only_is_an_objective_of_every_averaging_method():
    method, fake = make("fedper", objective="labelled-only"), Scripted()
    world, labels = play(method, LocalCourier(CLIENTS, [], fake), open_world(method, CLIENTS, W0), {0, 1})
    assert world.server.w.tolist() == [16, 26, 36, 40, 50, 66, 76]
    assert not labels
    assert not fake.predicts
    assert all(fit.recipe.objective == "alternate" and not len(fit.lesson.unlabelled) for fit in fake.fits)
    assert {fit.recipe.views for fit in fake.fits} == {"plain"}
    assert make("fedavg-sl", augment=True).recipe.views == "weak"


def test_fixmatch_records_the_labels_that_it_trained_with_and_which_are_certain():
    answers = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875], [0.0, 1.0], [0.25, 0.75]])
    fake = Scripted(adding, lambda job: answers[: len(job.rows)])
    method = make("fixavg", threshold=0.75)
    _, labels = play(method, LocalCourier(CLIENTS, [], fake), open_world(method, CLIENTS, W0), {1})
    assert list(labels) == [1]
    assert labels[1].classes.tolist() == [0, 0, 1, 1, 1]
    assert labels[1].taken.tolist() == [True, False, True, True, True]
    assert labels[1].who.tolist() == [1] * 5
    assert labels[1].entropy.tolist() == pytest.approx([0.5623, log(2), 0.3768, 0, 0.5623], abs=1e-4)
    assert not fake.predicts, "training has said it"


@pytest.mark.parametrize(
    ("objective", "trains_by", "unlabelled"),
    [("labelled-only", "alternate", 0), ("own-labels", "alternate", 5), ("fixmatch", "fixmatch", 5)],
)
def test_local_training_starts_from_the_own_model_and_sends_nothing(objective, trains_by, unlabelled):
    method, fake = make("local", warmup_epochs=3, objective=objective), Scripted()
    courier = LocalCourier(CLIENTS, [], fake)
    world, _ = play(method, courier, open_world(method, CLIENTS, W0), {0, 1})
    assert [f.w.tolist() for f in fake.fits] == [W0.tolist()] * 2
    assert [(f.recipe.objective, f.recipe.epochs, len(f.lesson.unlabelled)) for f in fake.fits] == [("alternate", 3, 0)] * 2
    world, _ = play(method, courier, world, {1})
    last = fake.fits[-1]
    assert asker(last) == 1
    assert last.w.tolist() == (W0 + 8).tolist()
    assert (last.recipe.objective, last.recipe.epochs, len(last.lesson.unlabelled)) == (trains_by, 2, unlabelled)
    if objective == "own-labels":
        assert last.lesson.targets.tolist() == [[0.5, 0.5]] * 5
    assert [state.helpers.own.w.tolist() for state in world.states] == [(W0 + 4).tolist(), (W0 + 16).tolist()]
    assert world.ledger.moved == {}


@pytest.mark.parametrize(
    ("objective", "taken"),
    [("labelled-only", None), ("own-labels", [True] * 5), ("fixmatch", [True, False, True, True, True])],
)
def test_local_training_records_the_labels_that_it_takes(objective, taken):
    answers = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875], [0.0, 1.0], [0.25, 0.75]])
    fake = Scripted(adding, lambda job: answers[: len(job.rows)])
    method = make("local", objective=objective, threshold=0.75)
    courier = LocalCourier(CLIENTS, [], fake)
    world, _ = play(method, courier, open_world(method, CLIENTS, W0), {0, 1})
    _, labels = play(method, courier, world, {1})
    assert set(labels) == ({1} if taken else set())
    if taken:
        assert labels[1].classes.tolist() == [0, 0, 1, 1, 1]
        assert labels[1].taken.tolist() == taken


def test_after_the_fedavg_rounds_lg_fedavg_starts_every_client_from_the_fedavg_model():
    """Client 0 was last visited in round 1, client 1 in round 2, client 2 never: all three start from what FedAvg made."""
    clients = [client(0, 1, 1), client(1, 1, 1), client(2, 1, 1)]
    method, fake = make("lg-fedavg", fedavg_rounds=2), Scripted()
    courier = LocalCourier(clients, [], fake)
    world = open_world(method, clients, W0)
    for trained in ({0, 1}, {1}):
        world, _ = play(method, courier, world, trained)
    fake.fits.clear()
    play(method, courier, world, {0, 1, 2})
    assert [(fit.w - W0).tolist() for fit in fake.fits] == [[6 + 8] * 7] * 3


def test_lg_fedavg_counts_the_body_that_a_newcomer_takes_over_from_the_fedavg_rounds():
    """All seven numbers of the parcel are used by a client that was never visited before, so seven travel."""
    method, fake = make("lg-fedavg", fedavg_rounds=1), Scripted()
    courier = LocalCourier(CLIENTS, [], fake)
    world, _ = play(method, courier, open_world(method, CLIENTS, W0), {0})
    later, _ = play(method, courier, world, {1})
    assert fake.fits[-1].w.tolist() == (W0 + 4).tolist(), "not w0: the body came from the server"
    assert later.ledger.moved["start"] - world.ledger.moved["start"] == 7 * 4


def test_who_trained_in_the_last_fedavg_round_starts_from_the_mean_and_not_from_its_own_body():
    method, fake = make("lg-fedavg", fedavg_rounds=1), Scripted()
    courier = LocalCourier(CLIENTS, [], fake)
    world, _ = play(method, courier, open_world(method, CLIENTS, W0), {0, 1})
    assert [state.w.tolist() for state in world.states] == [(W0 + 4).tolist(), (W0 + 8).tolist()]
    models = [fake.run(method.personal(world.server, c, s, 1)) for c, s in zip(CLIENTS, world.states, strict=True)]
    assert [w.tolist() for (w,) in models] == [(W0 + 7).tolist()] * 2
    fake.fits.clear()
    play(method, courier, world, {0, 1})
    assert [fit.w.tolist() for fit in fake.fits] == [(W0 + 7).tolist()] * 2


@pytest.mark.parametrize("objective", ["fixmatch", "labelled-only"])
def test_lg_fedavg_sends_the_whole_model_once_after_its_fedavg_round_and_the_head_from_then_on(objective):
    """Client 1 has no labels: alone it gives a cohort without examples, and has a body of its own all the same."""
    clients = [client(0, 1, 1), client(1, 0, 5)]
    method, fake = make("lg-fedavg", fedavg_rounds=1, objective=objective), Scripted()
    courier, world = LocalCourier(clients, [], fake), open_world(method, clients, W0)
    moved = [(0, 0)]
    for trained in ({0, 1}, {0}, {1}, {0}, {1}):
        world, _ = play(method, courier, world, trained)
        moved.append((world.ledger.down, world.ledger.up))
    steps = [((d - c) / 4, (u - v) / 4) for (c, v), (d, u) in pairwise(moved)]
    assert steps == [(14, 14), (7, 2), (7, 2), (2, 2), (2, 2)], "up goes the head alone at once"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_two_trainings_draw_alike_be_it_of_another_client_round_or_seed(name):
    """A warm-up where there is one, two rounds, and before two evaluations; the three models of Mix share their draws."""
    draws, changes = [], {"helpers": 2, "candidates": 0} if name in ("um", "um-plus") else {}
    method = make(name, **changes)
    for seed in (0, 1):
        clients, fake = [client(0, 1, 1, seed), client(1, 1, 5, seed)], Scripted()
        courier, world = LocalCourier(clients, [], fake), open_world(method, clients, W0)
        while world.round < 2:
            world, _ = play(method, courier, world, {0, 1})
        for c, state in zip(clients, world.states, strict=True):
            for t in (2, 3):
                fake.run(method.personal(world.server, c, state, t))
        draws += [fit.key for fit in fake.fits]
    assert len(set(draws)) == len(draws) / (3 if name == "mix" else 1)
