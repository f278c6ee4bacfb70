"""The paper's numbers: complete, and where they belong."""

from __future__ import annotations

import pytest

from kithkin.paper.measures import PUBLISHED, published
from kithkin.paper.recipes import RECIPES

CELLS = {  # rows times columns of every table of the paper
    "fashion-mnist": 40,
    "cifar-10": 40,
    "components": 24,
    "refresh-period": 10,
    "sample-rate": 10,
    "pathmnist": 28,
    "organamnist": 28,
}


@pytest.mark.parametrize(("name", "cells"), CELLS.items())
def test_every_cell_of_every_table_is_there(name: str, cells: int):
    rows = PUBLISHED[name]["rows"]
    assert {len(row) for row in rows.values()} == {len(PUBLISHED[name]["columns"])}
    assert sum(map(len, rows.values())) == cells
    assert all(0 < value <= 100 for row in rows.values() for value in row)


def test_there_is_no_other_table_and_each_has_its_recipe_and_place():
    assert set(PUBLISHED) == set(CELLS) <= set(RECIPES)
    assert [PUBLISHED[name]["place"] for name in CELLS] == [RECIPES[name].place for name in CELLS]
    assert [PUBLISHED[name]["place"] for name in CELLS] == [f"Table {n}" for n in ("I", "II", "III", "IV", "V", "VI", "VII")]


VALUES = [
    ("fashion-mnist", "um", 0.5, 79.00),
    ("fashion-mnist", "fixbn", 10, 81.88),
    ("fashion-mnist", "lg-fedavg", 5, 75.39),
    ("cifar-10", "fedbn-sl", 10, 55.61),
    ("cifar-10", "fixprox", 5, 48.61),
    ("cifar-10", "pfedme", 1, 27.38),
    ("components", "cifar-10, alpha 5", "entropy", 49.32),
    ("components", "fashion-mnist, alpha 0.5", "accuracy", 71.39),
    ("refresh-period", "accuracy", 15, 76.68),
    ("refresh-period", "cost", 5, 26),
    ("sample-rate", "accuracy", 0.2, 81.75),
    ("sample-rate", "cost", 0.05, 5.7),
    ("pathmnist", "fedper", 1, 64.71),
    ("organamnist", "um", 10, 88.53),
]


@pytest.mark.parametrize(("name", "row", "column", "value"), VALUES)
def test_values_stand_where_the_paper_has_them(name: str, row: str, column: float | str, value: float):
    assert published(name, row, column) == value


def test_what_the_paper_repeats_agrees():
    """The whole relation of Table III is um of Tables I and II; so are the default values of Tables IV and V."""
    for data in ("fashion-mnist", "cifar-10"):
        for alpha in (0.5, 1, 5, 10):
            assert published("components", f"{data}, alpha {alpha:g}", "both") == published(data, "um", alpha)
    assert published("refresh-period", "accuracy", 10) == published("fashion-mnist", "um", 0.5)
    assert published("sample-rate", "accuracy", 0.1) == published("fashion-mnist", "um", 0.5)


def test_a_method_of_ours_has_no_published_value():
    assert published("fashion-mnist", "local", 0.5) is None


@pytest.mark.parametrize("name", CELLS)
def test_every_published_place_has_a_cell(name: str):
    from kithkin.paper.plan import Plan

    places = {(cell.row, cell.column) for cell in RECIPES[name].plan(Plan("paper", "paper", 1))}
    if name in ("refresh-period", "sample-rate"):
        assert sorted(column for row, column in places if row == "um") == PUBLISHED[name]["columns"]
    else:
        assert places >= {(row, column) for row in PUBLISHED[name]["rows"] for column in PUBLISHED[name]["columns"]}
