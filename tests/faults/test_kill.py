"""Real signals to real processes: killed or interrupted at any moment, a run goes on to the same end."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tiny_runs import argv, assert_same_run, checkpoints, drafts, finished, lines, spawn, wait_for_lines

Whole = Callable[..., Path]
LONG = {"rounds": 8, "checkpoint_every": 2}
CTRL_C_WORKS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # even below a shell's `&`


def test_a_run_killed_at_any_moment_goes_on_to_the_same_end(whole: Whole, tmp_path: Path):
    out = tmp_path / "run"
    process = spawn(argv("um", out, **LONG))
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


def test_ctrl_c_saves_the_last_finished_round_says_how_to_go_on_and_ends_with_130(whole: Whole, tmp_path: Path):
    out = tmp_path / "run"
    process = spawn(argv("um", out, rounds=8, checkpoint_every=0), CTRL_C_WORKS)
    wait_for_lines(out / "metrics.jsonl", 2, process)
    process.send_signal(signal.SIGINT)
    code, _, err = finished(process)
    assert code == 130, err
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
