"""A run that was broken off and resumed is the run that never was: bit for bit, seconds excepted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tiny_runs import (
    RUN,
    Heard,
    assert_same_run,
    break_off,
    checkpoints,
    die_in_round,
    drafts,
    lines,
    listen,
    start,
    stop_in_round,
)

import kithkin
from kithkin.data import load
from kithkin.errors import KithkinError
from kithkin.federation import LocalCourier
from kithkin.record import StopRunError, assembling, resume
from kithkin.record import folder as folder_module

Whole = Callable[..., Path]


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("um", 0),
        ("um", 1),
        ("um", 3),
        ("um", 4),
        ("fixbn", 1),
        ("fixbn", 3),
        ("pfedme", 3),
        ("mix", 4),
        ("local", 2),
    ],
)
def test_a_run_stopped_by_ctrl_c_goes_on_as_if_nothing_had_been(whole: Whole, tmp_path: Path, method: str, number: int):
    heard = Heard()
    out = break_off(tmp_path / "run", method, number, heard)
    done = max(0, number - 1)
    where = f"after round {done}" if number else "in the warm-up, which begins anew"
    assert heard.said == [f"Stopped {where}. Go on with `kithkin resume {out}`."]
    assert heard.stopped
    assert len(lines(out / "metrics.jsonl")) == done
    assert not (out / "summary.json").exists()
    again = listen(out)
    assert max(0, again.already) == done
    assert again.rounds == list(range(done + 1, 5))
    assert_same_run(out, whole(method))
    assert not drafts(out)


@pytest.mark.parametrize(("method", "number"), [("um", 4), ("pfedme", 4), ("fixbn", 2)])
def test_a_run_that_died_goes_on_from_its_last_checkpoint(whole: Whole, tmp_path: Path, method: str, number: int):
    out = die_in_round(tmp_path / "run", method, number)
    again = listen(out)
    assert again.already == (2 if number > 2 else 0)
    assert again.said == ([] if number > 2 else ["No good checkpoint: starting from the beginning."])
    assert_same_run(out, whole(method))


def test_a_run_may_be_stopped_in_every_round(whole: Whole, tmp_path: Path):
    out = break_off(tmp_path / "run", "um", 1)
    for number in (2, 3, 4):
        with pytest.MonkeyPatch.context() as patch:
            stop_in_round(patch, number)
            with pytest.raises(KeyboardInterrupt):
                resume(out)
    resume(out)
    assert_same_run(out, whole("um"))
    assert len(checkpoints(out)) <= 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, KithkinError])
def test_a_run_that_is_stopped_while_it_ends_has_lost_nothing(whole: Whole, tmp_path: Path, error: type[BaseException]):
    def broken(*_: Any) -> None:
        raise error(*["x", "y"] * (error is KithkinError))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembling.Federation, "save_models", broken)
        with pytest.raises(error):
            start(tmp_path / "run", "fixbn", checkpoint_every=0)
    assert checkpoints(tmp_path / "run") == ["round-000004"]
    again = listen(tmp_path / "run")
    assert (again.already, again.rounds) == (4, [])
    assert_same_run(tmp_path / "run", whole("fixbn"))


def test_a_run_that_another_process_finished_meanwhile_is_only_read(tmp_path: Path, whole: Whole):
    out = break_off(tmp_path / "run", "fixbn", 2)
    assemble: Callable[..., Any] = RUN.assemble

    def slowly(*args: Any) -> Any:
        federation = assemble(*args)
        if not (out / "summary.json").exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(RUN, "assemble", assemble)
                resume(out)  # the other one
        return federation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RUN, "assemble", slowly)
        resume(out)
    assert_same_run(out, whole("fixbn"))


def test_a_display_may_end_a_run_which_is_saved_as_far_as_it_came(whole: Whole, tmp_path: Path):
    class Ending(Heard):
        def round(self, line: dict[str, Any], moved: int) -> None:
            super().round(line, moved)
            if line["round"] == 3:
                raise StopRunError

    ending = Ending()
    with pytest.raises(StopRunError):
        start(tmp_path / "run", "fixbn", ending, checkpoint_every=None)
    assert (ending.rounds, ending.said, ending.stopped) == ([1, 2, 3], [], True)
    assert checkpoints(tmp_path / "run") == ["round-000003"]
    assert listen(tmp_path / "run").already == 3
    assert_same_run(tmp_path / "run", whole("fixbn"))


@pytest.mark.parametrize("number", [1, 3, 4])
def test_ctrl_c_while_evaluating_loses_no_line(whole: Whole, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch):
    examine: Callable[..., Any] = LocalCourier.examine

    def broken(self: LocalCourier, method: Any, server: Any, states: Any, round: int) -> Any:
        if round == number:
            raise KeyboardInterrupt
        return examine(self, method, server, states, round)

    with monkeypatch.context() as patch:
        patch.setattr(LocalCourier, "examine", broken)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "run", "fixbn")
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole("fixbn"))


@pytest.mark.parametrize("name", ["marks.jsonl", "metrics.jsonl"])
@pytest.mark.parametrize("after", [False, True])
def test_ctrl_c_while_writing_a_line_loses_and_repeats_none(
    whole: Whole, tmp_path: Path, name: str, after: bool, monkeypatch: pytest.MonkeyPatch
):
    append: Callable[..., None] = folder_module.Folder.append

    def broken(self: folder_module.Folder, path: Path, line: dict[str, Any]) -> None:
        stop = path.name == name and line["round"] == 3
        if not stop or after:
            append(self, path, line)
        if stop:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder_module.Folder, "append", broken)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "run", "fixbn")
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole("fixbn"))


@pytest.mark.parametrize(("room", "step"), [(assembling, "write_models"), (RUN, "write_json")], ids=["models", "summary"])
def test_a_run_broken_off_while_finishing_goes_on(
    whole: Whole, tmp_path: Path, room: Any, step: str, monkeypatch: pytest.MonkeyPatch
):
    out = break_off(tmp_path / "run", "fixbn", 4)

    def broken(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(room, step, broken)
        with pytest.raises(KeyboardInterrupt):
            resume(out)
    assert not (out / "summary.json").exists()
    resume(out)
    assert_same_run(out, whole("fixbn"))


def test_a_run_goes_on_elsewhere_than_it_began(whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = break_off(tmp_path / "run", "fixbn", 3)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["config"] |= {"device": "cuda", "compute": "graphs", "pool": "host"}  # as on a machine that is no more
    (out / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(KithkinError, match="no CUDA device") as caught:
        resume(out)
    assert "--device cpu" in caught.value.remedy
    with pytest.raises(KithkinError, match="--compute"):
        kithkin.resume(out, device="cpu", compute="quickly")
    kithkin.resume(out, device="cpu", compute="eager", pool="device")
    assert_same_run(out, whole("fixbn"))


@pytest.mark.parametrize("change", ["labels", "names", "size", "pixel"])
def test_other_data_of_the_same_clients_is_noticed(tmp_path: Path, change: str):
    digits = load("digits")
    arrays = {"images": digits.images[:200], "labels": digits.labels[:200] % 3, "clients": np.arange(200) % 6}
    np.savez(tmp_path / "mine.npz", **arrays)
    out = break_off(tmp_path / "run", "fixbn", 2, data=str(tmp_path / "mine.npz"), alpha=None)
    if change == "labels":
        arrays["labels"] = np.roll(arrays["labels"], 1)
    elif change == "names":
        arrays["labels"] = np.array(["x", "y", "z"])[arrays["labels"]]
    elif change == "size":
        arrays["images"] = np.repeat(arrays["images"], 2, 3)
    else:
        arrays["images"] = arrays["images"].copy()
        arrays["images"][-1, 0, 0, 0] += 1
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(KithkinError, match="The data") as caught:
        resume(out)
    assert caught.value.remedy == "Bring back the same data files."


@pytest.mark.parametrize(("pool", "remedy"), [("device", "--pool host`. Begin anew"), ("host", "^Begin anew")])
def test_where_the_gpus_memory_is_full_the_run_goes_on_in_the_hosts(whole: Whole, tmp_path: Path, pool: str, remedy: str):
    with pytest.MonkeyPatch.context() as patch:
        stop_in_round(patch, 3, torch.OutOfMemoryError)
        with pytest.raises(KithkinError, match="memory is full") as caught:
            start(tmp_path / "run", "fixbn", pool=pool)
    assert re.search(remedy, caught.value.remedy)
    resume(tmp_path / "run", where={"pool": "host"})
    assert_same_run(tmp_path / "run", whole("fixbn"))


def test_rounds_without_evaluation_resume_alike(whole: Whole, tmp_path: Path):
    out = break_off(tmp_path / "run", "fixbn", 4, eval_every=2)
    resume(out)
    assert_same_run(out, whole("fixbn", eval_every=2))


@pytest.mark.parametrize(
    ("name", "tail"),
    [
        ("metrics.jsonl", '{"round": 3, "val_me'),
        ("metrics.jsonl", "\x00\x00\x00"),
        ("metrics.jsonl", '{"round": 3}garbage\n'),
        ("marks.jsonl", '{"round": 3, "val": [0.'),
    ],
)
def test_a_torn_last_line_is_dropped(whole: Whole, tmp_path: Path, name: str, tail: str):
    out = break_off(tmp_path / "run", "fixbn", 3)
    with (out / name).open("a") as f:
        f.write(tail)
    resume(out)
    assert_same_run(out, whole("fixbn"))


def test_lines_of_rounds_after_the_checkpoint_are_written_anew(whole: Whole, tmp_path: Path):
    out = die_in_round(tmp_path / "run", "fixbn", 4)
    assert len(lines(out / "metrics.jsonl")) == 3
    assert checkpoints(out) == ["round-000002"]
    again = listen(out)
    assert again.rounds == [3, 4]
    assert_same_run(out, whole("fixbn"))


@pytest.mark.parametrize("name", ["metrics.jsonl", "marks.jsonl"])
def test_a_record_that_lost_lines_of_rounds_before_the_checkpoint_is_never_finished_with_a_gap(
    whole: Whole, tmp_path: Path, name: str
):
    out = break_off(tmp_path / "run", "fixbn", 4)
    kept = (out / name).read_text().splitlines(keepends=True)[:1]
    (out / name).write_text("".join(kept))
    try:
        resume(out)
    except KithkinError:
        assert not (out / "summary.json").exists()
    else:
        assert_same_run(out, whole("fixbn"))


def test_a_last_round_that_lost_its_marks_is_played_again(whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Though it is none of those that are evaluated by their number."""
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(RUN, "finish", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            start(out, "fixbn", eval_every=3)
    marks = (out / "marks.jsonl").read_text().splitlines(keepends=True)
    assert len(marks) == 2
    (out / "marks.jsonl").write_text(marks[0])
    assert listen(out).rounds[-1] == 4
    assert_same_run(out, whole("fixbn", eval_every=3))


def damaged(out: Path, number: int) -> None:
    path = out / "checkpoints" / f"round-{number:06d}.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def test_with_the_newest_checkpoint_damaged_the_one_before_is_used_and_said(whole: Whole, tmp_path: Path):
    out = break_off(tmp_path / "run", "um", 4)
    assert checkpoints(out) == ["round-000002", "round-000003"]
    damaged(out, 3)
    again = listen(out)
    assert again.already == 2
    assert len(again.said) == 1
    assert "round-000003" in again.said[0]
    assert_same_run(out, whole("um"))


def test_with_every_checkpoint_damaged_the_run_starts_anew_and_says_so(whole: Whole, tmp_path: Path):
    out = break_off(tmp_path / "run", "fixbn", 4)
    damaged(out, 2)
    damaged(out, 3)
    again = listen(out)
    assert (again.already, again.rounds) == (0, [1, 2, 3, 4])
    assert len(again.said) == 3
    assert "beginning" in again.said[-1]
    assert_same_run(out, whole("fixbn"))


def test_a_run_that_starts_anew_over_damaged_checkpoints_can_be_stopped_and_resumed_again(whole: Whole, tmp_path: Path):
    out = break_off(tmp_path / "run", "fixbn", 4)
    damaged(out, 2)
    damaged(out, 3)
    with pytest.MonkeyPatch.context() as patch:
        stop_in_round(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            resume(out)
    assert listen(out).already == 1
    assert_same_run(out, whole("fixbn"))


def test_without_its_checkpoint_folder_a_run_starts_anew(whole: Whole, tmp_path: Path):
    out = break_off(tmp_path / "run", "fixbn", 4)
    shutil.rmtree(out / "checkpoints")
    again = listen(out)
    assert again.already == 0
    assert_same_run(out, whole("fixbn"))


def test_what_a_killed_writer_left_half_written_is_swept(tmp_path: Path):
    out = break_off(tmp_path / "run", "fixbn", 4)
    own = (".metrics.jsonl.4194000.draft", "checkpoints/.round-000003.safetensors.4194000.draft")
    for name in own:
        (out / name).write_text("half")
    resume(out)
    assert not drafts(out)


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_finished_run_is_only_read(whole: Whole):
    before = snapshot(whole("um"))
    heard = Heard()
    result = resume(whole("um"), heard)
    assert snapshot(whole("um")) == before
    assert len(heard.said) == 1
    assert "finished" in heard.said[0]
    assert heard.already is None
    assert result.summary == json.loads((whole("um") / "summary.json").read_text())
    assert result.metrics == lines(whole("um") / "metrics.jsonl")
    assert result.clients == lines(whole("um") / "clients.jsonl")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "none", tmp_path / "file"):
        with pytest.raises(KithkinError) as caught:
            resume(path)
        assert str(path) in caught.value.problem
        assert caught.value.remedy


def without(*names: str) -> Callable[[dict[str, Any]], Any]:
    return lambda manifest: {k: v for k, v in manifest.items() if k not in names}


MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda _: [],
    "null": lambda _: None,
    "empty": lambda _: {},
    "no settings": without("settings"),
    "no split hash": without("split_hash"),
    "a word for the config": lambda m: {**m, "config": "um"},
    "null for the config": lambda m: {**m, "config": None},
    "a list for the settings": lambda m: {**m, "settings": [1]},
    "an unknown method": lambda m: {**m, "config": {**m["config"], "method": "umm"}},
    "an unknown setting": lambda m: {**m, "settings": {**m["settings"], "colour": 1}},
    "words for numbers": lambda m: {**m, "config": {**m["config"], "clients": "six"}},
    "unlawful numbers": lambda m: {**m, "config": {**m["config"], "clients": -6}},
    "another split": lambda m: {**m, "split_hash": "0" * 64},
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return break_off(tmp_path_factory.mktemp("stopped") / "run", "fixbn", 2)


@pytest.mark.parametrize("damage", MANIFESTS)
def test_a_manifest_that_makes_no_sense_is_refused_and_nothing_is_lost(stopped: Path, tmp_path: Path, damage: str):
    out = tmp_path / "run"
    shutil.copytree(stopped, out)
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps(MANIFESTS[damage](manifest)))
    before = snapshot(out)
    with pytest.raises(KithkinError) as caught:
        resume(out)
    assert caught.value.remedy
    assert snapshot(out) == before


