"""UM-pFSSL's protocol (Algorithms 1-3), in numbers that can be checked by hand.

Here a model is [whose, how often trained]: the compute below gives client k's n-th training the vector [k, n].
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from scripted import Scripted, asker, client, fitted

from kithkin import rng
from kithkin.compute import Fit, Fitted, Predict, Recipe
from kithkin.federation import LocalCourier, open_world, play
from kithkin.helpers import Helper, HelperList, Score
from kithkin.methods.base import Brief, Held, Parcel
from kithkin.methods.um import Newest, Pool, Um, UmState

RECIPE = Recipe("weighted", epochs=2, batch_size=4, lr=0.125)
START = torch.tensor([-1.0, 0.0])
SIZE = 2 * 4  # bytes of a model


def um(M=3, R=1, F=3, nu=2, terms="both", T=7) -> Um:
    return Um(M, R, F, nu, T, terms, RECIPE, warmup_epochs=9, seed=0)


def model(k: int, n: int) -> torch.Tensor:
    return torch.tensor([float(k), float(n)])


class Village(Scripted):
    """Each training of client k gives [k, n]; model [j, n] names `right[k, j, n]` of client k's labelled pictures rightly."""

    def __init__(self, right=None, unlabelled=None):
        super().__init__(self.train, self.answer)
        self.right = right or {}
        self.unlabelled = unlabelled or {}
        self.trained = Counter()

    def train(self, job: Fit) -> Fitted:
        k = asker(job)
        self.trained[k] += 1
        return fitted(model(k, self.trained[k]))

    def answer(self, job: Predict) -> torch.Tensor:
        who = (asker(job), *(int(v) for v in job.w))
        if job.passes:
            return self.unlabelled.get(who, torch.full((len(job.rows), 2), 0.5))
        guesses = torch.arange(len(job.rows)) >= self.right.get(who, 0)
        return torch.nn.functional.one_hot(guesses.long(), 2).float()

    def scored(self) -> list[tuple[int, int, int]]:
        """(client, helper, version) of every relation computed since the last call."""
        passes = [(asker(job), *(int(v) for v in job.w)) for job in self.predicts if job.passes]
        plain = [(asker(job), *(int(v) for v in job.w)) for job in self.predicts if not job.passes]
        assert passes == plain, "a relation takes one of each"
        self.predicts.clear()
        return passes


def parcel(cause, j, version) -> Parcel:
    return Parcel(cause, j, version, model(j, version), 2)


def listed(M: int, *helpers: tuple[int, int, float]) -> UmState:
    """Client 0's list of (client, version, relation)."""
    made = (Helper(j, v, model(j, v), Score(r, torch.full((1, 2), 0.5))) for j, v, r in helpers)
    return UmState(HelperList(0, tuple(made), M))


def lines(state: UmState) -> list[tuple[int, int, float]]:
    return [(h.client, h.version, h.relation) for h in state.helpers]


def pool(versions: list[int], *held: tuple[int, int, float]) -> Pool:
    """The server's view, with client 0's list; the others hold themselves alone."""
    models = tuple(Newest(v, model(j, v)) for j, v in enumerate(versions))
    alone = tuple((Held(j, v, 1.0),) for j, v in enumerate(versions))
    return Pool(models, (tuple(Held(*line) for line in held), *alone[1:]))


def causes(brief: Brief | None) -> dict[str, list[int]]:
    return {c: sorted(p.client for p in brief.sent(c)) for c in ("search", "refresh", "fill") if brief and brief.sent(c)}


