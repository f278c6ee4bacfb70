"""The audit of a round's pseudo labels, by hand."""

from __future__ import annotations

import math

import torch

from kithkin.methods.base import Labels
from kithkin.record.audit import BINS, audit

TRUTH = [torch.tensor([1, 0, 0]), torch.tensor([2]), torch.tensor([0, 1])]
LOG3 = math.log(3)


def test_it_counts_by_class_by_uncertainty_and_by_helper():
    labels = {
        0: Labels(
            torch.tensor([1, 2, 2]),
            torch.tensor([True, True, False]),
            torch.tensor([0.0, 0.25, 1.0]) * LOG3,
            torch.tensor([7, 7, 0]),
        ),
        2: Labels(torch.tensor([0, 0]), torch.tensor([True, True]), torch.tensor([0.05, 0.29]) * LOG3),
    }
    told = audit(labels, TRUTH, classes=3)
    assert (told["asked"], told["taken"], told["wrong"]) == (5, 4, 2)
    assert told["by_class"] == [[2, 1], [2, 1], [0, 0]]
    assert told["by_entropy"] == [[2, 0], [0, 0], [2, 2], *[[0, 0]] * (BINS - 4), [1, 1]]
    assert told["by_helper"] == {"7": [2, 1]}, "several together are nobody; whose label was not taken is left out"


def test_a_round_without_labels_is_empty():
    told = audit({}, TRUTH, classes=3)
    assert told == {"asked": 0, "taken": 0, "wrong": 0, "by_class": [], "by_entropy": [], "by_helper": {}}


def test_labels_of_which_none_is_taken():
    told = audit({1: Labels(torch.tensor([0]), torch.tensor([False]), torch.tensor([0.5]))}, TRUTH, classes=3)
    assert (told["asked"], told["taken"], told["wrong"], told["by_helper"]) == (1, 0, 0, {})
    assert sum(row[1] for row in told["by_entropy"]) == 1
