"""Entropy (10) and the least uncertain answer (11)."""

from __future__ import annotations

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kithkin.helpers import entropy, least_uncertain


def test_entropy_by_hand():
    p = torch.tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3], [0.9, 0.1, 0.0]])
    assert entropy(p).tolist() == pytest.approx([1.5 * log(2), log(3), 0.325083], abs=1e-6)


def test_a_certain_answer_has_entropy_0_and_no_nan():
    assert entropy(torch.eye(4)).tolist() == [0, 0, 0, 0]


def test_entropy_is_taken_over_the_last_axis():
    p = torch.full((2, 3, 4), 0.25)
    assert entropy(p).shape == (2, 3)
    assert entropy(torch.zeros(0, 4)).shape == (0,)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=10).filter(lambda x: sum(x) > 0.01))
def test_entropy_lies_between_0_and_log_c(weights: list[float]):
    p = torch.tensor(weights, dtype=torch.float64)
    h = entropy(p / p.sum()).item()
    assert -1e-12 <= h <= log(len(weights)) + 1e-12


def test_each_sample_takes_its_own_least_uncertain_answer():
    a = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.4, 0.6]])
    b = torch.tensor([[0.8, 0.2], [0.3, 0.7], [0.5, 0.5]])
    c = torch.tensor([[0.3, 0.7], [0.6, 0.4], [0.0, 1.0]])
    y, who = least_uncertain([a, b, c])
    assert who.tolist() == [1, 0, 2]
    assert torch.equal(y, torch.stack([b[0], a[1], c[2]]))


def test_the_least_entropy_is_not_the_largest_probability():
    a, b = torch.tensor([[0.6, 0.2, 0.2]]), torch.tensor([[0.55, 0.45, 0.0]])  # entropies 0.95 and 0.69
    y, who = least_uncertain([a, b])
    assert who.tolist() == [1]
    assert torch.equal(y, b)


def test_the_earlier_one_wins_a_tie():
    a, b = torch.tensor([[0.2, 0.8], [0.0, 1.0]]), torch.tensor([[0.8, 0.2], [1.0, 0.0]])
    assert least_uncertain([a, b])[1].tolist() == [0, 0]
    y, who = least_uncertain([b, a, b])
    assert who.tolist() == [0, 0]
    assert torch.equal(y, b)


def test_one_helper_is_always_chosen():
    p = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
    y, who = least_uncertain([p])
    assert torch.equal(y, p)
    assert who.tolist() == [0, 0]


def test_no_samples_no_labels():
    y, who = least_uncertain([torch.zeros(0, 3), torch.zeros(0, 3)])
    assert y.shape == (0, 3)
    assert who.shape == (0,)
