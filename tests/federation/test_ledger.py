"""Bytes by cause, and the paper's cost formulas."""

from __future__ import annotations

import pytest
import torch

from kithkin.federation import Ledger, paper_costs
from kithkin.methods.base import Parcel


def parcel(cause, size):
    return Parcel(cause, 0, 1, torch.zeros(100), size)


def test_a_number_has_four_bytes_and_causes_add_up():
    ledger = Ledger().count([parcel("start", 3), parcel("upload", 2), parcel("start", 5)])
    assert ledger.moved == {"start": 32, "upload": 8}
    assert ledger.count([parcel("upload", 1), parcel("fill", 1)]).moved == {"start": 32, "upload": 12, "fill": 4}


def test_it_counts_what_travels_and_not_what_lies_in_memory():
    assert Ledger().count([parcel("upload", 1)]).moved == {"upload": 4}


def test_up_is_uploads_and_warm_up_and_down_all_else():
    ledger = Ledger({"start": 1, "search": 20, "refresh": 300, "fill": 4000, "upload": 50000, "warm-up": 600000})
    assert ledger.down == 4321
    assert ledger.up == 650000
    assert (Ledger().up, Ledger().down) == (0, 0)


def test_counting_leaves_the_old_ledger_as_it_was():
    before = Ledger({"start": 4})
    before.count([parcel("start", 1)])
    assert before.moved == {"start": 4}
    assert before.count([]).moved == {"start": 4}


def test_the_papers_worked_numbers():
    """K = 100, tau = 0.1, M = 5, R = 2, F = 30, nu = 10, n = 200: tau K n = 2000, F R = 60, n (M + tau nu) / nu = 120."""
    K, w = 100, 7
    costs = {name: cost / (K * w * 4) for name, cost in paper_costs(K, 5, 2, 30, 10, 0.1, 200, w).items()}
    assert costs == pytest.approx({"greedy_27": 0.1 * K * 200, "helper_lists_28": 60 + 120, "saved_29": 2000 - 60 - 120})
    assert costs["saved_29"] / costs["greedy_27"] > 0.9


@pytest.mark.parametrize(
    ("change", "models"),
    [({}, 30 + 30 + 20), ({"R": 0}, 30 + 20), ({"F": 0}, 30 + 20), ({"nu": 8}, 15 + 30 + 20), ({"tau": 1.0}, 30 + 30 + 40)],
)
def test_helper_lists_cost_refreshes_searches_and_uploads(change, models):
    """5 clients refresh 3 helpers in 2 of 8 rounds, try 2 candidates in 3 rounds, and half of them upload in each."""
    values = {"K": 5, "M": 3, "R": 2, "F": 3, "nu": 4, "tau": 0.5, "n": 8, "size": 10, **change}
    assert paper_costs(**values)["helper_lists_28"] == models * 40
