"""Learning rates that a comparison chooses for its methods."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from kithkin.cli import main
from kithkin.comparison import Cell, cells_of, rates
from kithkin.comparison.rates import SEED, Tried
from kithkin.config import as_json
from kithkin.errors import KithkinError
from kithkin.federation import DivergedError
from kithkin.flags import settle
from kithkin.record import Result
from kithkin.record.assembling import in_full

RUN = sys.modules["kithkin.record.run"]
TINY = {"clients": 6, "rounds": 1, "epochs": 1, "width": 2, "batch_size": 64}
NAN = DivergedError("The loss is not a number.", "Give a smaller --lr.")


def cells(out: Path, *methods: str, seeds: tuple[int, ...] = (0, 1)) -> list[Cell]:
    return cells_of(methods, [5.0, 0.5], seeds, out, lambda method: settle({**TINY, "method": method}))


def tried_as(monkeypatch: pytest.MonkeyPatch, marks: dict[tuple[str, float], float | Exception | None]) -> list[Cell]:
    """Instead of runs: what each method gets with each rate. Gives the cells that were asked for."""
    asked: list[Cell] = []

    def do_all(cells: list[Cell], jobs: int, quiet: bool) -> Any:
        asked.extend(cells)
        got = [(cell, marks[cell.config.method, cell.config.lr or 0]) for cell in cells]
        tests = {"best_test", "test_at_best_val", "final_test_mean"}  # these choose the largest rate: nobody may ask for them
        results = [
            Result(cell.folder, {"best_val": m, **dict.fromkeys(tests, cell.config.lr)}, [], [])
            for cell, m in got
            if not isinstance(m, Exception)
        ]
        return results, [(cell, m) for cell, m in got if isinstance(m, Exception)]

    monkeypatch.setattr(rates, "do_all", do_all)
    return asked


def write_manifest(folder: Path, config: dict[str, Any], settings: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"config": config, "settings": settings}))


def test_the_best_rate_is_that_of_the_best_validation_accuracy_and_the_smaller_of_two_alike():
    tried = Tried("um", {0.001: 0.5, 0.01: 0.75, 0.1: 0.75, 1.0: None})
    assert tried.best == 0.01
    assert not tried.at_edge
    assert Tried("um", {0.001: 0.5, 0.01: 0.25}).at_edge
    assert Tried("um", {0.001: None, 0.01: 0.25}).at_edge


def test_a_method_that_diverges_at_every_rate_is_named():
    with pytest.raises(KithkinError, match=r"fixavg diverges .* smaller"):
        _ = Tried("fixavg", {0.1: None, 1.0: None}).best


def test_of_a_method_that_diverges_at_every_rate_no_table_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tried_as(monkeypatch, {("um", 0.1): 0.5, ("um", 0.01): 0.75, ("local", 0.1): NAN, ("local", 0.01): NAN})
    with pytest.raises(KithkinError, match="local diverges at every rate of --lrs"):
        rates.at_rates(cells(tmp_path, "um", "local"), [0.1, 0.01], tmp_path, 1, True)
    assert not (tmp_path / "rates.csv").exists()


def test_where_every_run_diverges_that_is_what_is_told(tmp_path: Path):
    """Not `Give a smaller --lr` of the first run, for nobody gave any."""
    with pytest.raises(KithkinError, match="fixavg diverges at every rate of --lrs"):
        rates.at_rates(cells(tmp_path, "fixavg"), [1e20, 1e30], tmp_path, 1, True)


def test_every_method_takes_its_own_rate_at_all_alphas_and_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    marks = {("um", 0.1): 0.5, ("um", 0.01): 0.75, ("local", 0.1): 0.5, ("local", 0.01): NAN}
    asked = tried_as(monkeypatch, marks)
    settled, note = rates.at_rates(cells(tmp_path, "um", "local"), [0.1, 0.01, 0.1], tmp_path, 1, True)
    assert {(c.config.seed, c.config.alpha, c.config.save_models) for c in asked} == {(SEED, 5.0, False)}
    assert [c.folder.relative_to(tmp_path).as_posix() for c in asked[:2]] == [
        "rates/um-a5-s100-lr0.01",
        "rates/um-a5-s100-lr0.1",
    ]
    assert [(c.config.method, c.config.alpha, c.config.seed, c.config.lr) for c in settled] == [
        (method, alpha, seed, lr) for alpha in (5.0, 0.5) for method, lr in (("um", 0.01), ("local", 0.1)) for seed in (0, 1)
    ]
    assert "um 0.01, local 0.1" in note
    assert "beyond: um, local" in note, "two rates have no middle"
    with (tmp_path / "rates.csv").open() as f:
        table = [(row["method"], row["lr"], row["best_val"], row["chosen"]) for row in csv.DictReader(f)]
    assert table == [
        ("um", "0.01", "0.75", "1"),
        ("um", "0.1", "0.5", "0"),
        ("local", "0.01", "", "0"),
        ("local", "0.1", "0.5", "1"),
    ]


def test_what_was_tried_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    tried_as(monkeypatch, {("um", 0.1): NAN, ("um", 0.01): 0.75, ("um", 0.001): 0.5})
    _, note = rates.at_rates(cells(tmp_path, "um"), [0.1, 0.01, 0.001], tmp_path, 1, False)
    assert capsys.readouterr().out.split()[-4:] == ["um", "0.500", "0.750", "-"]
    assert "edge" not in note


def test_rates_that_are_nearly_alike_have_a_folder_each(tmp_path: Path):
    tried = rates.trials(cells(tmp_path, "um"), [0.0123, 0.0124], tmp_path)
    assert {cell.folder.name for cell in tried.values()} == {"um-a5-s100-lr0.0123", "um-a5-s100-lr0.0124"}


def test_a_rate_is_not_chosen_while_runs_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk, say, is no sign of a bad rate."""
    tried_as(monkeypatch, {("um", 0.1): 0.5, ("um", 0.01): KithkinError("The disk is full.", "Free some room.")})
    with pytest.raises(KithkinError, match=r"1 of 2 runs .*lr0\.01: The disk is full"):
        rates.at_rates(cells(tmp_path, "um"), [0.1, 0.01], tmp_path, 1, True)
    assert not (tmp_path / "rates.csv").exists()


