"""The vote: a mean of answers by trust."""

from __future__ import annotations

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
    y = vote(answers, trust=[2, 1, 5])
    torch.testing.assert_close(y, torch.tensor([[7 / 8, 1 / 8], [4.75 / 8, 3.25 / 8]]))


def test_confidence_is_not_competence():
    """One that is sure of everything and trusted little does not sway many that are half sure."""
    boast, others = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.7, 0.3]])
    assert int(vote([boast, others, others], trust=[0.1, 1, 1]).argmax()) == 0


def test_nobody_is_trusted_so_all_are_alike():
    y = vote([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.4, 0.6]])], trust=[0, 0])
    torch.testing.assert_close(y, torch.tensor([[0.7, 0.3]]))


def test_no_pictures_give_no_labels():
    assert vote([torch.zeros(0, 3)] * 2, trust=[1, 2]).shape == (0, 3)


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 5), st.integers(2, 4))
def test_a_vote_is_a_distribution_and_does_not_ask_who_came_first(seed, voters, n, classes):
    draw = torch.Generator().manual_seed(seed)
    answers = list(torch.rand(voters, n, classes, generator=draw, dtype=torch.float64).softmax(2))
    trust = torch.rand(voters, generator=draw).tolist()
    y = vote(answers, trust)
    torch.testing.assert_close(y.sum(1), torch.ones(n, dtype=torch.float64))
    torch.testing.assert_close(vote(answers[::-1], trust[::-1]), y)


@given(st.integers(0, 2**32), st.integers(2, 6), st.floats(0.5, 1))
def test_a_certain_vote_has_nearly_all_trust_behind_it(seed, voters, threshold):
    """Who names another class gives this one at most 1/2: at threshold c at most 2 (1 - c) of the trust disagrees."""
    draw = torch.Generator().manual_seed(seed)
    answers = list((6 * torch.randn(voters, 8, 3, generator=draw, dtype=torch.float64)).softmax(2))
    trust = torch.rand(voters, generator=draw).tolist()
    y = vote(answers, trust)
    for i in (y.amax(1) >= threshold).nonzero().flatten().tolist():
        against = sum(t for t, p in zip(trust, answers, strict=True) if p[i].argmax() != y[i].argmax())
        assert against / sum(trust) <= 2 * (1 - threshold) + 1e-9