def test_three_rounds_of_two_clients_by_hand():
    """M = 2, R = 1, F = 2, nu = 1. Both clients have 2 labelled and 2 unlabelled pictures: mu = 1/2.

    Client 0 on itself: H_bar 1/2 (one answer certain, one not), accuracy 1/2, relation 1/2.
    Client 0 on model 1: H_bar 1/2, accuracy 1, relation 3/4. So its average is 0.4 own + 0.6 of the other's.
    """
    clients = [client(0, 2, 2), client(1, 2, 2)]
    method = um(M=2, R=1, F=2, nu=1)
    fake = Village(
        right={(0, 0, 1): 1, (0, 1, 1): 2, (1, 1, 1): 2, (1, 0, 2): 1},
        unlabelled={
            (0, 0, 1): torch.tensor([[0.5, 0.5], [1.0, 0.0]]),
            (0, 1, 1): torch.tensor([[0.0, 1.0], [0.5, 0.5]]),
        },
    )
    courier = LocalCourier(clients, [], fake)
    world = open_world(method, clients, START)
    assert world.round == -1, "a warm-up comes first"

    world, labels = play(method, courier, world, {0, 1})  # the warm-up
    assert [fit.w.tolist() for fit in fake.fits] == [START.tolist()] * 2
    for fit in fake.fits:
        assert (fit.recipe.objective, fit.recipe.epochs) == ("alternate", 9)
        assert (len(fit.lesson.labelled), len(fit.lesson.unlabelled)) == (2, 0)
    assert not labels
    assert [(m.version, m.w.tolist()) for m in world.server.models] == [(1, [0, 1]), (1, [1, 1])]
    assert world.server.holds == ((Held(0, 1, 0.5),), (Held(1, 1, 0.5),))
    assert world.ledger.moved == {"warm-up": 2 * SIZE}
    assert fake.scored() == [(0, 0, 1), (1, 1, 1)]
    fake.fits.clear()

    world, labels = play(method, courier, world, {0})  # round 1: both search, client 0 trains
    (fit,) = fake.fits
    assert fit.w.tolist() == pytest.approx([0.6, 1.0])  # 0.4 [0, 1] + 0.6 [1, 1]
    assert fit.recipe == RECIPE
    assert fit.lesson.targets.tolist() == [[0.0, 1.0], [1.0, 0.0]], "the first from the helper, the second its own"
    assert fit.lesson.weights is None
    assert list(labels) == [0]
    assert labels[0].classes.tolist() == [1, 0]
    assert labels[0].taken.tolist() == [True, True]
    assert world.server.holds == ((Held(0, 2, 0.0), Held(1, 1, 0.75)), (Held(1, 1, 0.5), Held(0, 1, 0.0)))
    assert [(m.version, m.w.tolist()) for m in world.server.models] == [(2, [0, 2]), (1, [1, 1])]
    assert world.ledger.moved == {"warm-up": 2 * SIZE, "search": 2 * SIZE, "upload": SIZE}
    assert sorted(fake.scored()) == [(0, 0, 2), (0, 1, 1), (1, 0, 1)]
    fake.fits.clear()

    world, _ = play(method, courier, world, {1})  # round 2 = F: no search; only client 1 has an outdated copy
    (fit,) = fake.fits
    assert fit.w.tolist() == pytest.approx([2 / 3, 4 / 3])  # 2/3 [1, 1] + 1/3 [0, 2]: relations 1/2 and 1/4
    assert world.server.holds[1] == (Held(1, 2, 0.0), Held(0, 2, 0.25))
    assert world.ledger.moved == {"warm-up": 2 * SIZE, "search": 2 * SIZE, "refresh": SIZE, "upload": 2 * SIZE}
    assert sorted(fake.scored()) == [(1, 0, 2), (1, 1, 2)]
    assert world.ledger.up == 4 * SIZE
    assert world.ledger.down == 3 * SIZE


@pytest.mark.parametrize("t", [1, 2, 3, 4])
def test_every_client_searches_before_the_last_search_round_and_nobody_afterwards(t):
    method = um(M=3, R=2, F=3, nu=100)
    alone = Pool(tuple(Newest(1, model(j, 1)) for j in range(6)), tuple((Held(j, 1, 1.0),) for j in range(6)))
    briefs = [method.brief(alone, k, t, sampled=False) for k in range(6)]
    if t >= 3:
        assert briefs == [None] * 6
        return
    for k, brief in enumerate(briefs):
        assert brief is not None
        assert not brief.train
        assert len(brief.parcels) == len({p.client for p in brief.sent("search")}) == 2
        assert k not in {p.client for p in brief.parcels}