def test_without_validation_pictures_no_rate_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tried_as(monkeypatch, {("um", 0.1): None, ("um", 0.01): None})
    with pytest.raises(KithkinError, match=r"validate .* --lr"):
        rates.at_rates(cells(tmp_path, "um"), [0.1, 0.01], tmp_path, 1, True)


@pytest.mark.parametrize(
    ("lrs", "seeds", "why"),
    [([0.1], (0,), "one rate"), ([0.1, 0.1], (0,), "one rate"), ([0.1, 1], (0, SEED), "seed 100"), ([0.1, -1], (0,), "lr")],
)
def test_what_gives_no_choice_is_refused(tmp_path: Path, lrs: list[float], seeds: tuple[int, ...], why: str):
    with pytest.raises(KithkinError, match=why):
        rates.trials(cells(tmp_path, "um", seeds=seeds), lrs, tmp_path)


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ({"lr": 0.5}, r"um-a5-s1 holds a run with lr 0\.5, which is not among --lrs\. Nothing was run\."),
        ({"lr": 0.1, "momentum": 0.5}, r"um-a5-s1 holds a run with momentum 0\.5 instead of 0\.9\. Nothing was run\."),
        ({"lr": 0.1}, None),
    ],
)
def test_runs_that_no_rate_can_go_with_are_refused_before_rates_are_tried(
    there: dict[str, Any], why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = tried_as(monkeypatch, {("um", 0.1): 0.5, ("um", 0.01): 0.75})
    compared = cells(tmp_path, "um")
    config = as_json(in_full(replace(compared[1].config, **there)))
    write_manifest(compared[1].folder, config, asdict(compared[1].settings))
    if not why:
        rates.at_rates(compared, [0.1, 0.01], tmp_path, 1, True)
    else:
        with pytest.raises(KithkinError, match=why):
            rates.at_rates(compared, [0.1, 0.01], tmp_path, 1, True)
    assert bool(asked) is not bool(why)


def test_a_comparison_with_rates_of_its_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    flags = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ["compare", "--methods", "local", "fixavg", "--out", str(tmp_path), "--jobs", "1", "--quiet", *flags]
    command += ["--lrs", "0.01", "0.1"]
    main(command)
    with (tmp_path / "rates.csv").open() as f:
        chosen = {row["method"]: float(row["lr"]) for row in csv.DictReader(f) if row["chosen"] == "1"}
    for method, lr in chosen.items():
        (manifest,) = tmp_path.glob(f"{method}-*/manifest.json")
        assert json.loads(manifest.read_text())["config"]["lr"] == lr
    assert "by validation accuracy with seed 100: local" in (tmp_path / "table.md").read_text()

    def refuse(*_: Any) -> None:
        raise AssertionError("ran again")

    monkeypatch.setattr(RUN, "play", refuse)
    main(command)


def test_one_rate_for_all_and_a_choice_exclude_each_other(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as e:
        main(["compare", "--methods", "um", "--lrs", "0.01", "0.1", "--lr", "0.1"])
    assert e.value.code == 2
    assert "--lr and --lrs" in capsys.readouterr().err
