"""Flower's simulation, on Ray, gives the run of the local courier: the same metrics, lists and bytes, exams apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake import figures, flags_of, local
from tiny_runs import finished, spawn, wait_for_lines, waits_in_round

from kithkin.errors import KithkinError
from kithkin.record import Folder, resume

pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("network")


@pytest.fixture(autouse=True)
def no_niceness(monkeypatch: pytest.MonkeyPatch):
    """Ray's workers stand back behind all else: beside other tests that takes minutes."""
    monkeypatch.setenv("RAY_worker_niceness", "0")


def command(method: str, out: Path, **more: object) -> list[str]:
    flags = flags_of(method, **more) | {"compute": None, "save_models": None}
    words = [word for k, v in flags.items() if v is not None for word in ("--" + k.replace("_", "-"), str(v))]
    return ["federation", "run", *words, "--out", str(out), "--quiet"]


def done(words: list[str]) -> None:
    code, _, err = finished(spawn(words))
    assert code == 0, err[-3000:]


def alike(there: Folder, here: Folder) -> None:
    for ours, theirs in zip(figures(there.read_lines(there.metrics)), figures(here.read_lines(here.metrics)), strict=True):
        exam = ours["bytes_by_cause"].pop("exam", 0)
        assert ours.pop("down_bytes") - exam == theirs.pop("down_bytes")
        assert ours == theirs
    for name in ("marks", "lists", "audit", "clients"):
        assert getattr(there, name).read_text() == getattr(here, name).read_text(), name


@pytest.mark.parametrize("method", ["um", "fedper"])
def test_the_same_run_in_flowers_simulation(method: str, tmp_path: Path):
    local(method, tmp_path / "local")
    done(command(method, tmp_path / "sim", checkpoint_every=None))
    alike(Folder(tmp_path / "sim"), Folder(tmp_path / "local"))


def test_a_killed_simulation_goes_on_where_it_was(tmp_path: Path):
    local("um-plus", tmp_path / "local", rounds=8)
    there = Folder(tmp_path / "sim")
    process = spawn(command("um-plus", there.path, rounds=8, checkpoint_every=None), waits_in_round(8, tmp_path / "never"))
    wait_for_lines(there.metrics, 3, process)
    process.kill()
    process.communicate()
    assert not there.summary.exists()
    refused = finished(spawn(["resume", str(there.path), "--device", "cpu"]))
    assert "A simulated run goes on as it began." in refused[2]
    done(["resume", str(there.path), "--quiet"])
    alike(there, Folder(tmp_path / "local"))
    there.summary.unlink()
    with pytest.raises(KithkinError, match="are elsewhere"):
        resume(there.path)
