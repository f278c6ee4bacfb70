"""The helper list (Algorithms 2 and 3)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kithkin.helpers import Helper, HelperList, Score

OWNER = 0


def helper(client: int, relation: float | None = None, version: int = 1) -> Helper:
    score = None if relation is None else Score(relation, torch.zeros(0, 2))
    return Helper(client, version, torch.zeros(1), score)


def listing(M: int, *others: tuple[int, float], own: float = 0.1) -> HelperList:
    return HelperList(OWNER, (helper(OWNER, own), *(helper(j, corr) for j, corr in others)), M)


def clients(helpers: HelperList) -> list[int]:
    return [h.client for h in helpers]


# -- test_and_set -------------------------------------------------------------------------------------------------------------


def test_a_candidate_joins_while_there_is_room():
    assert clients(listing(3, (1, 0.9)).test_and_set([helper(2, 0.0)])) == [0, 1, 2]


def test_in_a_full_list_it_takes_the_place_of_the_least_related():
    full = listing(4, (1, 0.9), (2, 0.3), (3, 0.5))
    assert clients(full.test_and_set([helper(7, 0.4)])) == [0, 1, 7, 3]


@pytest.mark.parametrize("corr", [0.2, 0.3])
def test_it_must_beat_the_least_related(corr: float):
    full = listing(4, (1, 0.9), (2, 0.3), (3, 0.5))
    assert clients(full.test_and_set([helper(7, corr)])) == [0, 1, 2, 3]


def test_the_owner_is_never_replaced():
    assert clients(listing(2, (1, 0.9), own=0.0).test_and_set([helper(7, 0.5), helper(8, 1.0)])) == [0, 8]
    assert clients(listing(1, own=0.0).test_and_set([helper(7, 1.0)])) == [0]


def test_candidates_are_tried_one_after_another():
    full = listing(3, (1, 0.2), (2, 0.4))
    assert clients(full.test_and_set([helper(5, 0.3), helper(6, 0.35), helper(7, 0.39)])) == [0, 7, 2]
    assert clients(full.test_and_set([helper(5, 0.6), helper(6, 0.7), helper(7, 0.5)])) == [0, 5, 6]


def test_room_goes_first_to_whoever_comes_first_and_then_to_the_better():
    assert clients(listing(2).test_and_set([helper(5, 0.1), helper(6, 0.2), helper(7, 0.15)])) == [0, 6]


def test_a_candidate_that_is_in_the_list_or_comes_twice_changes_nothing():
    full = listing(3, (1, 0.2), (2, 0.4))
    after = full.test_and_set([helper(1, 0.9, version=2), helper(OWNER, 0.9, version=2)])
    assert [(h.client, h.version, h.relation) for h in after] == [(0, 1, 0.1), (1, 1, 0.2), (2, 1, 0.4)]
    assert clients(listing(4).test_and_set([helper(5, 0.5), helper(5, 0.6)])) == [0, 5]


def test_an_unscored_helper_has_no_relation_and_goes_first():
    assert helper(1).relation == 0
    full = HelperList(OWNER, (helper(OWNER), helper(1), helper(2, 0.1)), 3)
    assert clients(full.test_and_set([helper(7, 0.05)])) == [0, 7, 2]


# -- refresh and fill ---------------------------------------------------------------------------------------------------------


def test_refresh_puts_newer_versions_in_their_places_and_ignores_strangers():
    before = listing(4, (1, 0.9), (2, 0.3))
    after = before.refresh([helper(2, 0.8, version=3), helper(9, 1.0, version=5), helper(OWNER, 0.5, version=2)])
    assert [(h.client, h.version, h.relation) for h in after] == [(0, 2, 0.5), (1, 1, 0.9), (2, 3, 0.8)]
    assert clients(before.refresh([])) == [0, 1, 2]


def test_fill_takes_strangers_while_there_is_room():
    assert clients(listing(4, (1, 0.9)).fill([helper(1, 0.0), helper(5, 0.2), helper(6, 0.9), helper(7, 1.0)])) == [0, 1, 5, 6]
    assert clients(listing(2, (1, 0.9)).fill([helper(5, 1.0)])) == [0, 1]


def test_nothing_is_changed_in_place():
    before = listing(3, (1, 0.2), (2, 0.4))
    before.test_and_set([helper(7, 0.9)])
    before.refresh([helper(1, 0.9, version=2)])
    assert [(h.client, h.version) for h in before] == [(0, 1), (1, 1), (2, 1)]


# -- looking at a list --------------------------------------------------------------------------------------------------------


def test_a_list_without_its_owner_a_double_or_one_too_long_cannot_be():
    for wrong in ((helper(1),), (helper(OWNER), helper(1), helper(1)), (helper(OWNER), helper(1), helper(2), helper(3))):
        with pytest.raises(AssertionError):
            HelperList(OWNER, wrong, 3)


def test_own_members_and_order():
    helpers = HelperList(2, (helper(1, 0.5), helper(2, 0.1), helper(3, 0.9), helper(4, 0.5)), 5)
    assert helpers.own.client == 2
    assert len(helpers) == 4
    assert 3 in helpers
    assert 0 not in helpers
    assert [h.client for h in helpers.best_first()] == [3, 1, 4, 2]


def test_the_next_version_of_a_helper_is_unscored():
    newer = helper(3, 0.7, version=4).next(torch.ones(1))
    assert (newer.client, newer.version, newer.score, newer.w.item()) == (3, 5, None, 1)


# -- any sequence of changes --------------------------------------------------------------------------------------------------

ARRIVAL = st.tuples(st.integers(0, 9), st.floats(0, 1), st.integers(0, 5)).map(lambda x: helper(*x))
CHANGE = st.tuples(
    st.sampled_from(["test_and_set", "refresh", "fill"]), st.lists(ARRIVAL, max_size=5, unique_by=lambda h: h.client)
)


@given(st.integers(1, 5), st.lists(CHANGE, max_size=8))
def test_a_list_stays_a_list_whatever_comes(M: int, changes: list[tuple[str, list[Helper]]]):
    now = listing(M)
    for change, arrivals in changes:
        before, now = now, getattr(now, change)(arrivals)
        assert len(now) <= M
        assert len(set(clients(now))) == len(now) >= len(before)
        assert clients(now)[0] == OWNER
        if change == "refresh":
            assert clients(now) == clients(before)
        if change == "fill":
            assert now.helpers[: len(before)] == before.helpers


@given(st.integers(2, 5), st.lists(ARRIVAL, max_size=12))
def test_searching_never_makes_a_full_list_less_related(M: int, arrivals: list[Helper]):
    full = listing(M, *((10 + j, 0.5) for j in range(M - 1)))
    after = full.test_and_set(arrivals)
    assert len(after) == M
    for old, new in zip(full, after, strict=True):
        assert new is old or new.relation > old.relation


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(1, 9), st.floats(0, 1)), max_size=12, unique_by=lambda x: x[0]))
def test_searching_keeps_the_most_related_of_all_that_came(M: int, arrivals: list[tuple[int, float]]):
    after = listing(M).test_and_set([helper(*x) for x in arrivals])
    kept = sorted((h.relation for h in after if h.client != OWNER), reverse=True)
    assert kept == sorted((corr for _, corr in arrivals), reverse=True)[: M - 1]
