"""Cells: known by what was run, run once whoever asks, and never half there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up import cell, put, record

import kithkin
from kithkin import methods, processes
from kithkin.errors import KithkinError
from kithkin.federation import DivergedError
from kithkin.methods import METHODS
from kithkin.paper import cells
from kithkin.paper.cells import Cell, claimed, fill, gather, read, strangers
from kithkin.paper.plan import Plan


def test_a_key_stays_what_it_is():
    """A change of this key orphans every result that was committed: raise a method's revision instead."""
    assert cell().file == "fashion-mnist/um-a0.5-s0-eae2787da7b39330.json"


CHANGES: list[dict[str, Any]] = [
    {"method": "local"},
    {"data": "cifar-10"},
    {"alpha": 1.0},
    {"lr": 0.5},
    {"eval_every": 7},
    {"precision": "fp32"},
    {"label_ratio": 0.5},
    {"helpers": 7},
    {"relation": "entropy"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_what_changes_a_run_changes_its_key(change: dict[str, Any]):
    assert cell(**change).key != cell().key


def test_seed_scale_and_learning_rate_change_the_key():
    plans = [Plan(s, r, 1) for s in ("small", "short", "paper") for r in ("paper", "tuned")]
    assert len({cell(plan).key for plan in plans}) == 5, "small has one rate"
    assert len({c.key for c in Plan(seeds=3).cells(0, 0, "digits", "um", 0.5)}) == 3


def test_where_it_runs_does_not_change_its_key():
    elsewhere = {"device": "cpu", "compute": "eager", "pool": "host", "data_folder": Path("x"), "checkpoint_every": 3}
    assert cell(**elsewhere).key == cell().key


def test_a_revision_changes_the_key_of_its_method_alone(monkeypatch: pytest.MonkeyPatch):
    before = cell().key, cell(method="local").key
    monkeypatch.setitem(METHODS, "um", replace(METHODS["um"], revision=METHODS["um"].revision + 1))
    assert cell().key != before[0]
    assert cell(method="local").key == before[1]


def test_the_package_version_does_not(monkeypatch: pytest.MonkeyPatch):
    before = cell().key
    monkeypatch.setattr(kithkin, "__version__", "99")
    assert cell().key == before


def test_a_setting_that_comes_new_with_its_usual_value_changes_no_key(monkeypatch: pytest.MonkeyPatch):
    from dataclasses import make_dataclass

    before = cell()
    Newer = make_dataclass("Newer", [("brand_new", bool, False)], bases=(type(before.settings),), frozen=True)
    monkeypatch.setitem(methods.METHODS, "um", replace(METHODS["um"], settings=Newer()))
    assert cell().key == before.key
    assert cell(brand_new=True).key != before.key


def never(*_: Any) -> Any:
    raise AssertionError("ran")


def test_what_is_there_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(cell(), tmp_path)
    monkeypatch.setattr(cells, "do", never)
    assert fill([cell()], tmp_path, None, True).done == 0


def made(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Runs are noted, and made up."""
    ran: list[Cell] = []

    def do(cell: Cell, *_: Any) -> dict[str, Any]:
        ran.append(cell)
        return record(cell)

    monkeypatch.setattr(cells, "do", do)
    return ran


def test_what_is_missing_runs_in_the_given_order_and_one_cell_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ran = made(monkeypatch)
    one, two = cell(alpha=5.0), cell()
    assert fill([one, two, replace(one, row="elsewhere")], tmp_path, None, True).done == 2
    assert [c.config.alpha for c in ran] == [5.0, 0.5]
    assert read(tmp_path / two.file, two) == record(two) | {"seconds": pytest.approx(0, abs=60)}
    assert not list((tmp_path / ".running").glob("*.lock"))


def test_a_cell_that_another_has_done_meanwhile_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cells, "do", never)
    filled = fill([cell()], tmp_path, None, True, needless=lambda cell: not put(cell, tmp_path))
    assert (filled.done, filled.elsewhere) == (0, 1)


def test_a_cell_takes_the_time_of_all_its_rounds_whoever_did_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begun = record(cell()) | {"summary": {**record(cell())["summary"], "seconds": 300.0}}
    monkeypatch.setattr(cells, "do", lambda *_: dict(begun))
    fill([cell()], tmp_path, None, True)
    assert (read(tmp_path / cell().file) or {})["seconds"] == 300


@pytest.mark.parametrize("left", [["metrics.jsonl"], ["manifest.json", "summary.json"]], ids=["not begun", "done"])
def test_what_cannot_be_gone_on_with_is_run_anew_and_older_looks_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: list[str]
):
    where = tmp_path / "run"
    where.mkdir()
    for name in left:
        (where / name).touch()
    monkeypatch.setattr(cells, "run", lambda *_: not where.exists() or never())
    monkeypatch.setattr(cells, "told", lambda *_: {"summary": "new"})
    before = {"summary": "old", "features": "seen before"}
    assert cells.do(cell(), where, cells.display_for(True), before) == {"features": "seen before", "summary": "new"}


def test_a_cell_without_a_look_that_is_asked_for_is_run_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = cell(looks=("relation",))
    put(cell(), tmp_path)
    assert not gather([seen], tmp_path).found
    ran = made(monkeypatch)
    assert fill([seen, cell(looks=("features",)), cell()], tmp_path, None, True).done == 1
    assert ran[0].looks == {"relation", "features"}, "all of them in one run"
    assert gather([seen, cell()], tmp_path).records[0]["relation"]["rank"]["both"] == 0.5


def test_no_time_runs_nothing_and_says_how_much_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cells, "do", never)
    assert fill([cell(), cell(alpha=1.0)], tmp_path, 0, True).out_of_time == 2


def test_a_run_ends_with_the_budget_and_leaves_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(cells.time, "monotonic", lambda: clock[0])
    rounds: list[int] = []

    def do(cell: Cell, where: Path, display: Any, before: Any) -> dict[str, Any]:
        display.start(cell.config, 0, "")
        for t in range(1, 10):
            clock[0] += 20
            rounds.append(t)
            display.round({"round": t, "val_mean": None, "pseudo_error": None}, 0)
        return record(cell)

    monkeypatch.setattr(cells, "do", do)
    filled = fill([cell(), cell(alpha=1.0)], tmp_path, 1, True)
    assert (rounds, filled.done, filled.out_of_time) == ([1, 2, 3], 0, 2)
    assert not list((tmp_path / ".running").glob("*.lock"))
    assert not gather([cell()], tmp_path).found


def test_a_cell_that_is_known_to_take_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(cell(alpha=5.0), tmp_path)  # took 60 seconds
    ran = made(monkeypatch)
    filled = fill([cell(alpha=5.0), cell(), cell(method="local")], tmp_path, 0.5, True)
    assert [c.config.method for c in ran] == ["local"]
    assert filled.out_of_time == 1


def test_a_run_that_breaks_off_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def do(cell: Cell, where: Path, display: Any, before: Any) -> dict[str, Any]:
        display.start(cell.config, 0, "")
        where.mkdir()
        if cell.config.alpha == 5:
            raise DivergedError("It diverged.", "Smaller steps.")
        if cell.config.alpha == 1:
            raise KithkinError("The disk is full.", "Free some room.")
        return record(cell)

    monkeypatch.setattr(cells, "do", do)
    filled = fill([cell(alpha=5.0), cell(alpha=1.0), cell()], tmp_path, None, True)
    assert filled.done == 1
    assert filled.broken == [
        "um on fashion-mnist, alpha 5, seed 0: It diverged.",
        "um on fashion-mnist, alpha 1, seed 0: The disk is full.",
    ]
    kept = [path.name for path in (tmp_path / ".running").iterdir() if path.is_dir()]
    assert kept == [cell(alpha=1.0).key], "what came before a full disk is good"
    ran = made(monkeypatch)
    again = fill([cell(alpha=5.0), cell(alpha=1.0), cell()], tmp_path, None, True)
    assert (again.broken, [c.config.alpha for c in ran]) == ([], [1.0]), "what diverged would do so again"


def test_a_run_that_diverged_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def do(cell: Cell, where: Path, display: Any, before: Any) -> dict[str, Any]:
        display.start(cell.config, 0, "")
        raise DivergedError("It diverged.", "Smaller steps.")

    monkeypatch.setattr(cells, "do", do)
    seen = cell(looks=("features",))
    fill([seen], tmp_path, None, True)
    known = read(tmp_path / seen.file, seen)
    assert known
    assert (known["diverged"], known["config"]["alpha"], known["settings"]["helpers"]) == ("It diverged.", 0.5, 5)
    grid = gather([seen, cell(alpha=5.0)], tmp_path)
    assert grid.files == {seen.file}
    assert (grid.found, grid.lacking, list(grid.diverged)) == ({}, [], [("um", 0.5)])
    with pytest.raises(KithkinError, match="another lr"):
        read(tmp_path / seen.file, cell(lr=0.5))


def test_nothing_that_is_known_of_a_run_is_lost_where_it_diverges_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def do(cell: Cell, where: Path, display: Any, before: Any) -> dict[str, Any]:
        display.start(cell.config, 0, "")
        raise DivergedError("It diverged.", "Smaller steps.")

    monkeypatch.setattr(cells, "do", do)
    before = put(cell(), tmp_path).read_text()
    filled = fill([cell(looks=("features",))], tmp_path, None, True)
    assert filled.broken == ["um on fashion-mnist, alpha 0.5, seed 0: It diverged."]
    assert (tmp_path / cell().file).read_text() == before


def test_who_stops_it_is_told_how_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    def do(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(cells, "do", do)
    with pytest.raises(KeyboardInterrupt):
        fill([cell()], tmp_path, None, False)
    assert "the same `kithkin paper` command goes on with it" in capsys.readouterr().err
    assert not list((tmp_path / ".running").glob("*.lock"))


def test_a_mistake_before_a_run_starts_ends_it_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def do(*_: Any) -> Any:
        raise KithkinError("No data.", "Get it.")

    monkeypatch.setattr(cells, "do", do)
    with pytest.raises(KithkinError, match="No data"):
        fill([cell()], tmp_path, None, True)
    assert not list((tmp_path / ".running").glob("*.lock"))


WORKER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from made_up import cell, record
from kithkin.paper import cells

def do(cell, where, *_):
    with open({log!r}, "a") as f:
        f.write(cell.file + "\\n")
    Path({log!r} + str(os.getpid())).touch()
    while len(list(Path({log!r}).parent.glob("log?*"))) < 2:  # until both are at it
        time.sleep(0.01)
    return record(cell)

cells.do = do
wanted = [cell(alpha=a / 4) for a in range(1, 31)]
done = cells.fill(wanted, Path({results!r}), None, True).done
print(done)
"""


def test_two_processes_fill_one_table_and_do_each_cell_once(tmp_path: Path):
    log, results = tmp_path / "log", tmp_path / "results"
    script = WORKER.format(tests=str(Path(__file__).parent), log=str(log), results=str(results))
    src = str(Path(kithkin.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": src, "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    done = [int(p.communicate()[0]) for p in both]
    files = log.read_text().splitlines()
    assert len(files) == len(set(files)) == sum(done) == 30
    assert len(gather([cell(alpha=a / 4) for a in range(1, 31)], results).records) == 30
    assert min(done) > 0


def dead_process() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def claim(lock: Path, **owner: Any) -> None:
    lock.parent.mkdir(exist_ok=True)
    lock.write_text(json.dumps({"host": socket.gethostname(), **owner}))


def test_the_claim_of_a_dead_process_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    claim(tmp_path / ".running" / f"{cell().key}.lock", pid=dead_process(), born="1")
    made(monkeypatch)
    assert fill([cell()], tmp_path, None, True).done == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody knows")
def test_the_claim_of_a_process_whose_number_another_has_is_taken_over(tmp_path: Path):
    lock = tmp_path / "x.lock"
    claim(lock, pid=os.getppid(), born="1")
    with claimed(lock) as mine:
        assert mine
    claim(lock, pid=os.getppid(), born=processes._birth(os.getppid()))
    with claimed(lock) as mine:
        assert not mine


def test_the_claim_of_a_process_in_another_container_is_kept(tmp_path: Path):
    """Its number says nothing here, though its host has the same name."""
    lock = tmp_path / "x.lock"
    claim(lock, pid=dead_process(), born="1", within="pid:[1]")
    with claimed(lock) as mine:
        assert not mine
    claim(lock, **{**processes.this_process(), "pid": dead_process()})
    with claimed(lock) as mine:
        assert mine


def test_a_cell_that_was_begun_is_gone_on_with_though_a_whole_one_takes_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(cell(alpha=5.0), tmp_path)  # took 60 seconds
    (tmp_path / ".running" / cell().key).mkdir(parents=True)
    (tmp_path / ".running" / cell().key / "manifest.json").touch()
    ran = made(monkeypatch)
    assert fill([cell(alpha=5.0), cell(alpha=1.0), cell()], tmp_path, 0.5, True).out_of_time == 1
    assert [c.config.alpha for c in ran] == [0.5]


@pytest.mark.parametrize("whose", ["ours", "another user's"])
def test_the_claim_of_a_living_process_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str):
    def kill(*_: Any) -> None:
        if whose != "ours":
            raise PermissionError

    monkeypatch.setattr(processes.os, "kill", kill)
    lock = tmp_path / ".running" / f"{cell().key}.lock"
    claim(lock, pid=os.getppid(), born=processes._birth(os.getppid()))
    monkeypatch.setattr(cells, "do", never)
    filled = fill([cell()], tmp_path, None, True)
    assert (filled.done, filled.elsewhere) == (0, 1)
    assert lock.exists()


@pytest.mark.parametrize("text", ['{"host": "far away", "process": 1}', "", '{"host'], ids=["far", "empty", "torn"])
def test_a_claim_that_cannot_be_asked_for_is_void_after_a_long_silence(tmp_path: Path, text: str):
    lock = tmp_path / "x.lock"
    lock.write_text(text)
    with claimed(lock) as mine:
        assert not mine
    assert lock.exists()
    long_ago = time.time() - cells.SILENCE - 1
    os.utime(lock, (long_ago, long_ago))
    with claimed(lock) as mine:
        assert mine
    assert not lock.exists()


@pytest.mark.parametrize(
    "sign", [lambda timed: timed.round({"round": 1}, 0), lambda timed: timed.tick(1, 2)], ids=["round", "job"]
)
def test_a_claim_is_renewed_while_its_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: Any):
    lock = tmp_path / "x.lock"
    lock.touch()
    os.utime(lock, (0, 0))
    clock = [0.0]
    monkeypatch.setattr(cells.time, "monotonic", lambda: clock[0])
    timed = cells.Timed(cells.display_for(True), float("inf"), lock)
    sign(timed)
    assert lock.stat().st_mtime == 0
    clock[0] = cells.RENEWAL
    sign(timed)
    assert lock.stat().st_mtime > 0
    lock.unlink()  # by another machine, which took the claim over while this one slept
    clock[0] *= 2
    sign(timed)
    assert not lock.exists()


def test_a_warm_up_ends_with_the_budget(tmp_path: Path):
    filled = fill([tiny()], tmp_path, 1e-6, True)
    assert (filled.done, filled.out_of_time) == (0, 1)
    timed = cells.Timed(cells.display_for(True), 0, tmp_path / "x.lock")
    with pytest.raises(cells.OutOfTimeError):
        timed.tick(1, 100)


BAD = ["", '{"format": 1, "kith', "[]", "{}", '{"format": 1}', '{"format": 99}']


@pytest.mark.parametrize("text", BAD)
def test_a_half_written_or_foreign_file_is_named_and_counts_for_nothing(tmp_path: Path, text: str):
    path = put(cell(), tmp_path)
    good = put(cell(alpha=5.0), tmp_path)
    path.write_text(text)
    assert [str(path) in told for told in strangers(tmp_path)] == [True]
    assert len(gather([cell(), cell(alpha=5.0)], tmp_path).records) == 1
    with pytest.raises(KithkinError, match="is no finished cell") as error:
        fill([cell()], tmp_path, None, True)
    assert str(path) in error.value.problem
    assert path.read_text() == text
    assert good.exists()


def test_a_result_of_other_settings_in_a_cells_place_is_named(tmp_path: Path):
    path = put(cell(), tmp_path)
    there = json.loads(path.read_text())
    del there["settings"]["refresh_every"]
    path.write_text(json.dumps(there))
    assert read(path, cell()) == there, "it is older than that setting"
    there["config"]["epochs"] = 50
    path.write_text(json.dumps(there))
    with pytest.raises(KithkinError, match="another epochs"):
        read(path, cell())


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(cells, "do", never)
    with pytest.raises(KithkinError, match="Give another --results"):
        fill([cell()], tmp_path / "file", None, True)


def tiny(looks: tuple[str, ...] = ("features", "relation")) -> Cell:
    return next(Plan("smoke").cells("um", 0.5, "digits", "um", 0.5, looks))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    results = tmp_path_factory.mktemp("results")
    assert fill([tiny()], results, None, True).done == 1
    assert not [path for path in (results / ".running").iterdir() if path.is_dir()]
    assert (results / tiny().file).stat().st_size < 50_000
    return read(results / tiny().file, tiny()) or {}


def test_a_cell_keeps_what_its_figures_need(ran: dict[str, Any]):
    assert ran["curves"]["round"] == [1, 2]
    assert len(ran["curves"]["val"]) == len(ran["label_error"]) == 2
    assert len(ran["clients"]["final"]) == 6
    assert sum(ran["summary"]["bytes_by_cause"].values()) == ran["summary"]["up_bytes"] + ran["summary"]["down_bytes"]
    assert ran["kithkin"] == kithkin.__version__
    assert ran["machine"]["device"] == "cpu"
    assert "memory" not in ran["summary"], "it is that of all cells before, too"


def test_the_confusion_matrix_counts_every_test_picture(ran: dict[str, Any]):
    total = sum(map(sum, ran["confusion"]))
    assert total == 359
    assert len(ran["confusion"]) == 10


def test_its_diagonal_is_the_accuracy_that_was_examined(ran: dict[str, Any]):
    sizes = [ran["features"]["client"].count(k) for k in range(6)]  # a point for every test picture
    right = sum(size * accuracy for size, accuracy in zip(sizes, ran["clients"]["final"], strict=True))
    assert sum(ran["confusion"][c][c] for c in range(10)) == pytest.approx(right, abs=0.1)


def test_features_tell_class_and_client_of_every_point(ran: dict[str, Any]):
    seen = ran["features"]
    assert {len(seen[part]) for part in ("x", "y", "class", "client")} == {359}
    assert set(seen["client"]) == set(range(6))
    counts = [seen["class"].count(c) for c in range(10)]
    assert counts == [sum(row) for row in ran["confusion"]]


def test_nobody_chooses_better_helpers_than_the_truth(ran: dict[str, Any]):
    seen = ran["relation"]
    assert len(seen["pairs"]["truth"]) == 6 * 5
    assert all(seen["chosen"]["truth"] >= seen["chosen"][by] for by in ("both", "entropy", "accuracy", "anyone"))
    assert all(-1 <= r <= 1 for r in seen["rank"].values() if r is not None)


def test_a_run_that_was_killed_goes_on(tmp_path: Path, ran: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    class BrokenError(Exception):
        pass

    def die(*_: Any) -> Any:
        raise BrokenError

    cell = tiny(("relation",))
    with monkeypatch.context() as patch:
        patch.setattr(cells, "look_at", die)
        with pytest.raises(BrokenError):
            fill([cell], tmp_path, None, True)
    assert (tmp_path / ".running" / cell.key / "manifest.json").exists()
    assert fill([cell], tmp_path, None, True).done == 1
    again = read(tmp_path / cell.file) or {}
    assert [again[part] for part in ("curves", "confusion", "relation")] == [
        ran[p] for p in ("curves", "confusion", "relation")
    ]
