"""What tables and figures show: the paper's numbers, and what is measured of a finished run."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from kithkin.comparison import gains_over, harmed
from kithkin.paper.cells import Record
from kithkin.paper.drawing import Measure
from kithkin.paper.plan import HOME

PUBLISHED: dict[str, Any] = tomllib.loads((HOME / "published.toml").read_text(encoding="utf-8"))
TERMS = {"accuracy": "TA", "entropy": "EN", "both": "EN + TA"}  # the paper's names of the relation's terms


def published(name: str, row: Any, column: Any) -> float | None:
    """The paper's number at a place of its table."""
    values = PUBLISHED[name]["rows"].get(row)
    return float(values[PUBLISHED[name]["columns"].index(column)]) if values else None


# In percent where the paper has percent.
def at_best(record: Record) -> float:
    return 100 * record["summary"]["test_at_best_val"]


def best_of_any(record: Record) -> float:
    return 100 * record["summary"]["best_test"]


def variance(record: Record) -> float:
    """Over clients, at the last round."""
    return record["summary"]["final_test_var"]


def variance_at_best(record: Record) -> float:
    """The same at the round that `at_best` is of."""
    return record["summary"]["test_var_at_best_val"]


def label_error(record: Record) -> float | None:
    return percent(record["summary"]["final_pseudo_error"])


def labelled(record: Record) -> float | None:
    return percent(record["summary"]["final_pseudo_coverage"])


def percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def harmed_share(alone: dict[int, list[float]], record: Record) -> float | None:
    """In percent, at the last round; None where nobody was seen to train alone with this seed."""
    gains = gains_over(alone.get(record["config"]["seed"]), record["clients"]["final"])
    return 100 * harmed(gains) if gains else None


def finals(records: Sequence[Record]) -> dict[int, list[float]]:
    """The accuracies of every client at the last round, by seed."""
    return {record["config"]["seed"]: record["clients"]["final"] for record in records}


def moved(record: Record) -> int:
    return record["summary"]["down_bytes"] + record["summary"]["up_bytes"]


MEASURES: dict[str, Measure] = {
    "Test accuracy (%) at the round of best mean validation accuracy": at_best,
    "The largest test accuracy (%) of any evaluation, which is what the paper's words say": best_of_any,
}