def test_candidates_are_newest_models_that_are_not_in_the_list():
    method = um(M=3, R=2, F=50)
    server = pool([1, 2, 3, 4, 5, 6], (0, 1, 0.5), (2, 3, 0.5), (4, 5, 0.5))
    seen = Counter()
    for t in range(1, 50, 2):
        brief = method.brief(server, 0, t, sampled=False)
        assert brief is not None
        found = {p.client for p in brief.sent("search")}
        assert len(found) == 2
        assert found <= {1, 3, 5}
        for p in brief.parcels:
            assert (p.version, p.w.tolist(), p.size) == (p.client + 1, [p.client, p.client + 1], 2)
        seen.update(found)
    assert set(seen) == {1, 3, 5}, "drawn anew each round"


def test_candidates_are_drawn_by_address():
    method = um(M=2, R=2, F=50)
    server = pool([1] * 9, (0, 1, 0.5))
    first = [causes(method.brief(server, 0, t, sampled=False)) for t in range(1, 9)]
    assert first == [causes(method.brief(server, 0, t, sampled=False)) for t in range(1, 9)]
    assert first != [causes(method.brief(server, 3, t, sampled=False)) for t in range(1, 9)]
    assert first != [causes(replace(method, seed=1).brief(server, 0, t, sampled=False)) for t in range(1, 9)]


def test_all_clients_draw_from_one_list_of_who_has_shared_a_model_in_the_order_of_their_numbers():
    """With thousands of clients a list for each took longer than the draws."""
    made: list[int] = []

    class Models(tuple):
        def __iter__(self):
            made.append(1)
            return super().__iter__()

    models = Models(Newest(j % 3, model(j, j % 3)) for j in range(40))
    server = Pool(models, tuple((Held(k, 1, 0.5), Held((k + 1) % 40, 1, 0.5)) for k in range(40)))
    for k in range(40):
        unheld = sorted({j for j in range(40) if j % 3} - {k, (k + 1) % 40})
        drawn = rng.generator(0, "helpers", 1, k).permutation(unheld)[:4].tolist()
        brief = um(M=2, R=4, F=2).brief(server, k, 1, sampled=False)
        assert brief is not None
        assert [p.client for p in brief.sent("search")] == drawn
    assert len(made) == 1


def test_clients_of_one_choice_draw_apart():
    """Clients 0 and 1 hold each other, so both choose among the same seven."""
    pair = ((Held(0, 1, 0.5), Held(1, 1, 0.5)),) * 2
    server = Pool(tuple(Newest(1, model(j, 1)) for j in range(9)), (*pair, *((Held(j, 1, 1.0),) for j in range(2, 9))))
    a, b = ([causes(um(M=2, R=2, F=50).brief(server, k, t, sampled=False)) for t in range(1, 9)] for k in (0, 1))
    assert a != b


def test_more_candidates_than_places_are_all_sent():
    brief = um(M=2, R=4, F=9).brief(pool([1] * 8, (0, 1, 0.5), (1, 1, 0.5)), 0, 1, sampled=True)
    assert len(causes(brief)["search"]) == 4


def test_who_has_shared_no_model_yet_is_offered_to_nobody():
    server = pool([1, 0, 1, 0], (0, 1, 0.5))
    assert causes(um(M=4, R=3, F=9).brief(server, 0, 1, sampled=False)) == {"search": [2]}
    assert causes(um(M=4, F=0).brief(server, 0, 1, sampled=True)) == {"fill": [2]}


def test_fewer_strangers_than_candidates_are_all_sent():
    assert causes(um(M=3, R=5, F=9).brief(pool([1, 1, 1], (0, 1, 0.5), (1, 1, 0.5)), 0, 1, sampled=False)) == {"search": [2]}


