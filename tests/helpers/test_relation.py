"""Relation (13), (14), and the average that it weighs."""

from __future__ import annotations

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kithkin.helpers import average, relation

# mean entropy (0 + log 2 + log 4) / 3 = log 2, of at most log 4: H_bar = 1/2. Three of four right: Acc = 3/4.
P_U = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25]])
RIGHT = torch.tensor([True, True, False, True])
NO_U, NO_S = torch.zeros(0, 4), torch.zeros(0, dtype=torch.bool)


@pytest.mark.parametrize(("mu", "expected"), [(0.0, 0.5), (0.4, 0.6 * 0.5 + 0.4 * 0.75), (1.0, 0.75)])
def test_both_terms_by_hand(mu: float, expected: float):
    assert relation(P_U, RIGHT, mu).item() == pytest.approx(expected)


@pytest.mark.parametrize("mu", [0.0, 0.4, 1.0])
def test_one_term_alone_does_not_ask_for_mu(mu: float):
    assert relation(P_U, RIGHT, mu, "entropy").item() == pytest.approx(0.5)
    assert relation(P_U, RIGHT, mu, "accuracy").item() == pytest.approx(0.75)


def test_the_entropy_term_is_scaled_by_the_number_of_classes():
    p = torch.tensor([[0.9, 0.1]])
    assert relation(p, NO_S, 0.0).item() == pytest.approx(1 - 0.325083 / log(2), abs=1e-5)


def test_best_and_worst():
    assert relation(torch.eye(4), torch.ones(3, dtype=torch.bool), 0.5) == 1
    assert relation(torch.full((3, 4), 0.25), torch.zeros(3, dtype=torch.bool), 0.5).item() == pytest.approx(0, abs=1e-6)
    for terms in ("both", "entropy"):  # the entropy of seven sevenths is rounded to more than log 7
        assert relation(torch.full((3, 7), 1 / 7), NO_S, 0.0, terms) == 0


def test_a_term_without_data_counts_for_nothing():
    assert relation(NO_U, RIGHT, 1.0).item() == pytest.approx(0.75)
    assert relation(P_U, NO_S, 0.0).item() == pytest.approx(0.5)
    assert relation(NO_U, NO_S, 0.0) == 0
    assert relation(NO_U, RIGHT, 1.0, "entropy") == 0
    assert relation(P_U, NO_S, 0.0, "accuracy") == 0


@given(st.integers(0, 6), st.integers(2, 5), st.lists(st.booleans(), max_size=6), st.floats(0, 1), st.floats(0, 30))
def test_relation_lies_in_0_1(n: int, classes: int, right: list[bool], mu: float, sharpness: float):
    logits = torch.randn(n, classes)
    p_u, correct = (logits * sharpness).softmax(1), torch.tensor(right, dtype=torch.bool)
    for terms in ("both", "entropy", "accuracy"):
        corr = relation(p_u, correct, mu, terms)
        assert corr.shape == ()
        assert 0 <= corr <= 1


# -- average ------------------------------------------------------------------------------------------------------------------

VECTORS = st.lists(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3).map(torch.tensor), min_size=1, max_size=6)


def test_average_by_hand():
    models = [torch.tensor([1.0, 0]), torch.tensor([4.0, 8])]
    assert average(models, [1, 3]).tolist() == [3.25, 6]
    assert average(models, [0.1, 0.3]).tolist() == pytest.approx([3.25, 6])  # only proportions matter
    assert average(models, [0, 0.2]).tolist() == [4, 8]


def test_without_any_relation_it_is_the_plain_mean():
    assert average([torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([6.0])], [0, 0, 0]).item() == pytest.approx(3)


def test_one_model_is_its_own_average():
    model = torch.tensor([0.1, -7.3])
    assert torch.equal(average([model], [0.3]), model)
    assert torch.equal(average([model], [0.0]), model)


def test_averaging_leaves_the_models_alone():
    models = [torch.tensor([1.0, 0]), torch.tensor([4.0, 8])]
    average(models, [1, 3])
    average(models[:1], [1]).add_(1)
    assert [m.tolist() for m in models] == [[1, 0], [4, 8]]


def test_a_weight_too_few_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        average([torch.zeros(1), torch.zeros(1)], [1])


@given(VECTORS, st.data())
def test_average_stays_between_the_models(models: list[Tensor], data: st.DataObject):
    weights = data.draw(st.lists(st.floats(0, 1), min_size=len(models), max_size=len(models)))
    mean, rows = average(models, weights), torch.stack(models)
    slack = 1e-5 * rows.abs().max() + 1e-30
    assert (mean >= rows.amin(0) - slack).all()
    assert (mean <= rows.amax(0) + slack).all()


@given(VECTORS)
def test_equal_weights_give_the_plain_mean(models: list[Tensor]):
    expected = torch.stack(models).double().mean(0).float()
    for weight in (0.0, 0.5):
        assert torch.allclose(average(models, [weight] * len(models)), expected, rtol=1e-5, atol=1e-4)
