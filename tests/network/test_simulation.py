"""Flower's simulation, on Ray, gives the run of the local courier: the same metrics, lists and bytes, exams apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake import figures, flags_of, local
from fleet import SRC

from kithkin.record import Folder

pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("network")


@pytest.mark.parametrize("method", ["um", "fedper"])
def test_the_same_run_in_flowers_simulation(method: str, tmp_path: Path):
    here = local(method, tmp_path / "local")
    flags = flags_of(method) | {"compute": None, "checkpoint_every": None, "save_models": None}
    words = [word for k, v in flags.items() if v is not None for word in ("--" + k.replace("_", "-"), str(v))]
    command = [sys.executable, "-m", "kithkin", "federation", "run", *words, "--out", str(tmp_path / "sim"), "--quiet"]
    env = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    there = Folder(tmp_path / "sim")
    for ours, theirs in zip(figures(there.read_lines(there.metrics)), figures(here.metrics), strict=True):
        exam = ours["bytes_by_cause"].pop("exam", 0)
        assert ours.pop("down_bytes") - exam == theirs.pop("down_bytes")
        assert ours == theirs
    for name in ("marks", "lists", "audit", "clients"):
        assert getattr(there, name).read_text() == getattr(Folder(tmp_path / "local"), name).read_text(), name
