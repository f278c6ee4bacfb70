"""Which pictures each step sees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kithkin.compute import Recipe, batches, schedule
from kithkin.compute.plan import Batch, Step

SIZES = st.integers(1, 9)
COUNTS = st.integers(0, 40)
KEYS = st.integers(0, 2**63 - 1)


def recipe(objective: str, size: int = 4, epochs: int = 2) -> Recipe:
    return Recipe(objective, epochs, size, lr=0.1)


def epoch(n: int, size: int, seed: int = 0) -> list[Batch]:
    return list(batches(n, size, np.random.default_rng(seed)))


def real(batch: Batch) -> list[int]:
    return batch.rows[batch.weights > 0].tolist()


def seen(parts: list[Batch]) -> list[int]:
    return [row for batch in parts for row in real(batch)]


def same(a: list[Step], b: list[Step]) -> bool:
    def lines(steps: list[Step]) -> list:
        return [[half and (half.rows.tolist(), half.weights.tolist()) for half in (s.labelled, s.unlabelled)] for s in steps]

    return lines(a) == lines(b)


@given(COUNTS, SIZES, st.integers(0, 99))
def test_an_epoch_takes_every_sample_once_in_full_batches(n: int, size: int, seed: int):
    parts = epoch(n, size, seed)
    assert len(parts) == -(-n // size)
    assert sorted(seen(parts)) == list(range(n))
    for batch in parts:
        assert batch.rows.shape == batch.weights.shape == (size,)
        assert batch.rows.dtype == np.int64
        assert batch.weights.dtype == np.float32
        assert batch.rows.min() >= 0
        assert batch.rows.max() < n


@given(st.integers(1, 40), SIZES)
def test_real_rows_come_first_and_share_the_weight_and_fillers_have_none(n: int, size: int):
    for number, batch in enumerate(epoch(n, size)):
        count = min(size, n - number * size)
        assert batch.weights.tolist() == [np.float32(1 / count)] * count + [0] * (size - count)
        assert batch.weights.sum() == pytest.approx(1)


@given(st.integers(2, 40), st.integers(2, 9))
def test_fillers_are_other_samples_where_there_are_any(n: int, size: int):
    *_, last = epoch(n, size)
    assert len(set(last.rows.tolist())) >= 2


def test_one_sample_fills_its_batch():
    (batch,) = epoch(1, 4)
    assert batch.rows.tolist() == [0, 0, 0, 0]
    assert batch.weights.tolist() == [1, 0, 0, 0]


def test_no_samples_give_no_batch():
    assert epoch(0, 4) == []


def test_the_order_is_drawn_anew_in_each_epoch():
    draw = np.random.default_rng(0)
    first, second = (seen(list(batches(50, 8, draw))) for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second)


@given(COUNTS, COUNTS, SIZES, st.integers(0, 3), KEYS)
def test_alternate_passes_over_the_labelled_then_over_the_unlabelled(n_s: int, n_u: int, size: int, epochs: int, key: int):
    steps = schedule(n_s, n_u, recipe("alternate", size, epochs), key)
    s, u = -(-n_s // size), -(-n_u // size)
    assert [(bool(x.labelled), bool(x.unlabelled)) for x in steps] == ([(True, False)] * s + [(False, True)] * u) * epochs
    for start in range(0, len(steps), max(1, s + u)):
        part = steps[start : start + s + u]
        assert sorted(seen([x.labelled for x in part if x.labelled])) == list(range(n_s))
        assert sorted(seen([x.unlabelled for x in part if x.unlabelled])) == list(range(n_u))


@pytest.mark.parametrize("objective", ["weighted", "fixmatch"])
@given(n_s=COUNTS, n_u=COUNTS, size=SIZES, epochs=st.integers(0, 3), key=KEYS)
def test_shared_steps_go_through_the_longer_list_once_an_epoch(
    objective: str, n_s: int, n_u: int, size: int, epochs: int, key: int
):
    steps = schedule(n_s, n_u, recipe(objective, size, epochs), key)
    assert len(steps) == -(-max(n_s, n_u) // size) * epochs
    for n, parts in ((n_s, [s.labelled for s in steps]), (n_u, [s.unlabelled for s in steps])):
        if n == 0:
            assert not any(parts)
            continue
        assert all(parts)
        per_pass = -(-n // size)
        for start in range(0, len(parts) // per_pass * per_pass, per_pass):  # the shorter list: pass after pass
            assert sorted(seen(parts[start : start + per_pass])) == list(range(n))


@pytest.mark.parametrize("objective", ["alternate", "weighted", "fixmatch"])
def test_no_data_no_steps(objective: str):
    assert schedule(0, 0, recipe(objective), 1) == []


@pytest.mark.parametrize("objective", ["alternate", "weighted", "fixmatch"])
def test_the_key_decides(objective: str):
    first = schedule(9, 17, recipe(objective), 1)
    assert same(first, schedule(9, 17, recipe(objective), 1))
    assert not same(first, schedule(9, 17, recipe(objective), 2))


@pytest.mark.parametrize("objective", ["alternate", "weighted", "fixmatch"])
def test_the_labelled_order_does_not_hang_on_the_unlabelled_data(objective: str):
    alone = [s.labelled for s in schedule(17, 0, recipe(objective), 1)]
    beside = [s.labelled for s in schedule(17, 9, recipe(objective), 1) if s.labelled]
    assert seen(alone) == seen(beside)


@pytest.mark.parametrize("objective", ["alternate", "weighted", "fixmatch"])
def test_the_two_halves_are_shuffled_apart(objective: str):
    steps = schedule(17, 17, recipe(objective), 1)
    assert seen([s.labelled for s in steps if s.labelled]) != seen([s.unlabelled for s in steps if s.unlabelled])


def test_more_epochs_begin_like_fewer():
    short, long = (schedule(9, 5, recipe("alternate", epochs=e), 1) for e in (1, 3))
    assert same(long[: len(short)], short)
