"""Where one method must become another, bit for bit; and where it must not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from real import TRAINING, clients_of, courier_of, method_of, normed, plain, resnet9, simulate
from scripted import CPU
from torch import nn
from torch.nn import functional

from kithkin.compute import Eager, Fit, together
from kithkin.errors import KithkinError
from kithkin.federation import open_world, play
from kithkin.methods.fedprox import fedprox
from kithkin.nets import initial_vector, layout_of

COHORTS = ({0, 1}, {1, 2}, {0, 2})
THREE = clients_of((5, 6), (3, 9), (7, 2))


def own_models(world):
    return [state.w for state in world.states]


def helper_models(world):
    return [state.helpers.own.w for state in world.states]


def same(a, b) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_fedprox_without_pull_is_fedavg():
    fedavg = method_of("fixavg", normed)
    a, b = simulate(fedavg, THREE, normed, COHORTS), simulate(fedprox(fedavg, 0.0), THREE, normed, COHORTS)
    assert torch.equal(a.server.w, b.server.w)


def test_fedprox_with_a_pull_is_not_fedavg_and_stays_nearer_to_the_start():
    w0 = initial_vector(plain, 0)
    far = [
        simulate(m, THREE, plain, COHORTS[:1]).server.w - w0
        for m in (method_of("fixavg", plain), method_of("fixprox", plain, prox=5.0))
    ]
    assert far[1].norm() < far[0].norm()


def test_one_client_fedavg_is_a_chain_of_fits():
    (alone,) = clients_of((6, 7))
    method = method_of("fixavg", normed)
    world = simulate(method, [alone], normed, [{0}] * 3)
    eager, w = Eager(normed, CPU), initial_vector(normed, 0)
    for t in (1, 2, 3):
        w = eager.fit(Fit(w, alone.lesson(), method.recipe, alone.key(t, "fit"))).w
    assert torch.equal(world.server.w, w)
    assert not torch.equal(w, initial_vector(normed, 0))


def test_one_client_fedavg_on_whole_batches_is_torchs_own_sgd():
    (alone,) = clients_of((6, 0))
    training = replace(TRAINING, epochs=3, batch_size=6)
    world = simulate(method_of("fedavg-sl", plain, training), [alone], plain, [{0}] * 2)
    net, w0 = plain(), initial_vector(plain, 0)
    nn.utils.vector_to_parameters(w0, net.parameters())
    x = alone.images[alone.labelled].float() / 255 * 2 - 1
    for _ in range(2):  # a visit starts without momentum
        sgd = torch.optim.SGD(net.parameters(), training.lr, training.momentum)
        for _ in range(3):
            sgd.zero_grad()
            functional.cross_entropy(net(x), alone.classes).backward()
            sgd.step()
    torch.testing.assert_close(world.server.w, nn.utils.parameters_to_vector(net.parameters()).detach(), rtol=1e-4, atol=1e-6)


def test_um_with_room_for_itself_alone_trains_as_local_does():
    um = simulate(method_of("um", normed, helpers=1, candidates=2, refresh_every=1), THREE, normed, COHORTS)
    local = simulate(method_of("local", normed, objective="own-labels"), THREE, normed, COHORTS)
    assert same(helper_models(um), helper_models(local))
    assert um.server.holds == local.server.holds
    assert not torch.equal(helper_models(um)[0], helper_models(um)[1])


def test_um_with_room_for_itself_alone_moves_nothing():
    um = simulate(method_of("um", plain, helpers=1, candidates=2, refresh_every=1), THREE, plain, COHORTS)
    assert um.ledger.moved == {}


def test_um_with_helpers_is_not_local():
    um = simulate(method_of("um", normed, helpers=2, candidates=1), THREE, normed, COHORTS)
    local = simulate(method_of("local", normed, objective="own-labels"), THREE, normed, COHORTS)
    assert not any(torch.equal(a, b) for a, b in zip(helper_models(um), helper_models(local), strict=True))


@pytest.mark.parametrize("build", [plain, normed])
def test_a_threshold_above_one_takes_no_label_as_lambda_zero_does(build):
    never = simulate(method_of("fixavg", build, threshold=1.5), THREE, build, COHORTS)
    nothing = simulate(method_of("fixavg", build, lambda_u=0.0), THREE, build, COHORTS)
    some = simulate(method_of("fixavg", build, threshold=0.0), THREE, build, COHORTS)
    assert torch.equal(never.server.w, nothing.server.w)
    assert not torch.equal(never.server.w, some.server.w)


def test_fedbn_keeps_the_norms_of_a_resnet_whose_names_never_say_bn():
    layout = layout_of(resnet9())
    assert not any("bn" in slot.name for slot in layout.slots)
    bn, avg = (simulate(method_of(name, resnet9), THREE, resnet9, COHORTS[:1]) for name in ("fixbn", "fixavg"))
    w0 = initial_vector(resnet9, 0)
    assert torch.equal(bn.server.w[layout.norm], w0[layout.norm])
    assert not torch.equal(avg.server.w[layout.norm], w0[layout.norm])
    assert torch.equal(bn.server.w[~layout.norm], avg.server.w[~layout.norm]), "from one start, the first round trains alike"
    method, courier = method_of("fixbn", resnet9), courier_of(THREE, resnet9)
    personal = together(
        [method.personal(bn.server, c, s, 1) for c, s in zip(THREE, bn.states, strict=True)], courier.compute.work
    )
    (a,), (b,), _ = personal
    assert torch.equal(a[~layout.norm], b[~layout.norm])
    for slot in layout.slots:
        if slot.norm:
            assert not torch.equal(a[slot.start : slot.stop], b[slot.start : slot.stop]), slot.name


def test_fedbn_goes_another_way_than_fedavg():
    bn, avg = (simulate(method_of(name, normed), THREE, normed, COHORTS) for name in ("fixbn", "fixavg"))
    norm = layout_of(normed()).norm
    assert not torch.equal(bn.server.w[~norm], avg.server.w[~norm])


@pytest.mark.parametrize("name", ["fixbn", "fedbn-sl", "mix"])
def test_fedbn_without_norms_is_refused(name):
    with pytest.raises(KithkinError, match="this network has none"):
        method_of(name, plain)


def test_pfedme_with_beta_one_sets_the_server_to_the_mean():
    pair = clients_of((4, 4), (4, 4))
    method, courier = method_of("pfedme", normed, server_mix=1.0), courier_of(pair, normed)
    world = open_world(method, pair, initial_vector(normed, 0))
    replies = courier.visit(method, world.states, {k: method.brief(world.server, k, 1, True) for k in (0, 1)})
    a, b = (reply.parcels[0].w for reply in replies.values())
    merged = method.merge(world.server, replies, 1).w
    torch.testing.assert_close(merged, (a + b) / 2)
    assert torch.equal(merged, method.mean(replies)), "exactly"
    half = replace(method, beta=0.5).merge(world.server, replies, 1).w
    torch.testing.assert_close(half, (world.server.w + merged) / 2)
    beyond, n = replace(method, beta=2.0).merge(world.server, replies, 1).w, layout_of(normed()).trained
    torch.testing.assert_close(beyond[:n], (2 * merged - world.server.w)[:n])
    assert torch.equal(beyond[n:], merged[n:]), "norm statistics stop at the mean: a variance must not fall below zero"


def test_lg_fedavg_is_fedavg_in_its_first_rounds():
    lg, avg = method_of("lg-fedavg", normed, fedavg_rounds=3), method_of("fixavg", normed)
    a, b = simulate(lg, THREE, normed, COHORTS), simulate(avg, THREE, normed, COHORTS)
    assert torch.equal(a.server.w, b.server.w)
    assert a.ledger.moved == b.ledger.moved


def test_reversed_lg_fedavg_without_fedavg_rounds_is_fedper():
    lg, per = method_of("lg-fedavg", normed, fedavg_rounds=0, reverse=True), method_of("fedper", normed)
    a, b = simulate(lg, THREE, normed, COHORTS), simulate(per, THREE, normed, COHORTS)
    assert torch.equal(a.server.w, b.server.w)
    assert same(own_models(a), own_models(b))
    assert a.ledger.moved == b.ledger.moved


def test_reversed_lg_fedavg_goes_on_as_fedper_after_its_fedavg_rounds():
    lg, per = method_of("lg-fedavg", normed, fedavg_rounds=1, reverse=True), method_of("fedper", normed)
    courier = courier_of(THREE, normed)
    world = simulate(lg, THREE, normed, [{0, 1, 2}, {0, 1, 2}])
    a, b = (play(m, courier, world, {0, 1, 2})[0] for m in (lg, per))
    assert torch.equal(a.server.w, b.server.w)
    assert same(own_models(a), own_models(b))
    assert a.ledger.moved == b.ledger.moved
    assert not torch.equal(a.server.w, world.server.w)


def test_with_all_labels_known_labelled_only_is_supervised():
    full = clients_of((5, 0), (8, 0), (2, 0))
    a, b = (simulate(method_of("fixavg", normed, objective=o), full, normed, COHORTS) for o in ("supervised", "labelled-only"))
    assert torch.equal(a.server.w, b.server.w)


def test_a_fully_labelled_client_is_the_same_whatever_fixmatch_would_do_with_unlabelled_pictures():
    full = clients_of((5, 0), (8, 0), (2, 0))
    a, b = (simulate(method_of("fixavg", normed, **s), full, normed, COHORTS) for s in ({"threshold": 0.0}, {"lambda_u": 0.0}))
    assert torch.equal(a.server.w, b.server.w)


def test_a_fully_labelled_client_weighs_um_helpers_by_accuracy_and_a_fully_unlabelled_one_by_certainty():
    clients = clients_of((6, 0), (0, 6), (4, 4))
    for k, term in ((0, "accuracy"), (1, "entropy")):
        a, b = (
            simulate(method_of("um", normed, helpers=2, candidates=1, relation=r), clients, normed, [{k}])
            for r in ("both", term)
        )
        assert [h.relation for h in a.states[k].helpers] == [h.relation for h in b.states[k].helpers]
        assert torch.equal(a.states[k].helpers.own.w, b.states[k].helpers.own.w)
