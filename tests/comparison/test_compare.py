"""Comparisons: cells that resume."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kithkin.cli import main
from kithkin.comparison import cells as comparison
from kithkin.data import load
from kithkin.errors import KithkinError
from kithkin.flags import settle
from kithkin.processes import _birth, is_alive
from kithkin.record import Result

RUN = sys.modules["kithkin.record.run"]  # the package names its function, not the module
TINY = "--clients=6 --rounds=2 --width=2 --epochs=1 --batch-size=64 --warmup-epochs=1 --helpers=3 --mc-samples=2".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared")
    main(["compare", "--methods", "um", "local", "--alphas", "5", "--seeds", "0", "1", "--out", str(out), "--jobs", "1", *TINY])
    return out


def test_every_cell_has_its_folder_and_the_table_its_files(compared: Path):
    cells = sorted(p.name for p in compared.iterdir() if p.is_dir())
    assert cells == ["local-a5-s0", "local-a5-s1", "um-a5-s0", "um-a5-s1"]
    manifests = [json.loads((compared / name / "manifest.json").read_text())["config"] for name in cells]
    assert [(config["method"], config["seed"]) for config in manifests] == [("local", 0), ("local", 1), ("um", 0), ("um", 1)]
    with (compared / "table.csv").open() as f:
        rows = list(csv.DictReader(f))
    summaries = [json.loads((compared / f"um-a5-s{s}" / "summary.json").read_text()) for s in (0, 1)]
    assert [row["gain"] == "" for row in rows] == [False, True], "over itself local gains nothing, not nan"
    assert float(rows[0]["test"]) == pytest.approx(sum(s["test_at_best_val"] for s in summaries) / 2)
    assert [line.split("|")[1].strip() for line in (compared / "table.md").read_text().splitlines()[2:]] == ["um", "local"]
    with (compared / "gains.csv").open() as f:
        gains = list(csv.DictReader(f))
    assert len(gains) == 4 * 6
    assert all(float(g["gain_over_local"]) == 0 for g in gains if g["method"] == "local")


def test_settings_go_to_the_methods_that_have_them(compared: Path):
    um, alone = (json.loads((compared / f"{m}-a5-s0" / "manifest.json").read_text())["settings"] for m in ("um", "local"))
    assert (um["helpers"], um["warmup_epochs"], alone["warmup_epochs"]) == (3, 1, 1)
    assert "helpers" not in alone


def cells(out: Path, **flags: Any) -> list[comparison.Cell]:
    tiny = {
        "clients": 6,
        "rounds": 2,
        "width": 2,
        "epochs": 1,
        "batch_size": 64,
        "warmup_epochs": 1,
        "helpers": 3,
        "mc_samples": 2,
    }
    return comparison.cells_of(["um"], [5.0], [0], out, lambda method: settle({**tiny, **flags, "method": method}))


def test_a_finished_cell_is_not_run_again(compared: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("ran again")

    monkeypatch.setattr(RUN, "play", refuse)
    ((again,), _) = comparison.do_all(cells(compared), 1, True)
    assert again.summary == json.loads((compared / "um-a5-s0" / "summary.json").read_text())


def test_what_is_finished_is_read_without_a_process(compared: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison, "ProcessPoolExecutor", None)
    both = comparison.cells_of(
        ["um"], [5.0], [0, 1], compared, lambda _: (cells(compared)[0].config, cells(compared)[0].settings)
    )
    assert [result.folder.name for result in comparison.do_all(both, 2, True)[0]] == ["um-a5-s0", "um-a5-s1"]


def test_a_comparison_tells_of_every_run_where_there_is_no_terminal(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(compared / "um-a5-s0", tmp_path / "um-a5-s0")
    words = ["--methods", "um", "local", "--alphas", "5", "--seeds", "0", "1", "--out", str(tmp_path), "--jobs", "2", *TINY]
    main(["compare", *words])
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "runs 1/4  2 at a time"
    assert [line.split(":")[0].split()[1] for line in others] == ["2/4", "3/4", "4/4"]
    assert {line.split(":")[0].split()[2] for line in others} == {"um-a5-s1", "local-a5-s0", "local-a5-s1"}


@pytest.mark.parametrize("quiet", [True, False])
def test_a_comparison_that_is_stopped_says_how_it_goes_on(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kithkin.comparison.do_all", stop)
    with pytest.raises(SystemExit) as end:
        main(["compare", "--methods", "um", "--out", str(tmp_path), *["--quiet"] * quiet])
    assert end.value.code == 130
    assert ("the same command goes on with it" in capsys.readouterr().err) is not quiet


def test_a_cell_with_other_flags_is_refused_and_they_are_named(compared: Path):
    with pytest.raises(KithkinError, match=r"with lr 0\.01 instead of 0\.5, momentum 0\.9 instead of 0\.5\."):
        comparison.do_all(cells(compared, lr=0.5, momentum=0.5), 1, True)


def test_a_cell_with_other_settings_of_its_method_is_refused(compared: Path):
    with pytest.raises(KithkinError, match=r"with candidates 2 instead of 1\."):
        comparison.do_all(cells(compared, candidates=1), 1, True)


def test_where_a_run_is_computed_and_how_often_it_is_saved_is_no_other_experiment_and_its_precision_is(compared: Path):
    (cell,) = cells(compared)
    same = {"device": "cpu", "compute": "eager", "pool": "host", "checkpoint_every": 3, "data_folder": Path("moved")}
    comparison.check_same(replace(cell, config=replace(cell.config, **same)))
    with pytest.raises(KithkinError, match="precision bf16 instead of fp32"):
        comparison.check_same(replace(cell, config=replace(cell.config, precision="fp32")))


def test_a_setting_that_is_newer_than_a_run_had_its_usual_value(compared: Path, tmp_path: Path):
    shutil.copytree(compared, tmp_path / "older")
    path = tmp_path / "older" / "um-a5-s0" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["settings"]["refresh_every"], manifest["config"]["momentum"]
    path.write_text(json.dumps(manifest))
    assert len(comparison.do_all(cells(tmp_path / "older"), 1, True)[0]) == 1
    with pytest.raises(KithkinError, match=r"momentum 0\.9 instead of 0\.5, refresh_every 10 instead of 3"):
        comparison.do_all(cells(tmp_path / "older", momentum=0.5, refresh_every=3), 1, True)


def test_a_broken_off_cell_goes_on(tmp_path: Path, compared: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RUN, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            comparison.do_all(cells(tmp_path), 1, True)
    assert not (tmp_path / "um-a5-s0" / "summary.json").exists()
    ((whole,), _) = comparison.do_all(cells(tmp_path), 1, True)
    before = json.loads((compared / "um-a5-s0" / "summary.json").read_text())
    assert whole.summary["test_at_best_val"] == before["test_at_best_val"]


def test_a_stopped_comparison_begins_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stop, done = threading.Event(), []

    def broken(cell: comparison.Cell, **_: Any) -> None:
        done.append(cell)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    monkeypatch.setattr(comparison, "do", broken)
    monkeypatch.setattr(comparison, "stopped", None)
    before = signal.getsignal(signal.SIGINT)
    try:
        comparison.begin_work(stop)
        os.kill(os.getpid(), signal.SIGINT)  # between runs there is nothing to stop
        for cell in cells(tmp_path) * 2:
            with pytest.raises(KeyboardInterrupt):
                comparison.work(cell)
    finally:
        signal.signal(signal.SIGINT, before)
    assert stop.is_set()
    assert len(done) == 1


def test_a_cell_goes_on_elsewhere_than_it_began(compared: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    monkeypatch.setattr(comparison, "resume", lambda folder, display, where: asked.append(where))
    cell = cells(compared)[0]
    elsewhere = {"device": "cpu", "compute": "eager", "pool": "host", "data_folder": Path("moved")}
    comparison.do(replace(cell, config=replace(cell.config, **elsewhere)))
    assert asked == [{"device": "cpu", "compute": "eager", "pool": "host"}]


def test_processes_side_by_side_give_the_same_runs(compared: Path, tmp_path: Path):
    main(["compare", "--methods", "um", "local", "--alphas", "5", "--out", str(tmp_path), "--jobs", "2", "--quiet", *TINY])
    for cell in ("um-a5-s0", "local-a5-s0"):
        mine, theirs = ((p / cell / "clients.jsonl").read_text() for p in (tmp_path, compared))
        assert mine == theirs


def test_runs_side_by_side_take_a_core_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["kithkin.compute.choose"], "cores", lambda: 4)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        comparison.do(*cells(tmp_path), True, one_thread=True)
    finally:
        torch.set_num_threads(before)
    machine = json.loads((tmp_path / "um-a5-s0" / "manifest.json").read_text())["machine"]
    assert (machine["compute"], machine["processes"]) == ("eager", 1)


def test_an_unknown_method_is_named_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main(["compare", "--methods", "um", "fixagv", "--out", str(tmp_path / "x"), *TINY])
    assert end.value.code == 2
    assert "Did you mean 'fixavg'?" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_mistake_in_a_process_of_its_own_is_still_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as end:
        main(["compare", "--methods", "um", "local", "--out", str(tmp_path / "file" / "x"), "--jobs", "2", "--quiet", *TINY])
    assert end.value.code == 2
    assert "Give another --out." in capsys.readouterr().err


def test_settings_that_cannot_be_are_named_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["compare", "--methods", "local", "um", "--helpers", "200", "--out", str(tmp_path / "x")])
    assert "--helpers is 200" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("words", ["--methods", "--methods um --seeds", "--methods um --alphas", "--methods um --jobs 0"])
def test_nothing_to_compare_is_refused(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main(["compare", "--out", str(tmp_path / "x"), *TINY, *words.split()])
    assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_seed_named_twice_is_one_seed(tmp_path: Path):
    twice = comparison.cells_of(["um", "um"], [5.0, 5.0], [0, 0], tmp_path, lambda method: settle({"method": method}))
    assert len(twice) == 1


def test_a_method_named_in_two_ways_is_one_and_two_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first would count as a second seed that never differs, the second run into the folder of the first."""
    example = Path(__file__).parents[2] / "examples" / "momentum.py"
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        shutil.copy(example, tmp_path / folder)
    monkeypatch.chdir(tmp_path / "here")

    def cells(*methods: str, alphas: tuple[float, ...] = (5.0,)) -> list[comparison.Cell]:
        return comparison.cells_of(methods, alphas, [0], tmp_path / "out", lambda method: settle({"method": method}))

    assert len(cells("momentum:FEDAVGM", "momentum.py:FEDAVGM")) == 1
    with pytest.raises(KithkinError, match=r"here/momentum.py:FEDAVGM at 5.0 would both be .*momentum\.FEDAVGM-a5-s0"):
        cells("momentum:FEDAVGM", "../there/momentum.py:FEDAVGM")
    with pytest.raises(KithkinError, match="would both be"):
        cells("um", alphas=(0.12345671, 0.12345672))