def test_a_refresh_sends_only_changed_versions():
    server = pool([3, 2, 2, 2, 5], (0, 1, 0.1), (1, 2, 0.2), (2, 1, 0.3), (4, 4, 0.4))
    brief = um(M=4, R=0, F=0, nu=5).brief(server, 0, 5, sampled=False)
    assert brief is not None
    assert [(p.cause, p.client, p.version, p.w.tolist()) for p in brief.parcels] == [
        ("refresh", 2, 2, [2, 2]),
        ("refresh", 4, 5, [4, 5]),
    ], "never the client's own model, whatever the pool has"


@pytest.mark.parametrize(("t", "due"), [(4, False), (5, True), (6, False), (10, True)])
def test_a_refresh_comes_every_nu_rounds(t, due):
    brief = um(M=2, R=0, F=0, nu=5).brief(pool([1, 2], (0, 1, 0.5), (1, 1, 0.5)), 0, t, sampled=False)
    assert causes(brief) == ({"refresh": [1]} if due else {})


def test_a_refresh_skips_the_least_related_while_searching_and_nobody_afterwards():
    server = pool([1, 2, 2, 2, 2, 2, 2, 2], (0, 1, 0.0), (1, 1, 0.4), (2, 1, 0.1), (3, 1, 0.3), (4, 1, 0.2))
    method = um(M=5, R=2, F=7, nu=3)
    assert causes(method.brief(server, 0, 6, sampled=False))["refresh"] == [1, 3], "2 and 4 are about to go"
    assert causes(method.brief(server, 0, 9, sampled=False)) == {"refresh": [1, 2, 3, 4]}


def test_a_short_list_is_filled_for_training_alone():
    server = pool([1] * 8, (0, 1, 0.5), (3, 1, 0.5))
    method = um(M=5, R=2, F=3, nu=100)
    assert causes(method.brief(server, 0, 5, sampled=False)) == {}
    filled = causes(method.brief(server, 0, 5, sampled=True))["fill"]
    assert len(filled) == 3
    assert not {0, 3} & set(filled)
    both = causes(method.brief(server, 0, 2, sampled=True))
    assert (len(both["search"]), len(both["fill"])) == (2, 1), "candidates take places first"
    assert not set(both["search"]) & set(both["fill"])
    assert list(causes(method.brief(server, 0, 2, sampled=False))) == ["search"], "who does not train needs no more"


def test_a_full_list_is_not_filled():
    server = pool([1] * 8, (0, 1, 0.5), (3, 1, 0.5), (4, 1, 0.5))
    assert causes(um(M=3, F=0, nu=100).brief(server, 0, 1, sampled=True)) == {}
    brief = um(M=3, F=0, nu=100).brief(server, 0, 1, sampled=True)
    assert brief is not None, "it trains all the same"
    assert brief.train


def test_a_list_longer_than_the_federation_takes_everyone():
    assert causes(um(M=9, F=0).brief(pool([1] * 4, (0, 1, 0.5)), 0, 1, sampled=True)) == {"fill": [1, 2, 3]}


def visit(method, fake, state, t, *parcels, train=False, labelled=4, unlabelled=1):
    return fake.run(method.visit(client(0, labelled, unlabelled), state, Brief(t, train, parcels)))


def test_a_more_related_candidate_takes_the_least_related_place_and_a_less_related_one_does_not():
    method, fake = um(M=3, terms="accuracy"), Village(right={(0, 4, 1): 2, (0, 5, 1): 1})
    state = listed(3, (0, 1, 0.0), (1, 1, 0.75), (2, 1, 0.25))
    reply = visit(method, fake, state, 1, parcel("search", 4, 1), parcel("search", 5, 1))
    assert lines(reply.state) == [(0, 1, 0.0), (1, 1, 0.75), (4, 1, 0.5)]
    assert reply.holds == (Held(0, 1, 0.0), Held(1, 1, 0.75), Held(4, 1, 0.5))
    assert reply.parcels == ()
    assert reply.loss is None
    assert not fake.fits


