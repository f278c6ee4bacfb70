"""UM+ in numbers that can be checked by hand, where it becomes another method, and what it must bear.

The seven numbers: body | head, head | bias, bias | running mean, running variance. All labelled pictures are of class 0 of 2.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch
from real import TRAINING, clients_of, courier_of, method_of, normed, simulate
from scripted import BIASED, LAYOUT, SETTING, W0, Scripted, asker, client, make
from torch import nn

from kithkin.compute import Predict, Recipe
from kithkin.errors import KithkinError
from kithkin.federation import LocalCourier, open_world, play
from kithkin.helpers import Helper, HelperList, Score
from kithkin.methods import METHODS
from kithkin.methods.base import SERVER
from kithkin.methods.um import Newest
from kithkin.methods.um_plus import Commons, PlusState, bias_of
from kithkin.nets import layout_of

SIZE = 7 * 4  # bytes of a model
TWO = [client(0, 3, 2), client(1, 1, 2)]
ALONE = {"helpers": 1, "candidates": 0, "search_rounds": 0}
NO_PRIOR = {"smoothing": 1e30}
PLAIN = {"window": 0.0, "views": "plain", "server_momentum": 0.0}


def shift(*log_prior: float) -> torch.Tensor:
    """What a prior adds to the seven numbers."""
    return torch.tensor([0.0, 0.0, 0.0, *log_prior, 0.0, 0.0])


def close(w: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(w, expected, rtol=0, atol=2e-5)


def test_the_bias_of_the_last_layer_holds_the_prior():
    assert bias_of(BIASED) == slice(3, 5)
    assert bias_of(layout_of(nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 2)))) == slice(12, 14), "3 + 3 + 6 come before"
    with pytest.raises(KithkinError, match="last layer has no bias"):
        bias_of(LAYOUT)
    with pytest.raises(KithkinError, match="last layer has no bias"):
        METHODS["um-plus"].make(METHODS["um-plus"].settings, SETTING)


@pytest.mark.parametrize("losses", ["auto", "sum"])
def test_a_warm_up_and_a_round_of_two_clients_by_hand(losses: str):
    """Client 0 has 3 labelled pictures and adds 4 to what it is given; client 1 has 1 and adds 8. Everyone is right on labels.

    Smoothing 1: log pi_0 = log (4, 1) / 2.5, log pi_1 = log (2, 1) / 1.5. The warm-ups' mean, 3 : 1, is w0 + 5.
    Round 1 trains client 0. Trust: own 3, helper 1, common model 4. Picture A is 7/8 of class 0, picture B 5/8.
    """
    said = {14: [[1.0, 0.0], [0.0, 1.0]], 18: [[0.0, 1.0], [1.0, 0.0]], 15: [[1.0, 0.0], [1.0, 0.0]], 19: [[0.5, 0.5]] * 2}

    def answer(job: Predict) -> torch.Tensor:
        if job.passes and asker(job) == 0:
            return torch.tensor(said[int(job.w[0])])
        return torch.tensor([[1.0, 0.0]]).repeat(len(job.rows), 1)

    method = make(
        "um-plus",
        **{"helpers": 2, "search_rounds": 0, "refresh_every": 9, "relation": "accuracy", "warmup_epochs": 9},
        **{"threshold": 0.8, "smoothing": 1.0, "window": 1.0, "tune_epochs": 0, "losses": losses},
    )
    fake = Scripted(predict=answer)
    courier = LocalCourier(TWO, [], fake)
    world, labels = play(method, courier, open_world(method, TWO, W0), {0, 1})
    assert not labels
    prior = [shift(log(4 / 2.5), log(1 / 2.5)), shift(log(2 / 1.5), log(1 / 1.5))]
    for k, fit in enumerate(fake.fits):
        close(fit.w, W0 + prior[k])
        assert (fit.recipe.epochs, len(fit.lesson.unlabelled)) == (9, 0)
    close(world.server.pool.models[0].w, W0 + 4)  # the prior has stayed at home
    close(world.server.pool.models[1].w, W0 + 8)
    close(world.server.w, W0 + 5)
    close(world.server.steady, W0 + 5)
    assert (world.server.evidence, world.server.behind) == ((3, 1), 4)
    assert world.ledger.moved == {"warm-up": 2 * SIZE}
    for job in fake.predicts:
        close(job.shift, torch.tensor([[log(4 / 2.5), log(1 / 2.5)], [log(2 / 1.5), log(1 / 1.5)]])[asker(job)])

    fake.fits.clear()
    world, labels = play(method, courier, world, {0})
    (fit,) = fake.fits
    prior = shift(log(4.875 / 3), log(1.125 / 3))  # 3 labelled, 7/8 and 1/8 voted, 1 each
    close(fit.w, W0 + 5 + prior)
    assert fit.recipe == Recipe("sum", 2, 4, 0.125, 0.5, flip=True, views="weak", moved=0.5)  # everyone is right: it knows them
    if losses == "sum":
        assert fit.lesson.targets.tolist() == [[7 / 8, 1 / 8], [5 / 8, 3 / 8]]
        assert fit.lesson.weights.tolist() == [1, 0]
    else:  # A counts as labelled, B not at all
        assert fit.lesson.labelled.tolist() == [*TWO[0].labelled.tolist(), int(TWO[0].unlabelled[0])]
        assert (fit.lesson.classes.tolist(), len(fit.lesson.unlabelled)) == ([0, 0, 0, 0], 0)
    assert (labels[0].classes.tolist(), labels[0].taken.tolist()) == ([0, 0], [True, False])
    assert labels[0].entropy.tolist() == pytest.approx([0.376770, 0.661563], abs=1e-6)
    close(world.states[0].helpers.own.w, W0 + 9)
    close(world.server.w, W0 + 9)
    close(world.server.steady, W0 + 7)  # window 1, doubled: half of the way in round 1
    assert (world.server.evidence, world.server.behind) == ((3, 1), 3)
    assert world.ledger.moved == {"warm-up": 2 * SIZE, "fill": SIZE, "start": SIZE, "upload": SIZE}

    (mine,) = fake.run(method.personal(world.server, TWO[0], world.states[0], 1))
    close(mine, W0 + 7 + prior)
    (other,) = fake.run(method.personal(world.server, TWO[1], world.states[1], 1))
    close(other, W0 + 7 + shift(log(2 / 1.5), log(1 / 1.5)))  # it has taken no pseudo label yet


def test_the_average_counts_labelled_pictures_and_labels_that_were_taken():
    method, fake = make("um-plus", **ALONE, threshold=0.5), Scripted()
    pair = [client(0, 1, 3), client(1, 2, 0)]
    courier = LocalCourier(pair, [], fake)
    world, _ = play(method, courier, open_world(method, pair, W0), {0, 1})
    start = world.server.w
    world, _ = play(method, courier, world, {0, 1})
    assert fake.fits[2].lesson.weights.tolist() == [1] * 3
    close(world.server.w, start + (4 * 4 + 2 * 8) / 6)


@pytest.mark.parametrize(("threshold", "taken"), [(0.5, 3), (0.51, 0), (1.1, 0)])
def test_certain_means_at_least_the_threshold(threshold, taken):
    method, fake = make("um-plus", **ALONE, threshold=threshold), Scripted()  # every answer is 1/2, 1/2
    alone = [client(0, 1, 3)]
    world, _ = play(method, LocalCourier(alone, [], fake), open_world(method, alone, W0), {0})
    _, labels = play(method, LocalCourier(alone, [], fake), world, {0})
    assert int(labels[0].taken.sum()) == taken


@pytest.mark.parametrize(
    ("right", "flip", "views", "shown"),
    [(1.0, True, "auto", "weak"), (0.7, True, "auto", "plain"), (1.0, False, "auto", "plain"), (0.7, True, "weak", "weak")],
)
def test_pictures_are_moved_once_the_common_model_knows_them(right: float, flip: bool, views: str, shown: str):
    """Of ten labelled pictures, all of class 0, the common model is right on all or on seven."""

    def answer(job: Predict) -> torch.Tensor:
        p = torch.tensor([[1.0, 0.0]]).repeat(len(job.rows), 1)
        p[round(right * 10) :] = torch.tensor([0.0, 1.0])
        return p

    setting = replace(SETTING, layout=BIASED, training=replace(SETTING.training, flip=flip))
    settings = replace(METHODS["um-plus"].settings, **ALONE, views=views, relation="accuracy")
    method, fake = METHODS["um-plus"].make(settings, setting), Scripted(predict=answer)
    alone = [client(0, 10, 2)]
    world, _ = play(method, LocalCourier(alone, [], fake), open_world(method, alone, W0), {0})
    play(method, LocalCourier(alone, [], fake), world, {0})
    assert [fit.recipe.views for fit in fake.fits] == ["weak" if views == "weak" else "plain", shown]


@pytest.mark.parametrize(("losses", "right", "labelled"), [("auto", 1.0, 11), ("auto", 0.7, 10), ("sum", 1.0, 10)])
def test_votes_of_known_clients_count_as_labels_and_need_no_pass(losses: str, right: float, labelled: int):
    """Ten labelled pictures of class 0, and two others: the vote is sure that one is of class 1, and not sure of the other."""

    def answer(job: Predict) -> torch.Tensor:
        if len(job.rows) == 2:
            return torch.tensor([[0.05, 0.95], [0.5, 0.5]])
        sure = torch.arange(len(job.rows)) < round(right * 10)
        return torch.stack([sure, ~sure], 1).float()

    method, fake = make("um-plus", **ALONE, losses=losses, relation="accuracy"), Scripted(predict=answer)
    (alone,) = clients = [client(0, 10, 2)]
    world, _ = play(method, LocalCourier(clients, [], fake), open_world(method, clients, W0), {0})
    world, _ = play(method, LocalCourier(clients, [], fake), world, {0})
    lesson = fake.fits[-1].lesson
    assert len(lesson.labelled) == len(lesson.classes) == labelled
    if labelled == 11:
        assert (int(lesson.labelled[-1]), int(lesson.classes[-1])) == (int(alone.unlabelled[0]), 1)
        assert (len(lesson.unlabelled), lesson.targets, lesson.weights) == (0, None, None)
    fake.fits.clear()
    (w,) = fake.run(method.personal(world.server, alone, world.states[0], 1))
    close(w, world.server.steady + shift(*method.log_prior(alone, world.states[0].votes).tolist()) + 4 * (labelled == 10))
    assert len(fake.fits) == (labelled == 10)


@pytest.mark.parametrize(("known", "views", "tuned"), [(0.5, "weak", 0), (0.51, "plain", 1)])
def test_known_is_who_the_common_model_is_related_to_at_least_so_much(known: float, views: str, tuned: int):
    """It is right on one of two labelled pictures, which are both of class 0."""
    method = make("um-plus", **ALONE, known=known, relation="accuracy")
    fake = Scripted(predict=lambda job: torch.eye(2)[: len(job.rows)])
    (alone,) = clients = [client(0, 2, 2)]
    world, _ = play(method, LocalCourier(clients, [], fake), open_world(method, clients, W0), {0})
    world, _ = play(method, LocalCourier(clients, [], fake), world, {0})
    assert fake.fits[-1].recipe.views == views
    fake.fits.clear()
    fake.run(method.personal(world.server, alone, world.states[0], 1))
    assert len(fake.fits) == tuned


def test_who_only_searches_keeps_the_labels_that_its_prior_counts():
    method, fake = make("um-plus", helpers=2, candidates=1, search_rounds=9, threshold=0.5), Scripted()
    three = [client(0, 1, 3), client(1, 1, 1), client(2, 1, 1)]
    courier = LocalCourier(three, [], fake)
    world, _ = play(method, courier, open_world(method, three, W0), {0, 1, 2})
    world, _ = play(method, courier, world, {0})
    assert world.states[0].votes.tolist() == [1.5, 1.5]
    later, _ = play(method, courier, world, {1})
    assert later.ledger.moved["search"] > world.ledger.moved["search"]
    assert later.states[0].votes.tolist() == [1.5, 1.5]


def test_models_answer_with_the_prior_of_the_labels_that_were_taken_last():
    """Client 0 has one label: pi is (2, 1) / 3. It takes three, of which 3/2 are of either class: (7, 5) / 12 from then on."""
    method, fake = make("um-plus", helpers=2, candidates=1, search_rounds=9, threshold=0.5), Scripted()
    three = [client(0, 1, 3), client(1, 1, 1), client(2, 1, 1)]
    courier = LocalCourier(three, [], fake)

    def odds():
        """Of the shifts with which client 0 asked; a model is asked twice, on pictures without and with labels."""
        asked = [float((job.shift[0] - job.shift[1]).exp()) for job in fake.predicts if asker(job) == 0]
        fake.predicts.clear()
        return pytest.approx(asked)

    world, _ = play(method, courier, open_world(method, three, W0), {0, 1, 2})
    assert odds() == [2] * 2
    world, _ = play(method, courier, world, {0})
    assert odds() == [2] * 4 + [7 / 5] * 2, "the candidate and the common model before it takes labels, its own one after that"
    world, _ = play(method, courier, world, set())
    assert odds() == [7 / 5] * 2, "another candidate"
    fake.run(method.personal(world.server, three[0], world.states[0], 2))
    assert odds() == [7 / 5] * 2
    for trained, asked in ((set(), 0), ({0}, 4), (set(), 0)):
        world, _ = play(method, courier, world, trained)
        assert odds() == [7 / 5] * asked, "who was refused is not asked again"


def test_signals_are_not_moved_even_where_a_mirror_image_would_keep_its_label():
    setting = replace(SETTING, layout=BIASED, training=replace(SETTING.training, flip=True), signals=True)
    assert METHODS["um-plus"].make(METHODS["um-plus"].settings, setting).moved.views == "plain"


def test_a_client_goes_over_its_pictures_once_before_an_evaluation():
    tune = make("um-plus").tune
    assert tune
    assert (tune.epochs, tune.views) == (1, "plain")
    assert tune.lr == pytest.approx(SETTING.training.lr / 10)


def test_fine_tuning_starts_from_the_steady_model_and_leaves_no_trace():
    method, fake = make("um-plus", **ALONE, tune_epochs=3, tune_lr=0.5), Scripted()
    courier = LocalCourier(TWO, [], fake)
    world, _ = play(method, courier, open_world(method, TWO, W0), {0, 1})
    before = [world.server.w.clone(), world.states[0].helpers.own.w.clone()]
    fake.fits.clear()
    (tuned,) = fake.run(method.personal(world.server, TWO[0], world.states[0], 1))
    (fit,) = fake.fits
    close(fit.w, W0 + 5 + shift(log(4 / 2.5), log(1 / 2.5)))
    close(tuned, fit.w + 4)
    assert (fit.recipe.epochs, fit.recipe.lr) == (3, 0.0625)
    assert (len(fit.lesson.labelled), len(fit.lesson.unlabelled)) == (3, 2)
    assert [torch.equal(a, b) for a, b in zip(before, [world.server.w, world.states[0].helpers.own.w], strict=True)] == [
        True
    ] * 2


def test_fine_tuning_takes_the_labels_of_which_the_vote_is_certain():
    """Trust: own model 3, common model 1. They agree on picture A; picture B is 3/4 of class 1."""
    method = make("um-plus", **ALONE, threshold=0.8, known=1.1, relation="accuracy")
    fake = Scripted(predict=lambda job: torch.tensor([[1.0, 0.0]]).repeat(len(job.rows), 1))
    own = Helper(0, 1, W0, Score(1.0, torch.eye(2)), evidence=3)
    server = Commons(method.um.open(1, W0), (3,), W0, 1, W0)
    fake.run(method.personal(server, TWO[0], PlusState(HelperList(0, (own,), 1)), 1))
    (fit,) = fake.fits
    assert fit.lesson.targets.tolist() == [[1, 0], [0.25, 0.75]]
    assert fit.lesson.weights.tolist() == [1, 0]
    shown = method.shown(replace(server, w=W0 + 1))
    assert (shown.steady.tolist(), shown.behind) == (W0.tolist(), 1), "as much of the server is needed for that"


def test_what_travels_is_ums_and_one_common_model_for_who_trains():
    um, plus = make("um", helpers=3), make("um-plus", helpers=3)
    pool = replace(um.open(6, W0), models=(Newest(1, W0),) * 6)  # all have shared one
    server = Commons(pool, (5, 4, 3, 2, 1, 0), W0 + 1, 9, W0)
    for t in range(1, 40):
        for k, sampled in ((0, True), (3, False)):
            a, b = um.brief(pool, k, t, sampled), plus.brief(server, k, t, sampled)
            mine = [(p.cause, p.client, p.size) for p in b.parcels] if b else []
            assert mine == [(p.cause, p.client, p.size) for p in a.parcels] + [("start", SERVER, 7)] * sampled if a else not b
            assert all(p.evidence == (9 if p.client == SERVER else 5 - p.client) for p in b.parcels) if b else True


def test_who_knows_nothing_has_no_vote():
    """A helper without a labelled picture behind it, however sure, is not heard."""
    score = lambda r, *p: Score(r, torch.tensor([p]))  # noqa: E731
    own = Helper(0, 1, W0, score(0.5, 0.6, 0.4), evidence=2)
    boast = Helper(1, 1, W0, score(1.0, 0.0, 1.0), evidence=0)
    common = Helper(SERVER, 1, W0, score(0.5, 0.7, 0.3), evidence=2)
    y, taken = make("um-plus", threshold=0.6).label(HelperList(0, (own, boast), 5), common)
    torch.testing.assert_close(y, torch.tensor([[0.65, 0.35]]))
    assert taken.tolist() == [True]


def test_a_cohort_without_examples_leaves_the_common_model_as_it_was():
    pair = [client(0, 0, 3), client(1, 0, 4)]
    method = make("um-plus", **ALONE, threshold=1.1)
    courier = LocalCourier(pair, [], Scripted())
    world, _ = play(method, courier, open_world(method, pair, W0), {0, 1})
    world, _ = play(method, courier, world, {0, 1})
    assert world.server.w.tolist() == world.server.steady.tolist() == W0.tolist()


@pytest.mark.parametrize(
    ("gathering", "ways"), [(0, [4, 11, 0, 12.25, 17.1875]), (1, [4, 10, 0, 11.5, 16.625]), (3, [4, 8, 0, 6, 10.4])]
)
def test_the_common_model_goes_most_of_its_last_way_again(gathering: float, ways: list[float]):
    """Client 0 adds 4 and client 1 adds 8, and three quarters of the last way come on top; but not for norm statistics.

    Gathering 1: in round 2 it is half of it. Gathering 3: nothing before round 4, then a quarter. Who is sampled in vain
    leaves the speed as it was.
    """
    method = make("um-plus", **ALONE, server_momentum=0.75, gathering=gathering, window=0.0, tune_epochs=0)
    courier = LocalCourier(TWO, [], Scripted())
    world, _ = play(method, courier, open_world(method, TWO, W0), {0, 1})
    trained = counted = 5  # the way to the mean of the warm-ups is no speed
    for sampled, way, step in zip(({0}, {1}, set[int](), {0}, {1}), ways, (4, 8, 0, 4, 8), strict=True):
        world, _ = play(method, courier, world, sampled)
        trained, counted = trained + way, counted + step
        close(world.server.w, W0 + torch.tensor([trained] * 5 + [counted] * 2))
        assert torch.equal(world.server.steady, world.server.w)


def test_the_steady_mean_is_over_a_share_of_the_rounds_of_which_the_first_count_twice():
    """A client adds 4 in each round. Half of 2, 4, 5, 6 rounds: all of the way, a half, two fifths, a third."""
    method = make("um-plus", **ALONE, server_momentum=0.0, gathering=2.0, window=0.5, tune_epochs=0)
    courier = LocalCourier(TWO[:1], [], Scripted())
    world, _ = play(method, courier, open_world(method, TWO[:1], W0), {0})
    for steady in (8, 10, 12.4, 12.4 + 7.6 / 3):
        world, _ = play(method, courier, world, {0})
        close(world.server.steady, W0 + steady)


def test_alone_without_priors_warm_up_or_unlabelled_data_it_is_fedavg():
    three = clients_of((5, 0), (3, 0), (7, 0))
    cohorts = ({0, 1}, {1, 2}, {0, 2})
    plus = method_of("um-plus", normed, TRAINING, **ALONE, **NO_PRIOR, warmup_epochs=0, **PLAIN)
    fedavg = method_of("fixavg", normed, TRAINING, objective="labelled-only")
    a, b = simulate(plus, three, normed, cohorts), simulate(fedavg, three, normed, cohorts)
    torch.testing.assert_close(a.server.w, b.server.w)
    assert torch.equal(a.server.steady, a.server.w)


def test_alone_it_moves_no_helpers():
    three = clients_of((5, 4), (3, 4), (7, 4))
    world = simulate(method_of("um-plus", normed, **ALONE), three, normed, [{0, 1}, {2}])
    assert set(world.ledger.moved) == {"warm-up", "start", "upload"}


def test_clients_without_labels_without_unlabelled_data_and_with_one_picture_are_ordinary():
    odd = clients_of((0, 6), (5, 0), (1, 0), (4, 4))
    method = method_of("um-plus", normed, helpers=3, candidates=1, tune_epochs=1)
    world = simulate(method, odd, normed, [{0, 1, 2, 3}, {0, 2}, {1, 3}])
    assert bool(world.server.w.isfinite().all())
    courier = courier_of(odd, normed)
    marks = courier.examine(method, world.server, world.states, 3)
    assert len(marks.test) == 4
    for state in world.states:
        assert isinstance(state, PlusState)
        assert all(bool(h.w.isfinite().all()) for h in state.helpers)


def test_a_class_that_a_client_never_saw_is_not_unlearnt_through_it():
    """Trained on class 0 alone, a model's bias sinks for class 1; what UM+ shares of it sinks less than FedAvg's does."""

    def head_only() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

    (only,) = clients_of((8, 0))
    only = replace(only, classes=torch.zeros_like(only.classes))
    bias = bias_of(layout_of(head_only()))
    sunk: list[float] = []
    for changes in ({"smoothing": 0.01}, NO_PRIOR):
        method = method_of("um-plus", head_only, **ALONE, **changes, warmup_epochs=5)
        b = simulate(method, [only], head_only, []).server.w[bias]
        sunk.append(float(b[0] - b[1:].mean()))
    assert sunk[0] < sunk[1] / 2


def test_a_prior_taken_off_is_gone():
    method = make("um-plus")
    prior = method.log_prior(TWO[0], torch.tensor([0.0, 5.0]))
    close(method.with_prior(method.with_prior(W0, prior), -prior), W0)
    assert prior.tolist() == pytest.approx([log(4 / 5), log(6 / 5)])
    assert torch.equal(W0, torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0])), "never changed in place"
