"""The vote: a mean by trust, and the share of trust that stands behind its class."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kithkin.helpers import vote


def test_by_hand():
    answers = [
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
        torch.tensor([[1.0, 0.0], [0.75, 0.25]]),
    ]
    y, agreed = vote(answers, trust=[2, 1, 5])
    torch.testing.assert_close(y, torch.tensor([[7 / 8, 1 / 8], [4.75 / 8, 3.25 / 8]]))
    assert agreed.tolist() == [7 / 8, 6 / 8]


def test_confidence_is_not_competence():
    """One that is sure of everything and trusted little does not sway many that are half sure."""
    boast, others = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.7, 0.3]])
    y, agreed = vote([boast, others, others], trust=[0.1, 1, 1])
    assert int(y.argmax()) == 0
    assert float(agreed) == pytest.approx(2 / 2.1)


def test_nobody_is_trusted_so_all_are_alike():
    y, agreed = vote([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.4, 0.6]])], trust=[0, 0])
    torch.testing.assert_close(y, torch.tensor([[0.7, 0.3]]))
    assert agreed.tolist() == [0.5]


def test_no_pictures_give_no_labels():
    y, agreed = vote([torch.zeros(0, 3)] * 2, trust=[1, 2])
    assert y.shape == (0, 3)
    assert agreed.shape == (0,)


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 5), st.integers(2, 4))
def test_a_vote_is_a_distribution_and_does_not_ask_who_came_first(seed, voters, n, classes):
    draw = torch.Generator().manual_seed(seed)
    answers = list(torch.rand(voters, n, classes, generator=draw, dtype=torch.float64).softmax(2))
    trust = torch.rand(voters, generator=draw).tolist()
    y, agreed = vote(answers, trust)
    torch.testing.assert_close(y.sum(1), torch.ones(n, dtype=torch.float64))
    assert bool(((agreed >= 0) & (agreed <= 1 + 1e-12)).all())
    for i, p in enumerate(answers):
        named = p.argmax(1) == y.argmax(1)
        assert bool((agreed[named] >= trust[i] / sum(trust) - 1e-12).all())
    again, share = vote(answers[::-1], trust[::-1])
    torch.testing.assert_close(again, y)
    torch.testing.assert_close(share, agreed)