@pytest.mark.parametrize("content", [b"", b"{", b'{"config": {"method"', b"\xff\xfe\x00\x01", b"\x00" * 50])
def test_a_damaged_manifest_is_refused(stopped: Path, tmp_path: Path, content: bytes):
    out = tmp_path / "run"
    shutil.copytree(stopped, out)
    (out / "manifest.json").write_bytes(content)
    with pytest.raises(KithkinError, match=r"manifest\.json") as caught:
        resume(out)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ['{"method": "fix', "{}", "3"])
def test_a_damaged_summary_is_refused(whole: Whole, tmp_path: Path, text: str):
    shutil.copytree(whole("fixbn"), tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text(text)
    with pytest.raises(KithkinError, match=r"summary\.json"):
        resume(tmp_path / "run")


def test_a_run_on_ones_own_data_resumes_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    digits = load("digits")
    (tmp_path / "here").mkdir()
    np.savez(tmp_path / "here" / "mine.npz", images=digits.images[:200, 0], labels=digits.labels[:200])
    monkeypatch.chdir(tmp_path / "here")
    out = break_off(tmp_path / "run", "fixavg", 2, data="mine.npz", alpha=5.0)
    monkeypatch.chdir(tmp_path)
    assert resume(out).summary["rounds"] == 4


def test_two_processes_never_go_on_with_one_folder(whole: Whole, tmp_path: Path):
    """The claim is the process's alone, and ends with it."""
    break_off(tmp_path / "run", "um", 1)
    code = "import sys; from kithkin.record import Folder; from pathlib import Path\n"
    code += "with Folder(Path(sys.argv[1])).claimed(): print('mine', flush=True); sys.stdin.read()"
    asked = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "mine\n"
        before = (tmp_path / "run/metrics.jsonl").read_text()
        with pytest.raises(KithkinError, match="Another process is at work"):
            resume(tmp_path / "run")
        assert (tmp_path / "run/metrics.jsonl").read_text() == before
        other.kill()
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole("um"))
