"""The split: a partition, the same for the same seed, and never a NaN or an endless loop."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kithkin.data import Dataset, Share, Split, deal, load, split_of
from kithkin.data.split import _counts, _dirichlet, _parts, label_some
from kithkin.errors import KithkinError
from kithkin.rng import generator

PARTS = ("labelled", "unlabelled", "val", "test")
NONE = np.zeros(0, np.int64)


def everything(split: Split) -> np.ndarray:
    return np.concatenate([getattr(share, part) for share in split.shares for part in PARTS])


def try_deal(*args, **kwargs) -> Split | None:
    try:
        return deal(*args, **kwargs)
    except KithkinError:
        return None


@settings(max_examples=80, deadline=None)
@given(
    pictures=st.integers(20, 400),
    classes=st.integers(2, 6),
    clients=st.integers(1, 8),
    alpha=st.sampled_from([0.01, 0.1, 0.5, 1.0, 10.0, 1e6]),
    seed=st.integers(0, 2**40),
    label_ratio=st.none() | st.floats(0, 1),
)
def test_split_is_a_partition_and_the_same_for_the_same_seed(pictures, classes, clients, alpha, seed, label_ratio):
    labels = np.random.default_rng(seed).integers(0, classes, pictures)
    split = try_deal(labels, clients, alpha, seed, label_ratio)
    assume(split is not None)
    assert split is not None
    assert len(split.shares) == clients
    assert np.array_equal(np.sort(everything(split)), np.arange(pictures))
    assert sum(len(share.train) for share in split.shares) == round(0.7 * pictures)
    assert sum(len(share.train) + len(share.val) for share in split.shares) == round(0.8 * pictures)
    assert all(len(share.train) and len(share.test) for share in split.shares)
    assert all(getattr(share, part).dtype == np.int64 for share in split.shares for part in PARTS)
    assert split.digest() == deal(labels, clients, alpha, seed, label_ratio).digest()


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(3, 40), min_size=1, max_size=6),
    seed=st.integers(0, 2**40),
    label_ratio=st.none() | st.floats(0, 1),
)
def test_every_client_keeps_its_own_pictures_and_the_same_for_the_same_seed(sizes, seed, label_ratio):
    owners = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    data = Dataset("mine", np.zeros((len(owners), 1, 8, 8), np.uint8), owners % 2, ("a", "b"), False, owners)
    split = split_of(data, len(sizes), "given", seed, label_ratio)
    assert len(split.shares) == len(sizes)
    for k, (share, size) in enumerate(zip(split.shares, sizes, strict=True)):
        own = np.concatenate([getattr(share, part) for part in PARTS])
        assert np.sort(own).tolist() == np.flatnonzero(owners == k).tolist()
        assert (len(share.train), len(share.train) + len(share.val)) == (round(0.7 * size), round(0.8 * size))
        assert len(share.train)
        assert len(share.test)
    assert split.digest() == split_of(data, len(sizes), "given", seed, label_ratio).digest()
    others = replace(data, labels=1 - data.labels), replace(data, classes=("b", "a"))
    assert split.digest() not in [split_of(other, len(sizes), "given", seed, label_ratio).digest() for other in others]


def test_clients_of_one_size_are_shuffled_apart():
    owners = np.repeat([0, 1], 40)
    data = Dataset("mine", np.zeros((80, 1, 8, 8), np.uint8), owners % 2, ("a", "b"), False, owners)
    first, second = split_of(data, 2, "given", 0, 1.0).shares
    assert np.sort(first.test).tolist() != np.sort(second.test - 40).tolist()
    first, second = split_of(data, 2, "given", 0).shares
    assert first.label_ratio != second.label_ratio, "each draws its own"


def test_every_draw_follows_the_seed():
    """What each client has, how much, which of it has labels; and what becomes of pictures that are dealt already."""
    one, other = (deal(np.arange(300) % 3, 1, 1.0, seed, 0.5).shares[0] for seed in (0, 1))
    assert set(one.test) != set(other.test)
    one, other = ([len(share.train) for share in deal(np.zeros(300, np.int64), 4, 5.0, seed).shares] for seed in (0, 1))
    assert one != other
    one, other = (label_some(seed, 0, 0.5, np.arange(40), NONE, NONE).labelled for seed in (0, 1))
    assert set(one) != set(other)
    data = Dataset("mine", np.zeros((40, 1, 8, 8), np.uint8), np.arange(40) % 2, ("a", "b"), False, np.zeros(40, np.int64))
    one, other = (split_of(data, 1, "given", seed).shares[0] for seed in (0, 1))
    assert set(one.test) != set(other.test)


def test_alpha_deals_what_would_else_be_kept():
    data = replace(load("digits"), owners=np.arange(1797) % 3)
    assert [len(share.train) for share in split_of(data, 3, "given", 4).shares] == [419, 419, 419]
    assert split_of(data, 5, 0.5, 4, 0.1).digest() == deal(data.labels, 5, 0.5, 4, 0.1).digest()


@pytest.mark.parametrize(
    ("owners", "clients", "problem"),
    [
        (None, 3, "digits does not say whose"),
        (np.arange(1797) % 3, 4, "belong to 3 clients, not 4"),
        (np.arange(1797) % 3, 2, "belong to 3 clients, not 2"),
        (np.minimum(np.arange(1797), 2), 3, "Client 0 (far) of digits has 1 pictures"),
        (np.minimum(np.arange(1797) // 2, 1), 2, "Client 0 (far) of digits has 2 pictures"),
    ],
)
def test_clients_that_cannot_be_are_told(owners, clients, problem):
    with pytest.raises(KithkinError, match=re.escape(problem)) as caught:
        split_of(replace(load("digits"), owners=owners, clients=("far", "1", "2")), clients, "given", 0)
    assert caught.value.remedy


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), low=st.floats(0, 1), high=st.floats(0, 1))
def test_label_ratio_changes_only_which_pictures_have_labels(seed, low, high):
    low, high = sorted((low, high))
    labels = np.arange(300) % 4
    drawn, few, many = (deal(labels, 4, 5.0, seed, ratio) for ratio in (None, low, high))
    for a, b, c in zip(drawn.shares, few.shares, many.shares, strict=True):
        assert a.train.tolist() == b.train.tolist() == c.train.tolist()
        assert a.val.tolist() == b.val.tolist() == c.val.tolist()
        assert a.test.tolist() == b.test.tolist() == c.test.tolist()
        assert set(b.labelled) <= set(c.labelled)
        assert abs(b.label_ratio - low) <= 0.5 / len(b.train) + 1e-9


def test_one_client_gets_it_all():
    (share,) = deal(np.array([0, 1] * 10), 1, 0.5, 3, label_ratio=0.5).shares
    assert (len(share.labelled), len(share.unlabelled), len(share.val), len(share.test)) == (7, 7, 2, 4)
    assert share.label_ratio == 0.5


@pytest.mark.parametrize(("ratio", "labelled"), [(0.0, 0), (1.0, 7), (0.5, 4), (0.07, 0), (0.08, 1)])
def test_labelled_pictures_are_rounded_half_up(ratio, labelled):
    (share,) = deal(np.arange(10) % 2, 1, 1.0, 0, ratio).shares
    assert len(share.labelled) == labelled
    assert share.label_ratio == labelled / 7


def test_even_proportions_deal_evenly():
    """With alpha without bound every p_c is (1/4, ...), so the counts can be worked out by hand."""
    split = deal(np.arange(4000) % 2, 4, 1e9, 0)
    for share in split.shares:
        assert len(share.train) == pytest.approx(700, abs=4)
        assert len(share.val) == pytest.approx(100, abs=4)
        assert len(share.test) == pytest.approx(200, abs=4)


def test_counts_add_up_and_follow_the_proportions():
    class Half:
        def random(self, size):
            return np.full(size, 0.5)

    proportions = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]])
    counts = _counts(proportions, np.array([8, 5, 0]), Half())  # type: ignore[arg-type]
    assert counts.tolist() == [[4, 2, 2], [0, 5, 0], [0, 0, 0]]


def test_rounding_favours_no_client():
    rng = generator(0, "test")
    even = np.full((2000, 4), 0.25)
    mean = _counts(even, np.full(2000, 3), rng).mean(0)
    assert mean == pytest.approx(np.full(4, 0.75), abs=0.05)


def test_the_three_parts_share_a_clients_label_distribution():
    labels = np.arange(20_000) % 5
    for share in deal(labels, 5, 0.5, 1).shares:
        train, test = (np.bincount(labels[part], minlength=5) / len(part) for part in (share.train, share.test))
        assert np.abs(train - test).max() < 0.03


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-5, 0.01, 0.5, 3.0, 1e300])
def test_dirichlet_rows_are_finite_and_sum_to_one(alpha):
    rows = _dirichlet(generator(0, "test"), alpha, (50, 7))
    assert np.isfinite(rows).all()
    assert rows.sum(1) == pytest.approx(np.ones(50))


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_dirichlet_has_the_right_mean_and_variance(alpha):
    rows = _dirichlet(generator(1, "test"), alpha, (40_000, 4))
    assert rows.mean(0) == pytest.approx(np.full(4, 0.25), abs=0.01)
    assert rows.var(0) == pytest.approx(np.full(4, 0.25 * 0.75 / (4 * alpha + 1)), rel=0.05)


def test_realistic_federations_can_be_dealt():
    fashion, digits = np.arange(70_000) % 10, load("digits").labels
    for seed in range(21):
        for split in (deal(fashion, 100, 0.5, seed), deal(digits, 20, 0.5, seed)):
            assert all(len(share.train) and len(share.val) and len(share.test) for share in split.shares)


def test_label_ratios_are_drawn_from_both_ends():
    ratios = np.array([share.label_ratio for share in deal(np.arange(70_000) % 10, 100, 0.5, 0).shares])
    assert ratios.min() < 0.05
    assert ratios.max() > 0.95
    assert ratios.mean() == pytest.approx(0.5, abs=0.15)


def test_too_small_for_validation_pictures_is_allowed():
    split = deal(np.arange(20) % 2, 3, 100.0, 0)
    assert sum(len(share.val) for share in split.shares) == 2
    assert all(len(share.train) and len(share.test) for share in split.shares)


@pytest.mark.parametrize("seed", range(5))
def test_one_validation_picture_each_is_not_too_few(seed):
    assert [len(share.val) for share in deal(np.zeros(40, np.int64), 4, 5.0, seed).shares] == [1] * 4


def test_a_draw_that_cannot_serve_everyone_ends_in_an_error_that_says_why():
    with pytest.raises(KithkinError, match=r"With 20 clients and alpha 0\.01, 100 draws on mine") as caught:
        deal(np.arange(2000) % 2, 20, 0.01, 0, name="mine")
    assert caught.value.remedy == "Use fewer clients or a larger alpha."


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"clients": 0}, "0 clients"),
        ({"clients": 21}, "21 clients cannot share the 100 pictures of data: 20 are for testing"),
        ({"alpha": 0.0}, "alpha 0"),
        ({"alpha": -1.0}, "alpha -1"),
        ({"alpha": float("nan")}, "alpha nan"),
        ({"alpha": float("inf")}, "alpha inf"),
        ({"label_ratio": -0.1}, "label-ratio is -0.1"),
        ({"label_ratio": 1.1}, "label-ratio is 1.1"),
        ({"label_ratio": float("nan")}, "label-ratio is nan"),
        ({"labels": np.zeros(0, np.int64)}, r"data has too few pictures: 0\. Give at least 8"),
        ({"labels": np.array([0, 1]), "clients": 1}, r"data has too few pictures: 2\. Give at least 3"),
    ],
)
def test_impossible_wishes_are_refused(changed, message):
    wishes = {"labels": np.arange(100) % 2, "clients": 2, "alpha": 0.5, "seed": 0, "label_ratio": None}
    with pytest.raises(KithkinError, match=message):
        deal(**(wishes | changed))


@pytest.mark.parametrize("clients", [1, 2, 7, 20, 100])
def test_as_many_pictures_as_it_asks_for_are_the_fewest_to_share(clients):
    fewest = 5 * clients - 2
    (train, _, test), (_, _, too_few) = _parts(np.arange(fewest)), _parts(np.arange(fewest - 1))
    assert len(train) >= len(test) == clients == len(too_few) + 1


def test_revealed_labels_every_training_picture():
    split = deal(np.arange(300) % 3, 3, 5.0, 0, 0.2)
    for before, after in zip(split.shares, split.revealed().shares, strict=True):
        assert after.label_ratio == 1
        assert after.labelled.tolist() == before.train.tolist()
        assert len(after.unlabelled) == 0
        assert after.val is before.val
        assert after.test is before.test


def test_digest_tells_roles_clients_and_order_apart():
    def of(*parts: list[int]) -> str:
        return Split((Share(*(np.array(part, np.int64) for part in parts)),)).digest()

    digests = [of([0], [1], [2], [3]), of([0, 1], [], [2], [3]), of([1], [0], [2], [3]), of([0], [1], [], [2, 3])]
    assert len(set(digests)) == 4
    assert all(len(digest) == 64 for digest in digests)


def test_the_split_of_a_seed_never_changes():
    """A run's split must be the same in every release: a change here breaks every recorded result."""
    split = deal(load("digits").labels, 20, 0.5, 0)
    assert split.digest() == "7893e0ed0860a698e9470f01f7bb12b7ef387389ff5c368a59d5f305f12a13a9"
