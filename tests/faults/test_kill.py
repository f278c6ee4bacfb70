"""Real signals to real processes: killed or interrupted at any moment, a run goes on to the same end."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_runs import argv, assert_same_run, checkpoints, drafts, finished, lines, spawn, wait_for_lines, waits_in_round

from kithkin.compute.workers import start_method
from kithkin.record import resume

Whole = Callable[..., Path]
LONG = {"rounds": 8, "checkpoint_every": 2}
CTRL_C_WORKS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # even below a shell's `&`
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)  # even below nohup
"""


def test_a_run_killed_at_any_moment_goes_on_to_the_same_end(whole: Whole, tmp_path: Path):
    out = tmp_path / "run"
    process = spawn(argv("um", out, **LONG), waits_in_round(8, tmp_path / "never"))
    wait_for_lines(out / "metrics.jsonl", random.choice([1, 2, 3]), process)
    time.sleep(random.uniform(0, 0.2))
    process.kill()
    assert finished(process)[0] == -signal.SIGKILL
    assert not (out / "summary.json").exists()
    code, _, err = finished(spawn(["resume", str(out)]))
    assert code == 0, err
    assert "Traceback" not in err
    assert_same_run(out, whole("um", **LONG))
    assert not drafts(out)
    assert len(checkpoints(out)) == 2


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_saves_the_last_finished_round_and_says_how_to_go_on(whole: Whole, tmp_path: Path, how: signal.Signals):
    """Ctrl-C, a batch system's, and that of a terminal that is closed."""
    out = tmp_path / "run"
    process = spawn(argv("um", out, rounds=8, checkpoint_every=0), CTRL_C_WORKS + waits_in_round(8, tmp_path / "never"))
    wait_for_lines(out / "metrics.jsonl", 2, process)
    process.send_signal(how)
    code, _, err = finished(process)
    assert code == 128 + how, err
    assert "Traceback" not in err
    said = re.fullmatch(r"Stopped after round (\d)\. Go on with `kithkin resume (.+)`\.", err.splitlines()[-1])
    assert said, err
    done = int(said[1])
    assert (done >= 2, said[2]) == (True, str(out))
    assert checkpoints(out) == [f"round-{done:06d}"]
    assert [line["round"] for line in lines(out / "metrics.jsonl")][:done] == list(range(1, done + 1))
    assert not drafts(out)
    code, printed, err = finished(spawn(["resume", str(out)]))
    assert code == 0, err
    assert "No good checkpoint" not in err
    assert f"round {done + 1}/8" in err
    assert f"round {done}/8" not in err
    assert "test accuracy at best validation" in printed
    assert_same_run(out, whole("um", **LONG))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_reaches_a_comparison_alone_stops_and_saves_its_runs(tmp_path: Path, how: signal.Signals):
    run = argv("um", tmp_path, rounds=10_000, eval_every=10_000, checkpoint_every=0)
    at = run.index("--method")
    words = ["compare", "--methods", "um", "local", "--jobs", "2", *run[1:at], *run[at + 2 :]]
    process = spawn(words, CTRL_C_WORKS)
    for run in (runs := [tmp_path / f"{method}-a0.5-s0" for method in ("um", "local")]):
        wait_for_lines(run / "metrics.jsonl", 2, process)
    process.send_signal(how)
    code, _, err = finished(process)
    assert code == 128 + how, err
    assert "Traceback" not in err
    for run in runs:
        assert len(checkpoints(run)) == 1
        assert not drafts(run)


TWO_WORKERS = """
import os, sys, torch, kithkin.compute
os.setsid()  # a terminal's Ctrl-C reaches a whole group of processes
torch.set_num_threads(2)
sys.modules["kithkin.compute.choose"].cores = lambda: 2
"""
forked = pytest.mark.skipif(start_method() != "fork", reason="workers are not forked here")


@forked
def test_ctrl_c_in_a_terminal_ends_the_workers_quietly_and_saves_the_run(whole: Whole, tmp_path: Path):
    out = tmp_path / "run"
    before = CTRL_C_WORKS + TWO_WORKERS + waits_in_round(8, tmp_path / "never")
    process = spawn(argv("um", out, rounds=8, checkpoint_every=0, compute="workers"), before)
    wait_for_lines(out / "metrics.jsonl", 2, process)
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = finished(process)
    assert code == 130, err
    assert "workers on cpu, processes: 2" in err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("Stopped after round ")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody is left in the group
    assert len(checkpoints(out)) == 1
    resume(out)
    assert_same_run(out, whole("um", **LONG))


@forked
def test_a_run_whose_worker_is_killed_ends_with_a_remedy_and_goes_on(whole: Whole, tmp_path: Path):
    out = tmp_path / "run"
    process = spawn(argv("um", out, compute="workers", **LONG), TWO_WORKERS + waits_in_round(8, tmp_path / "go"))
    wait_for_lines(out / "metrics.jsonl", 3, process)
    worker = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    os.kill(int(worker.stdout.split()[0]), signal.SIGKILL)
    (tmp_path / "go").touch()
    code, _, err = finished(process)
    assert code == 2, err
    assert "Traceback" not in err
    assert re.search(r"error: A worker process died at its work \(SIGKILL\)\..*--compute eager", err)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    resume(out)
    assert_same_run(out, whole("um", **LONG))