def test_an_equally_related_candidate_is_refused_and_not_scored_again():
    method, fake, state = um(M=2, terms="accuracy"), Village(right={(0, 4, 1): 1}), listed(2, (0, 1, 1.0), (2, 1, 0.25))
    for scored in ([(0, 4, 1)], []):
        state = visit(method, fake, state, 1, parcel("search", 4, 1)).state
        assert lines(state) == [(0, 1, 1.0), (2, 1, 0.25)]
        assert fake.scored() == scored


@pytest.mark.parametrize("own", [0.0, 1.0])  # its own model has no place to lose
def test_a_refused_candidate_is_scored_again_only_at_a_new_version(own):
    method, fake = um(M=2, terms="accuracy"), Village(right={(0, 4, 1): 1, (0, 4, 2): 4})
    state = listed(2, (0, 1, own), (2, 1, 0.5))
    state = visit(method, fake, state, 1, parcel("search", 4, 1)).state
    assert fake.scored() == [(0, 4, 1)]
    state = visit(method, fake, state, 2, parcel("search", 4, 1)).state
    assert fake.scored() == []
    assert lines(state) == [(0, 1, own), (2, 1, 0.5)]
    state = visit(method, fake, state, 3, parcel("search", 4, 2)).state
    assert fake.scored() == [(0, 4, 2)]
    assert lines(state) == [(0, 1, own), (4, 2, 1.0)]


def test_a_refused_candidate_joins_at_the_same_version_once_the_list_has_become_worse():
    method, fake = um(M=2, terms="accuracy"), Village(right={(0, 4, 1): 2, (0, 2, 2): 1})
    state = visit(method, fake, listed(2, (0, 1, 1.0), (2, 1, 0.75)), 1, parcel("search", 4, 1)).state
    assert lines(state) == [(0, 1, 1.0), (2, 1, 0.75)]
    state = visit(method, fake, state, 2, parcel("refresh", 2, 2)).state
    assert lines(state) == [(0, 1, 1.0), (2, 2, 0.25)]
    state = visit(method, fake, state, 3, parcel("search", 4, 1)).state
    assert lines(state) == [(0, 1, 1.0), (4, 1, 0.5)]


def test_a_helper_that_lost_its_place_is_not_scored_again_at_the_same_version():
    method, fake = um(M=2, terms="accuracy"), Village(right={(0, 2, 1): 2, (0, 4, 1): 3})
    state = visit(method, fake, listed(2, (0, 1, 1.0), (2, 1, 0.5)), 1, parcel("search", 4, 1)).state
    assert lines(state) == [(0, 1, 1.0), (4, 1, 0.75)]
    assert fake.scored() == [(0, 4, 1)]
    state = visit(method, fake, state, 2, parcel("search", 2, 1)).state
    assert lines(state) == [(0, 1, 1.0), (4, 1, 0.75)]
    assert fake.scored() == [], "its relation at this version is known, and too small"


def test_a_helper_is_scored_when_it_comes_and_never_again_at_that_version():
    method, fake = um(M=3, terms="accuracy", nu=2, F=2), Village(right={(0, 1, 1): 3, (0, 2, 1): 2})
    state = visit(method, fake, listed(3, (0, 1, 0.5)), 1, parcel("search", 1, 1)).state
    assert fake.scored() == [(0, 1, 1)]
    state = visit(method, fake, state, 2, parcel("fill", 2, 1), train=True).state
    assert fake.scored() == [(0, 2, 1), (0, 0, 1)], "the newcomer and the client's own new model"
    state = visit(method, fake, state, 3, train=True).state
    assert fake.scored() == [(0, 0, 2)]
    visit(method, fake, state, 4, parcel("refresh", 1, 2), train=True)
    assert fake.scored() == [(0, 1, 2), (0, 0, 3)]


