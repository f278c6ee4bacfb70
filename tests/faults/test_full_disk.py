"""A disk that is full: the run ends clean, and the last good checkpoint stays."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import argv, assert_same_run, break_off, checkpoints, drafts, finished, listen, spawn, start

from kithkin.errors import KithkinError
from kithkin.record import checkpoint, models, resume

Whole = Callable[..., Path]

FEW_BYTES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))"
"""No file may grow beyond 30 kB: enough for every line of the record, too little for a model's numbers."""


def no_room(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_room_for_a_checkpoint_ends_the_run_with_a_remedy_and_keeps_the_one_before(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "run"
    save: Callable[..., None] = checkpoint.write_tensors

    def full_from_round_4(path: Path, *what: Any) -> None:
        if "round-000004" not in path.name:
            return save(path, *what)
        path.write_bytes(b"half")
        return no_room()

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", full_from_round_4)
        with pytest.raises(KithkinError) as caught:
            start(out, "fixbn", rounds=6)
    assert "the disk is full" in caught.value.problem
    assert f"kithkin resume {out}" in caught.value.remedy
    assert "round-000002" in caught.value.remedy
    assert checkpoints(out) == ["round-000002"]
    assert not drafts(out)
    again = listen(out)
    assert (again.already, again.said) == (2, [])
    assert_same_run(out, whole("fixbn", rounds=6))


def test_no_room_for_the_first_checkpoint_says_that_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint, "write_tensors", no_room)
    with pytest.raises(KithkinError, match="there is no checkpoint yet"):
        start(tmp_path / "run", "fixbn")
    assert checkpoints(tmp_path / "run") == []


def test_no_room_for_the_voucher_keeps_the_checkpoint_before(whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = break_off(tmp_path / "run", "fixbn", 3, rounds=6)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_json", no_room)
        with pytest.raises(KithkinError, match="the disk is full"):
            resume(out)
    again = listen(out)
    assert again.already == 2
    assert_same_run(out, whole("fixbn", rounds=6))


def test_no_room_to_make_a_checkpoint_last_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = break_off(tmp_path / "run", "fixbn", 3, rounds=6)
    before = {p.name: p.read_bytes() for p in (out / "checkpoints").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_whole", with_failing_fsync(checkpoint.write_whole))
        with pytest.raises(KithkinError, match="the disk is full"):
            resume(out)
    assert {p.name: p.read_bytes() for p in (out / "checkpoints").iterdir()} == before


def with_failing_fsync(write: Callable[..., None]) -> Callable[..., None]:
    def failing(*args: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", no_room)
            write(*args)

    return failing


def test_no_room_when_resuming_begins_ends_with_a_remedy(whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = break_off(tmp_path / "run", "fixbn", 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(KithkinError, match="the disk is full"):
            resume(out)
    resume(out)
    assert_same_run(out, whole("fixbn"))


@pytest.mark.parametrize("name", ["metrics.jsonl", "marks.jsonl"])
def test_no_room_for_a_line_ends_with_a_remedy_and_the_run_goes_on_later(
    whole: Whole, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "run"
    opened: Callable[..., Any] = Path.open

    def full_for_the_third_line(self: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
        if mode == "a" and self.name == name and self.read_text().count("\n") == 2:
            no_room()
        return opened(self, mode, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full_for_the_third_line)
        with pytest.raises(KithkinError, match="the disk is full") as caught:
            start(out, "fixbn")
    assert f"kithkin resume {out}" in caught.value.remedy
    assert listen(out).already == 2
    assert_same_run(out, whole("fixbn"))


def test_no_room_for_the_models_leaves_a_run_to_be_finished(whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(models, "write_tensors", no_room)
        with pytest.raises(KithkinError, match="the disk is full") as caught:
            start(out, "fixbn")
    assert f"kithkin resume {out}" in caught.value.remedy
    assert not (out / "summary.json").exists()
    assert not drafts(out)
    resume(out)
    assert_same_run(out, whole("fixbn"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return break_off(tmp_path_factory.mktemp("stopped") / "run", "fixbn", 3, rounds=6)


def test_a_file_system_that_refuses_a_checkpoint_ends_the_command_clean(whole: Whole, stopped: Path, tmp_path: Path):
    out = tmp_path / "run"
    shutil.copytree(stopped, out)
    before = {p.name: p.read_bytes() for p in (out / "checkpoints").iterdir()}
    code, printed, err = finished(spawn(["resume", str(out)], FEW_BYTES))
    assert "Traceback" not in err, err
    assert (code, printed) == (2, "")
    (line,) = [text for text in err.splitlines() if text.startswith("error:")]
    assert "the disk is full" in line
    assert f"kithkin resume {out}" in line
    assert {p.name: p.read_bytes() for p in (out / "checkpoints").iterdir()} == before
    assert not drafts(out)
    assert listen(out).already == 2
    assert_same_run(out, whole("fixbn", rounds=6))


def test_a_file_system_that_refuses_the_models_ends_the_command_clean(whole: Whole, tmp_path: Path):
    out = tmp_path / "run"
    code, _, err = finished(spawn(argv("fixbn", out, checkpoint_every=0), FEW_BYTES))
    assert "Traceback" not in err, err
    assert code == 2
    assert "the disk is full" in err
    assert not (out / "summary.json").exists()
    assert not drafts(out)
    resume(out)
    assert_same_run(out, whole("fixbn", checkpoint_every=0))
