"""The truth about unlabelled pictures is for the record alone: whatever it is, the same models come out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_runs import assert_same_run, flags, lines, record, weights

from kithkin.data import Dataset, Split, deal, load
from kithkin.federation import open_world
from kithkin.flags import settle
from kithkin.record import Folder, Result, assembling
from kithkin.record.assembling import assemble
from kithkin.record.run import Quiet, go_on


def train(out: Path, method: str, dataset: Dataset, split: Split, **more: Any) -> Result:
    """A run on this data, dealt in this way whatever its labels say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembling, "split_of", lambda *_: split)
        federation = assemble(*settle(flags(method, rounds=2, checkpoint_every=1, **more)), dataset=dataset)
    folder = Folder(out)
    folder.create()
    world = open_world(federation.method, federation.clients, federation.w0)
    return go_on(federation, folder, world, Quiet())


@pytest.fixture(scope="module")
def dealt() -> tuple[Dataset, Split]:
    dataset = load("digits")
    return dataset, deal(dataset.labels, 6, 0.5, 0)


def relabelled(dataset: Dataset, positions: list[np.ndarray], change: Callable[[np.ndarray], np.ndarray]) -> Dataset:
    labels = dataset.labels.copy()
    at = np.concatenate(positions)
    labels[at] = change(labels[at])
    assert (labels != dataset.labels).any()
    return replace(dataset, labels=labels)


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "shuffled": lambda labels: np.random.default_rng(1).permutation(labels),
    "all one class": lambda labels: np.zeros_like(labels),
}


@pytest.mark.parametrize(
    ("method", "change"),
    [("um", "shuffled"), ("um", "all one class"), ("fixavg", "shuffled"), ("fixavg", "all one class"), ("mix", "shuffled")],
)
def test_other_hidden_labels_change_no_weight_but_the_measured_error(
    tmp_path: Path, dealt: tuple[Dataset, Split], method: str, change: str
):
    dataset, split = dealt
    hidden = relabelled(dataset, [share.unlabelled for share in split.shares], CHANGES[change])
    train(tmp_path / "true", method, dataset, split)
    train(tmp_path / "false", method, hidden, split)
    errors = [[line["pseudo_error"] for line in lines(tmp_path / name / "metrics.jsonl")] for name in ("true", "false")]
    assert None not in errors[0]
    assert errors[0] != errors[1]
    drop_errors(tmp_path / "true")
    drop_errors(tmp_path / "false")
    assert_same_run(tmp_path / "true", tmp_path / "false")


def drop_errors(folder: Path) -> None:
    """Take out of the record what may differ: the error, and the audit that tells it in detail."""
    metrics = [{**line, "pseudo_error": None} for line in lines(folder / "metrics.jsonl")]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (folder / "audit.jsonl").write_text("")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "final_pseudo_error": None}))


@pytest.mark.parametrize("method", ["um", "fixavg"])
def test_other_labels_of_labelled_pictures_do_change_the_weights(tmp_path: Path, dealt: tuple[Dataset, Split], method: str):
    """The comparison above can fail: what training sees does matter to it."""
    dataset, split = dealt
    wrong = relabelled(dataset, [share.labelled for share in split.shares], CHANGES["shuffled"])
    train(tmp_path / "true", method, dataset, split)
    train(tmp_path / "false", method, wrong, split)
    assert weights(tmp_path / "true") != weights(tmp_path / "false")


@pytest.mark.parametrize("method", ["um", "fixavg"])
def test_other_labels_of_validation_and_test_pictures_change_no_weight_but_the_accuracies(
    tmp_path: Path, dealt: tuple[Dataset, Split], method: str
):
    dataset, split = dealt
    exams = [part for share in split.shares for part in (share.val, share.test)]
    train(tmp_path / "true", method, dataset, split)
    train(tmp_path / "false", method, relabelled(dataset, exams, CHANGES["shuffled"]), split)
    assert weights(tmp_path / "true") == weights(tmp_path / "false")
    assert record(tmp_path / "true")["marks"] != record(tmp_path / "false")["marks"]