def test_a_refreshed_helper_is_used_in_its_new_version_at_once():
    method, fake = um(M=2, terms="accuracy"), Village(right={(0, 1, 2): 4})
    state = listed(2, (0, 3, 1.0), (1, 1, 0.0))
    visit(method, fake, state, 4, parcel("refresh", 1, 2), train=True)
    assert fake.fits[0].w.tolist() == [0.5, 2.5]  # (1 * [0, 3] + 1 * [1, 2]) / 2


def test_a_refresh_of_a_helper_that_was_replaced_in_the_same_round_is_dropped():
    method, fake = um(M=2, terms="accuracy"), Village(right={(0, 4, 1): 4, (0, 1, 2): 4})
    state = visit(method, fake, listed(2, (0, 1, 0.5), (1, 1, 0.0)), 2, parcel("search", 4, 1), parcel("refresh", 1, 2)).state
    assert lines(state) == [(0, 1, 0.5), (4, 1, 1.0)]
    assert fake.scored() == [(0, 4, 1)]


def test_the_average_weighs_by_relation():
    method, fake = um(M=3), Village()
    visit(method, fake, listed(3, (0, 8, 0.25), (1, 4, 0.5), (2, 0, 0.25)), 1, train=True)
    assert fake.fits[0].w.tolist() == [1.0, 4.0]  # [0, 8] / 4 + [1, 4] / 2 + [2, 0] / 4


def test_without_any_relation_the_average_is_the_plain_mean():
    method, fake = um(M=2), Village()
    visit(method, fake, listed(2, (0, 8, 0.0), (1, 4, 0.0)), 1, train=True)
    assert fake.fits[0].w.tolist() == [0.5, 6.0]


def test_every_pseudo_label_is_the_answer_of_the_least_uncertain_helper():
    answers = {
        (0, 0, 1): torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]]),
        (0, 1, 1): torch.tensor([[0.125, 0.875], [0.75, 0.25], [0.5, 0.5]]),
        (0, 2, 1): torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.375, 0.625]]),
    }
    method, fake = um(M=3), Village(unlabelled=answers)
    helpers = tuple(Helper(j, 1, model(j, 1), Score(0.5, answers[0, j, 1])) for j in range(3))
    reply = visit(method, fake, UmState(HelperList(0, helpers, 3)), 1, train=True, unlabelled=3)
    assert fake.fits[0].lesson.targets.tolist() == [[0.125, 0.875], [1.0, 0.0], [0.25, 0.75]]
    assert reply.labels.classes.tolist() == [1, 0, 1]
    assert reply.labels.who.tolist() == [1, 2, 0]
    assert reply.labels.entropy.tolist() == pytest.approx([0.376770, 0, 0.562335], abs=1e-6)


def test_the_record_names_the_client_that_labelled_and_not_its_place_in_the_list():
    sure, unsure = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
    helpers = (Helper(0, 1, model(0, 1), Score(0.5, unsure)), Helper(7, 1, model(7, 1), Score(0.5, sure)))
    reply = visit(um(M=2), Village(), UmState(HelperList(0, helpers, 2)), 1, train=True)
    assert reply.labels.who.tolist() == [7]


def test_who_joins_late_and_finds_nobody_labels_by_its_own_model():
    method = um(M=2)
    fake = Village(unlabelled={(0, -1, 0): torch.tensor([[0.25, 0.75]])})
    visit(method, fake, method.greet(client(0, 4, 1), START), 3, train=True)
    assert fake.fits[0].lesson.targets.tolist() == [[0.25, 0.75]]


