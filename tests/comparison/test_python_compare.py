"""`kithkin.compare`: the command line's comparison from Python."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kithkin
from kithkin.cli import main
from kithkin.errors import KithkinError

TINY: dict[str, Any] = {"clients": 6, "rounds": 1, "width": 2, "epochs": 1, "batch_size": 64, "warmup_epochs": 1}
TINY |= {"helpers": 3, "mc_samples": 2}  # that local does not take


def test_it_gives_the_rows_that_the_command_writes_and_reads_finished_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    rows = kithkin.compare(["um", "local"], [5.0, 0.5], np.arange(2), tmp_path, **TINY)
    assert [(row.method, row.alpha, row.seeds) for row in rows] == [(m, a, 2) for a in (5.0, 0.5) for m in ("um", "local")]
    with (tmp_path / "table.csv").open() as f:
        assert [float(line["test"]) for line in csv.DictReader(f)] == [row.test for row in rows]
    assert capfd.readouterr() == ("", "")

    def refuse(*_: Any) -> None:
        raise AssertionError("ran again")

    monkeypatch.setattr(sys.modules["kithkin.record.run"], "play", refuse)
    again = kithkin.compare(["um", "local"], [5.0, 0.5], [0, 1], tmp_path, **TINY)
    assert [row.test for row in again] == [row.test for row in rows]
    flags = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ["compare", "--methods", "um", "local", "--alphas", "5", "0.5", "--seeds", "0", "1"]
    main([*command, "--out", str(tmp_path), "--jobs", "1", "--quiet", *flags])


def test_one_method_at_the_alpha_that_suits_the_data(tmp_path: Path):
    (row,) = kithkin.compare("local", out=tmp_path, clients=6, rounds=1, width=2)
    assert (row.method, row.alpha, row.seeds) == ("local", 0.5, 1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"alpha": 0.5}, "Give alphas"),
        ({"seed": 3}, "Give seeds"),
        ({"lr": 0.1, "lrs": [0.1, 0.2]}, "--lr and --lrs"),
        ({"helpers": 4}, "None of local takes --helpers"),
        ({"seeds": "one"}, "seed"),
        ({"seeds": []}, "nothing to compare"),
        ({"alphas": -1}, "alpha"),
        ({"rounds": 0}, "rounds"),
        ({"jobs": 0}, "jobs"),
        ({"lrs": [0.1, "x"]}, "--lrs is 'x'; it must be float"),
        ({"jobs": "two"}, "--jobs is two; it must be 1 or more"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(given: dict[str, Any], why: str, tmp_path: Path):
    with pytest.raises(KithkinError, match=why):
        kithkin.compare("local", out=tmp_path / "runs", **given)
    assert not (tmp_path / "runs").exists()


def test_no_method_is_nothing_to_compare(tmp_path: Path):
    with pytest.raises(KithkinError, match="nothing to compare"):
        kithkin.compare([], out=tmp_path)


def test_data_that_changed_between_two_comparisons_of_a_process_are_refused(tmp_path: Path):
    mine = tmp_path / "mine.npz"
    flags = {"data": mine, "clients": 2, "rounds": 1, "epochs": 1, "width": 2, "warmup_epochs": 1}
    np.savez(mine, images=np.zeros((60, 8, 8), np.uint8), labels=np.arange(60) % 2)
    for _ in ("run", "read"):
        kithkin.compare("local", 0.5, 0, tmp_path / "runs", **flags)
    np.savez(mine, images=np.ones((60, 8, 8), np.uint8), labels=np.arange(60) % 2)
    with pytest.raises(KithkinError, match="another data of the same name"):
        kithkin.compare("local", 0.5, [0, 1], tmp_path / "runs", **flags)
