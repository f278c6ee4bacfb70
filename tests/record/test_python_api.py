"""`kithkin.run` and `kithkin.resume`: the command line's flags as keywords, the folder's content as a value."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import assert_same_run, break_off, flags, lines

import kithkin
from kithkin.errors import KithkinError
from kithkin.record.memory import forget_peaks, peak_memory

Whole = Callable[..., Path]


def test_the_result_is_what_the_folder_holds(tmp_path: Path, whole: Whole, capfd: pytest.CaptureFixture[str]):
    result = kithkin.run(str(tmp_path / "run"), **flags("um"))
    assert result.folder == tmp_path / "run"
    assert result.summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert result.metrics == lines(tmp_path / "run" / "metrics.jsonl")
    assert result.clients == lines(tmp_path / "run" / "clients.jsonl")
    assert f"test {result.summary['test_at_best_val']:.3f}" in repr(result)
    assert_same_run(tmp_path / "run", whole("um"))
    assert capfd.readouterr() == ("", "")
    assert kithkin.resume(tmp_path / "run") == result


def test_resume_goes_on(tmp_path: Path, whole: Whole):
    break_off(tmp_path / "run", "fixbn", 3)
    result = kithkin.resume(str(tmp_path / "run"))
    assert len(result.metrics) == 4
    assert_same_run(tmp_path / "run", whole("fixbn"))


def test_without_out_the_folder_lies_below_runs_and_a_second_run_is_sent_to_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    small = flags("local", rounds=1, alpha=1.0, seed=3)
    result = kithkin.run(**small)
    assert result.folder == Path("runs/local-digits-a1-s3")
    with pytest.raises(KithkinError, match=r"a finished run\. `kithkin report runs/local-digits-a1-s3`"):
        kithkin.run(**small)


def test_a_folder_below_home_is_the_same_to_run_resume_and_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    result = kithkin.run("~/run", **flags("local", rounds=1))
    assert result.folder == tmp_path / "home" / "run"
    assert kithkin.resume("~/run") == result
    assert kithkin.load("~/run").client(0)


def test_unless_quiet_it_tells_its_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    kithkin.run(tmp_path / "run", quiet=False, **flags("local", rounds=2))
    err = capsys.readouterr().err
    assert "round 1/2" in err
    assert "round 2/2" in err


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ({"sample_rates": 0.5}, "sample_rate"),
        ({"helper": 3}, "helpers"),
        ({"method": "fixavg", "treshold": 0.9}, "threshold"),
        ({"method": "fixagv"}, "fixavg"),
    ],
)
def test_an_unknown_keyword_is_named_with_the_nearest(tmp_path: Path, wrong: dict[str, Any], nearest: str):
    with pytest.raises(KithkinError) as caught:
        kithkin.run(tmp_path / "run", **wrong)
    assert repr(list(wrong.values() if nearest == "fixavg" else wrong)[-1]) in caught.value.problem
    assert f"Did you mean '{nearest}'?" in caught.value.remedy
    assert not (tmp_path / "run").exists()


def test_numbers_of_numpy_and_a_path_of_data_are_taken(tmp_path: Path):
    labels = np.arange(300) % 3
    np.savez(tmp_path / "mine.npz", images=np.full((300, 8, 8), 9, np.uint8), labels=labels)
    small = flags("local", alpha=5, data=tmp_path / "mine.npz", rounds=np.int64(1), seed=np.arange(3)[2], lr=np.float32(0.5))
    manifest = json.loads((kithkin.run(tmp_path / "run", **small).folder / "manifest.json").read_text())
    assert [manifest["config"][name] for name in ("rounds", "seed", "lr")] == [1, 2, 0.5]
    assert manifest["config"]["data"] == str(tmp_path / "mine.npz")


def test_a_folder_below_home_is_found_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert kithkin.run("~/run", **flags("local", rounds=1)).folder == tmp_path / "run"
    assert kithkin.resume("~/run").folder == tmp_path / "run"
    assert kithkin.load("~/run").folder.path == tmp_path / "run"


@pytest.mark.parametrize("what", ["method", "model"])
def test_what_is_given_itself_and_not_by_name_is_refused(tmp_path: Path, what: str):
    with pytest.raises(KithkinError, match=f"The {what} is given as function") as caught:
        kithkin.run(tmp_path / "run", **{what: lambda: None})
    assert f"{what}='file.py:NAME'" in caught.value.remedy


def test_data_that_is_given_itself_is_told_in_one_line(tmp_path: Path):
    with pytest.raises(KithkinError, match="The data is given as ndarray, not by name") as caught:
        kithkin.run(tmp_path / "run", data=np.zeros((500, 8, 8)))
    assert len(str(caught.value)) < 200


def test_another_methods_setting_is_refused(tmp_path: Path):
    with pytest.raises(KithkinError, match="'helpers'"):
        kithkin.run(tmp_path / "run", method="fixavg", helpers=3)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"preset": "papr"}, "preset"),
        ({"method": "um", "losses": "altrnate"}, "losses"),
        ({"method": "um", "relation": "all"}, "relation"),
        ({"method": "fixavg", "objective": "fixmach"}, "objective"),
    ],
)
def test_a_word_that_is_no_choice_is_refused(tmp_path: Path, wrong: dict[str, Any], word: str):
    with pytest.raises(KithkinError, match=word):
        kithkin.run(tmp_path / "run", **{**flags(wrong.get("method", "um"), rounds=1), **wrong})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wrong", "lawful"),
    [({"method": None}, "str"), ({"helpers": "3"}, "int"), ({"helpers": None}, "int"), ({"data_folder": 3}, "Path")],
)
def test_a_value_of_another_kind_is_refused_by_its_flag(tmp_path: Path, wrong: dict[str, Any], lawful: str):
    (name, value), *_ = wrong.items()
    problem = f"--{name.replace('_', '-')} is {value!r}; it must be {lawful}."
    with pytest.raises(KithkinError, match=re.escape(problem)):
        kithkin.run(tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_the_nearest_is_only_named_where_one_is_near():
    with pytest.raises(KithkinError) as caught:
        kithkin.run(method="zzzz")
    assert "Did you mean" not in str(caught.value)
    assert "um" in caught.value.remedy


def test_the_memory_of_a_gpu_is_that_of_whichever_the_run_is_on(monkeypatch: pytest.MonkeyPatch):
    peaks = [300, 500]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device=0: peaks[device])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device=0: peaks.__setitem__(device, 0))
    assert peak_memory()["gpu_bytes"] == 800
    forget_peaks()
    peaks[1] += 50
    assert peak_memory()["gpu_bytes"] == 50


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell the peak of a whole process alone")
def test_the_memory_is_that_of_the_run_and_of_its_workers(tmp_path: Path):
    tiny = {"method": "fixavg", "clients": 6, "rounds": 1, "epochs": 1, "width": 2}
    ballast = torch.ones(100_000_000)  # of before
    del ballast
    taken = [
        kithkin.run(**tiny, compute=compute, out=tmp_path / compute).summary["memory"]["host_bytes"]
        for compute in ("eager", "workers")
    ]
    now = int(re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[0]) * 1024
    assert taken[0] < now + 200_000_000
    assert taken[1] > taken[0] + 20_000_000