def test_a_flag_takes_what_any_of_its_methods_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`local` is asked first and has no such objective: it is the one to complain."""
    tiny = ["--alphas", "0.5", "--clients", "6", "--rounds", "1", "--epochs", "1", "--width", "2", "--jobs", "1"]
    main(["compare", "--methods", "fixavg", *tiny, "--objective", "supervised", "--out", str(tmp_path / "runs")])
    assert "fixavg" in capsys.readouterr().out
    with pytest.raises(SystemExit) as e:
        main(["compare", "--methods", "local", *tiny, "--objective", "supervised", "--out", str(tmp_path / "none")])
    assert e.value.code == 2
    assert "labelled-only" in capsys.readouterr().err


def test_a_killed_process_is_told_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(self: Any, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(BrokenProcessPool())
        return future

    monkeypatch.setattr(comparison.ProcessPoolExecutor, "submit", killed)
    cells = comparison.cells_of(["local", "fixavg"], [0.5], [0], tmp_path, lambda m: settle({"method": m}))
    with pytest.raises(KithkinError, match="ended early") as caught:
        comparison.do_all(cells, 2, quiet=True)
    assert "--jobs" in caught.value.remedy


def test_runs_stand_in_the_order_of_their_cells_whichever_was_done_first():
    there: Any = [SimpleNamespace(folder=name) for name in ("a", "b", "c", "d")]
    one, two = (Result(Path(name), {}, [], []) for name in ("a", "d"))
    broken = {2: KithkinError("Late.", "Wait."), 1: KithkinError("Early.", "Run.")}
    results, late = comparison._in_order(there, {3: two, 0: one}, broken)
    assert results == [one, two]
    assert comparison.told(late) == "b: Early. Run. c: Late. Wait."


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a comparison that ends badly says."""
    with pytest.raises(SystemExit) as end:
        main(["compare", *words])
    assert end.value.code == 2
    return " ".join(capsys.readouterr().err.split())


