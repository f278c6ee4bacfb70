"""Which numbers are evaluated, after aggregation: for clients sampled in this round, in an earlier one, and never.

Three clients of 2 pictures each. Round 1 trains 0 and 1 (they add 4 and 8), round 2 trains 1 alone. So the global model is
w0 + 6 after round 1, and after round 2 that + 8 where it is shared: w0 + 14.
"""

from __future__ import annotations

import pytest
from scripted import W0, Scripted, client, make

from kithkin.federation import LocalCourier, open_world, play

CLIENTS = [client(0, 1, 1), client(1, 1, 1), client(2, 1, 1)]
NORM, HEAD = slice(1, 3), slice(3, 5)


def evaluated(name: str, **changes):
    """For each client, how much every model that `personal` gives after round 2 differs from w0; and the compute."""
    method, fake = make(name, **changes), Scripted()
    courier = LocalCourier(CLIENTS, [], fake)
    world = open_world(method, CLIENTS, W0)
    if method.opening_round:
        world, _ = play(method, courier, world, {0, 1, 2})
    world, _ = play(method, courier, world, {0, 1})
    world, _ = play(method, courier, world, {1})
    fake.fits.clear()
    models = [fake.run(method.personal(world.server, c, s, 2)) for c, s in zip(CLIENTS, world.states, strict=True)]
    return [[(w - W0).tolist() for w in each] for each in models], fake


@pytest.mark.parametrize("name", ["fixavg", "fixprox", "fedavg-sl", "fedprox-sl"])
def test_without_personal_parts_everyone_evaluates_the_new_global_model(name):
    assert evaluated(name)[0] == [[[14] * 7]] * 3


@pytest.mark.parametrize("name", ["fixbn", "fedbn-sl"])
def test_fedbn_evaluates_own_norms_in_the_new_global_rest(name):
    (unsampled,), (sampled,), (never,) = evaluated(name)[0]
    assert unsampled == [14, 4, 4, 14, 14, 4, 4], "norms from round 1"
    assert sampled == [14, 16, 16, 14, 14, 16, 16], "its norms went by 8 twice, never averaged"
    assert never == [14, 0, 0, 14, 14, 0, 0], "the norms of the start"


def test_fedper_evaluates_the_own_head_on_the_new_global_body():
    (unsampled,), (sampled,), (never,) = evaluated("fedper")[0]
    assert unsampled == [14, 14, 14, 4, 4, 14, 14]
    assert sampled == [14, 14, 14, 16, 16, 14, 14]
    assert never == [14, 14, 14, 0, 0, 14, 14]


def test_lg_fedavg_evaluates_the_own_body_under_the_new_global_head():
    (unsampled,), (sampled,), (never,) = evaluated("lg-fedavg", fedavg_rounds=0)[0]
    assert unsampled == [4, 4, 4, 14, 14, 4, 4]
    assert sampled == [16, 16, 16, 14, 14, 16, 16]
    assert never == [0, 0, 0, 14, 14, 0, 0]


def test_lg_fedavg_evaluates_the_global_model_while_fedavg_goes_on():
    assert evaluated("lg-fedavg", fedavg_rounds=5)[0] == [[[14] * 7]] * 3


def test_lg_fedavg_evaluates_the_fedavg_model_when_fedavg_has_just_ended():
    assert evaluated("lg-fedavg", fedavg_rounds=2)[0] == [[[14] * 7]] * 3


def test_pfedme_evaluates_theta_and_not_w():
    """The anchor w goes half as far as theta: 3 in round 1 (mean), 4 in round 2. Theta of client 1 is that w + 8."""
    (unsampled,), (sampled,), (never,) = evaluated("pfedme", server_mix=1.0)[0]
    assert unsampled == [4] * 7, "theta of round 1"
    assert sampled == [3 + 8] * 7, "theta of round 2, from the global 3"
    assert never == [3 + 4] * 7, "no theta yet: the global model"


def test_fine_tuning_starts_from_the_new_global_model_on_all_own_data():
    models, fake = evaluated("fixavg-ft", finetune_epochs=3, finetune_lr=0.25)
    assert models == [[[14 + 4] * 7], [[14 + 8] * 7], [[14 + 12] * 7]]
    assert [(fit.w - W0).tolist() for fit in fake.fits] == [[14] * 7] * 3
    assert [(fit.recipe.epochs, fit.recipe.lr / make("fixavg").recipe.lr) for fit in fake.fits] == [(3, 0.25)] * 3
    assert [len(fit.lesson.labelled) + len(fit.lesson.unlabelled) for fit in fake.fits] == [2] * 3
    assert len({fit.key for fit in fake.fits}) == 3


@pytest.mark.parametrize("objective", ["supervised", "labelled-only"])
def test_fine_tuning_without_fixmatch_takes_labelled_pictures_alone(objective):
    _, fake = evaluated("fixavg-ft", objective=objective)
    assert [(len(fit.lesson.labelled), len(fit.lesson.unlabelled)) for fit in fake.fits] == [(1, 0)] * 3


def test_fine_tuning_leaves_no_trace_in_the_next_round():
    method, fake = make("fixavg-ft"), Scripted()
    world, _ = play(method, LocalCourier(CLIENTS, [], fake), open_world(method, CLIENTS, W0), {0})
    fake.run(method.personal(world.server, CLIENTS[0], world.states[0], 1))
    fake.fits.clear()
    play(method, LocalCourier(CLIENTS, [], fake), world, {0})
    assert fake.fits[0].w.tolist() == (W0 + 4).tolist()
    assert fake.fits[0].recipe.epochs == 2


def test_mix_evaluates_all_three():
    unsampled, sampled, never = evaluated("mix")[0]
    assert unsampled == [[14] * 7, [14] * 7, [14, 4, 4, 14, 14, 4, 4]]
    assert sampled == [[14] * 7, [14] * 7, [14, 16, 16, 14, 14, 16, 16]]
    assert never == [[14] * 7, [14] * 7, [14, 0, 0, 14, 14, 0, 0]]


def test_local_evaluates_the_own_model_of_the_last_visit():
    assert evaluated("local")[0] == [[[4 + 4] * 7], [[8 + 8 + 8] * 7], [[12] * 7]]


def test_um_evaluates_what_the_client_trained_last_not_the_average():
    """Every model is unsure of all and right on all it labels (relation 1/2), so averages are plain means.

    Warm-up: 4, 8, 12. Nobody searches; lists of 3 are filled. Round 1: client 0 starts from the mean 8, client 1 as well.
    Round 2: client 1 holds its own 16, and copies of 0 (4) and 2 (12) that nobody refreshed: 32 / 3, + 8.
    """
    (unsampled,), (sampled,), (never,) = evaluated("um", helpers=3, search_rounds=0, refresh_every=100)[0]
    assert unsampled == pytest.approx([8 + 4] * 7)
    assert sampled == pytest.approx([32 / 3 + 8] * 7)
    assert never == [12] * 7