def test_who_joins_late_is_labelled_by_the_helpers_that_it_finds_and_not_by_its_own_untrained_model():
    method = um(M=2)
    fake = Village(unlabelled={(0, -1, 0): torch.tensor([[1.0, 0.0]]), (0, 1, 2): torch.tensor([[0.25, 0.75]])})
    reply = visit(method, fake, method.greet(client(0, 4, 1), START), 3, parcel("fill", 1, 2), train=True)
    assert fake.fits[0].lesson.targets.tolist() == [[0.25, 0.75]]
    assert reply.labels.who.tolist() == [1]
    assert fake.scored() == [(0, 1, 2), (0, 0, 1)]


@pytest.mark.parametrize("cause", ["search", "refresh", "fill"])
def test_a_model_that_answers_no_numbers_becomes_nobodys_helper(cause):
    fake = Village(unlabelled={(0, 1, 2): torch.full((1, 2), torch.nan)})
    had = [(0, 1, 0.5), (1, 1, 0.25)] if cause == "refresh" else [(0, 1, 0.5)]
    reply = visit(um(M=3), fake, listed(3, *had), 1, parcel(cause, 1, 2), train=True)
    assert lines(reply.state)[1:] == had[1:]
    assert fake.fits[0].w.isfinite().all()


def test_the_own_model_goes_up_one_version_on():
    reply = visit(um(M=2), Village(), listed(2, (0, 6, 0.5), (1, 1, 0.5)), 1, train=True)
    (up,) = reply.parcels
    assert (up.cause, up.client, up.version, up.w.tolist(), up.size) == ("upload", 0, 7, [0, 1], 2)
    assert reply.state.helpers.own.w.tolist() == [0, 1]
    server = um(M=2).merge(pool([4, 1], (0, 4, 0.5)), {0: reply}, 1)  # it has missed two
    assert [(m.version, m.w.tolist()) for m in server.models] == [(7, [0, 1]), (1, [1, 1])]
    assert server.holds[0] == reply.holds
    assert server.holds[1] == (Held(1, 1, 1.0),)


@pytest.mark.parametrize(
    ("terms", "half_right", "all_right"), [("both", 0.5, 0.625), ("entropy", 0.5, 0.5), ("accuracy", 0.5, 1.0)]
)
def test_the_relation_takes_the_terms_that_were_asked_for(terms, half_right, all_right):
    """Two labelled and six unlabelled pictures: mu = 1/4. Half of the six answers are certain: H_bar = 1/2."""
    p = torch.tensor([[0.5, 0.5], [1.0, 0.0]]).repeat(3, 1)
    for right, expected in ((1, half_right), (2, all_right)):
        fake = Village(right={(0, 1, 1): right}, unlabelled={(0, 1, 1): p})
        state = listed(2, (0, 1, 0.5))
        reply = visit(um(M=2, terms=terms), fake, state, 1, parcel("search", 1, 1), labelled=2, unlabelled=6)
        assert reply.holds[1].relation == pytest.approx(expected)


def test_uncertainty_takes_dropout_passes_on_unlabelled_and_accuracy_none_on_labelled_pictures():
    fake = Village()
    visit(um(M=2, T=7), fake, listed(2, (0, 1, 0.5)), 1, parcel("search", 1, 1), labelled=2, unlabelled=3)
    mc, plain = fake.predicts
    assert (mc.passes, mc.rows.tolist()) == (7, [2, 3, 4])
    assert (plain.passes, plain.rows.tolist()) == (0, [0, 1])


def test_the_same_model_draws_the_same_dropout_whenever_it_is_scored():
    keys = []
    for t, j, version in [(1, 1, 1), (5, 1, 1), (1, 1, 2), (1, 2, 1)]:
        fake = Village()
        visit(um(M=2), fake, listed(2, (0, 1, 0.5)), t, parcel("search", j, version))
        keys.append(fake.predicts[0].key)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_a_visit_leaves_the_old_state_as_it_was():
    state = listed(2, (0, 1, 1.0), (1, 1, 0.25))
    before = lines(state)
    visit(um(M=2, terms="accuracy"), Village(right={(0, 4, 1): 4}), state, 1, parcel("search", 4, 1), train=True)
    assert lines(state) == before
    assert state.refused == ()