SMALL = ["--alphas", "0.5", "--clients", "6", "--rounds", "1", "--epochs", "1", "--width", "2", "--quiet"]


def test_other_flags_in_a_used_folder_run_nothing_and_leave_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = [*SMALL, "--jobs", "1", "--out", str(tmp_path / "runs")]
    main(["compare", "--methods", "fixavg", *words])
    before = (tmp_path / "runs" / "table.md").read_text()
    assert "holds a run with rounds 1 instead of 2. Nothing was run." in told(
        capsys, "--methods", "local", "fixavg", *words, "--rounds", "2"
    )
    assert (tmp_path / "runs" / "table.md").read_text() == before
    assert not (tmp_path / "runs" / "local-a0.5-s0").exists()
    main(["compare", "--methods", "local", *(word for word in words if word != "--quiet")])
    assert "not in the table, as they were not named: 1." in capsys.readouterr().out


def test_code_that_changed_since_a_run_broke_off_is_another_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parents[2] / "examples" / "momentum.py", "mine.py")
    words = ["--methods", "mine.py:FEDAVGM", *SMALL, "--jobs", "1", "--out", "runs"]
    with monkeypatch.context() as patch:
        patch.setattr(RUN, "finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(["compare", *words])
    with Path("mine.py").open("a") as f:
        f.write("# changed\n")
    assert "holds a run with another method of the same name" in told(capsys, *words)


def test_a_network_that_broke_since_a_run_is_named_by_its_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    mine = tmp_path / "mine.py"
    shutil.copy(Path(__file__).parents[2] / "examples" / "small_vit.py", mine)
    sizes = [word for word in SMALL if word not in ("--width", "2")]
    words = ["--methods", "local", *sizes, "--model", f"{mine}:build", "--jobs", "1", "--out", str(tmp_path / "runs")]
    main(["compare", *words])
    mine.write_text("1 / 0")
    assert f"error: --model: importing {mine} fails (ZeroDivisionError: division by zero)." in told(capsys, *words)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_run_that_breaks_off_costs_no_other(jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "runs"
    said = told(capsys, "--methods", "pfedme", "local", *SMALL, "--lr", "3", "--jobs", jobs, "--out", str(out))
    assert "1 of 2 runs broke off" in said
    assert "The same command tries these again, but not what diverged." in said
    assert f"{out / 'pfedme-a0.5-s0'}: The loss of client" in said
    assert [line.split(" | ")[0] for line in (out / "table.md").read_text().splitlines()[2:]] == ["| local"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_diverged_is_not_tried_again(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "runs"
    words = ["--methods", "fixavg", "local", *SMALL, "--lrs", "0.01", "1e20", "--jobs", jobs, "--out", str(out)]
    main(["compare", *words])
    before = (out / "rates.csv").read_text()

    def refuse(*_: Any) -> None:
        raise AssertionError("ran again")

    with monkeypatch.context() as patch:
        patch.setattr(RUN, "play", refuse)
        patch.setattr(comparison, "ProcessPoolExecutor", None)
        main(["compare", *words])
    assert (out / "rates.csv").read_text() == before
    words = ["--methods", "fixavg", *SMALL, "--lr", "1e20", "--jobs", jobs, "--out", str(tmp_path / "table")]
    said = told(capsys, *words)
    assert "The loss of client" in said
    note = tmp_path / "table" / "fixavg-a0.5-s0" / "diverged.txt"
    assert f"{note.read_text().strip()} Give a smaller --lr; without {note} it is tried again." in told(capsys, *words)
    note.unlink()
    assert told(capsys, *words) == said


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_method_of_ones_own_that_fails_costs_no_other(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "banana.py").write_text(
        "from kithkin.methods import METHODS, Entry, FedAvg\n"
        "class Bad(FedAvg):\n"
        "    def merge(self, server, replies, round):\n"
        "        return 1 / 0\n"
        "fixavg = METHODS['fixavg']\n"
        "BAD = Entry('bad', fixavg.settings, lambda s, at: Bad(**vars(fixavg.make(s, at))))\n"
        "GOOD = Entry('good', fixavg.settings, fixavg.make)\n"
    )
    methods = ["banana:BAD", "banana:GOOD"]
    said = told(capsys, "--methods", *methods, "local", *SMALL, "--jobs", jobs, "--out", "runs")
    assert "1 of 3 runs broke off" in said
    assert "banana.py, line 4" in said
    table = Path("runs/table.md").read_text().splitlines()[2:]
    assert [line.split(" | ")[0] for line in table] == ["| banana:GOOD", "| local"]


def test_flags_mean_one_thing_in_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = ["--jobs", "1", "--out", str(tmp_path / "runs")]
    assert "None of local takes --helpers here" in told(capsys, "--methods", "local", *SMALL, "--helpers", "4", *out)
    unheeded = ["--methods", "local", "fedavg-sl", *SMALL, "--threshold", "0.5", *out]
    assert "None of local, fedavg-sl takes --threshold here" in told(capsys, *unheeded)
    said = told(capsys, "--methods", "fixprox", "mix", "pfedme", *SMALL, "--prox", "0.1", *out)
    assert "--prox is lambda to pfedme and mu to fixprox, mix" in said
    assert not (tmp_path / "runs").exists()
    main(["compare", "--methods", "fixavg", "fedavg-sl", *SMALL, "--objective", "labelled-only", *out])
    settings = (json.loads(path.read_text())["settings"] for path in sorted(tmp_path.glob("runs/*/manifest.json")))
    assert [s["objective"] for s in settings] == ["supervised", "labelled-only"]


@pytest.mark.parametrize("change", ["images", "labels"])
def test_no_table_mixes_runs_on_two_data_sets_of_one_name(change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    digits = load("digits")
    arrays = {"images": digits.images[:200], "labels": digits.labels[:200] % 3}
    np.savez(tmp_path / "mine.npz", **arrays)
    words = [*SMALL, "--data", str(tmp_path / "mine.npz"), "--jobs", "1", "--out", str(tmp_path / "runs")]
    main(["compare", "--methods", "local", *words])
    np.savez(tmp_path / "mine.npz", **arrays | {change: arrays[change][::-1]})
    comparison.fingerprint.cache_clear()  # as in another process
    said = told(capsys, "--methods", "local", "fixavg", *words)
    assert "local-a0.5-s0 holds a run with another data of the same name" in said


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux promises it")
@pytest.mark.parametrize("at", ["begin", "work"])
def test_nobody_goes_on_with_a_comparison_that_was_killed(tmp_path: Path, at: str):
    """Be it before its processes have asked to die with it."""
    words = ["--methods", "local", "fixavg", *SMALL, "--rounds", "500", "--jobs", "2", "--out", str(tmp_path / "runs")]
    code = f"from kithkin.cli import main; main({['compare', *words]!r})"
    parent = subprocess.Popen([sys.executable, "-c", f"if __name__ == '__main__': {code}"])

    def children() -> list[int]:
        told = subprocess.run(["pgrep", "-P", str(parent.pid), "-f", "spawn_main"], capture_output=True, text=True)
        return [int(pid) for pid in told.stdout.split()]

    try:
        wait_until(lambda: len(children()) == 2 and (at == "begin" or len(list(tmp_path.glob("runs/*/metrics.jsonl"))) == 2))
        left = [{"pid": pid, "born": _birth(pid)} for pid in children()]
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not any(map(is_alive, left)))


def wait_until(true: Callable[[], bool], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.2)
