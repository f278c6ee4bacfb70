"""How a run shows itself."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kithkin import display
from kithkin.config import RunConfig
from kithkin.display import Lines, Live, describe, display_for
from kithkin.record.run import Quiet

LINE: dict[str, Any] = {
    "round": 3,
    "val_mean": 0.51249,
    "test_mean": 0.4,
    "test_var": 0.1,
    "pseudo_error": 0.25,
    "seconds": 1.0,
}
CONFIG = RunConfig(method="um", data="digits", rounds=8)


def test_a_round_tells_validation_label_error_and_megabytes():
    assert describe(LINE, 12_345_678, {}) == "val 0.512  label error 0.250  12.3 MB"


def test_many_megabytes_have_separators():
    assert describe(LINE, 9_876_543_210_000, {}).endswith("  9,876,543.2 MB")


def test_without_pseudo_labels_there_is_no_error_to_tell():
    assert describe({**LINE, "pseudo_error": None}, 0, {}) == "val 0.512  0.0 MB"


def test_an_error_of_zero_is_told():
    assert "label error 0.000" in describe({**LINE, "pseudo_error": 0.0}, 0, {})


def test_between_evaluations_the_last_validation_stays():
    last: dict[str, Any] = {}
    blank = {**LINE, "val_mean": None}
    assert describe(blank, 0, last).startswith("val -")
    describe(LINE, 0, last)
    assert describe(blank, 0, last).startswith("val 0.512")
    assert describe({**LINE, "val_mean": 0.0}, 0, last).startswith("val 0.000")
    assert describe(blank, 0, last).startswith("val 0.000")


def test_lines_are_plain_one_a_round_and_on_stderr(capsys: pytest.CaptureFixture[str]):
    lines = Lines("")
    lines.start(CONFIG, 0, "eager on cpu")
    lines.round({**LINE, "round": 1}, 1_000_000)
    lines.round({**LINE, "round": 8}, 2_000_000)
    lines.stop()
    out, err = capsys.readouterr()
    assert out == ""
    head, first, last = err.splitlines()
    assert head == "um on digits  eager on cpu"
    assert re.fullmatch(r"um on digits  round 1/8  val 0\.512  label error 0\.250  1\.0 MB  \d+ s left", first)
    assert re.fullmatch(r"um on digits  round 8/8  val 0\.512  label error 0\.250  2\.0 MB  0 s left", last)
    assert "\x1b" not in err


def test_the_first_line_after_a_resume_can_tell_the_time_left(capsys: pytest.CaptureFixture[str]):
    lines = Lines("a title")
    lines.start(CONFIG, 2, "")
    lines.round(LINE, 0)
    assert re.search(r"a title  round 3/8 .* \d+ s left\n", capsys.readouterr().err)


def test_quiet_shows_nothing(capfd: pytest.CaptureFixture[str]):
    quiet = display_for(True)
    assert isinstance(quiet, Quiet)
    quiet.start(CONFIG, 0, "eager on cpu")
    quiet.round(LINE, 5)
    quiet.say("words")
    quiet.stop()
    assert capfd.readouterr() == ("", "")


def test_there_are_plain_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(display_for(False), Lines)


def test_there_is_a_live_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", Terminal())
    assert isinstance(display_for(False), Live)


def shown(config: RunConfig, *, already: int = 0, says: str = "", title: str = "") -> str:
    """What a terminal of 160 columns has been sent, without colours and cursor moves."""
    file = io.StringIO()
    live = Live(Console(file=file, force_terminal=True, width=160), title)
    live.start(config, already, "workers on cpu")
    live.round(LINE, 3_200_000)
    if says:
        live.say(says)
    live.stop()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


def test_the_live_line_tells_what_round_and_figures():
    text = shown(CONFIG)
    assert "um on digits  workers on cpu\n" in text
    assert "3/8" in text
    assert "val 0.512  label error 0.250  3.2 MB" in text


def test_the_live_line_counts_the_rounds_before_a_resume():
    file = io.StringIO()
    live = Live(Console(file=file, force_terminal=True, width=160), "")
    live.start(CONFIG, 5, "")
    live.stop()
    assert "5/8" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


def test_a_path_with_brackets_is_shown_as_it_is():
    words = "Stopped after round 3. Go on with `kithkin resume runs/[bold]a[/]`."
    assert words in shown(CONFIG, says=words)
    assert "um on data[red].npz" in shown(RunConfig(data="data[red].npz", rounds=8))


def test_a_long_path_is_said_on_one_line():
    words = "Stopped after round 3. Go on with `kithkin resume /" + "deep/" * 50 + "run`."
    assert words in shown(CONFIG, says=words)


def test_a_long_silence_is_broken_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    lines = display.Lines("um")
    lines.start(RunConfig(rounds=3), -1, "eager on cpu")
    lines.tick(1, 9)
    assert capsys.readouterr().err == f"um  eager on cpu\num  {display.WARMING}\n"
    monkeypatch.setattr(display, "PATIENCE", -1)
    lines.tick(2, 9)
    lines.tick(9, 9)
    assert capsys.readouterr().err == "um  2 of 9 jobs of this step done\n"


def test_a_reader_that_went_away_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Gone())
    Lines("").say("one more round")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("data", ["digits", "/home/alice/projects/retina/data/scans.npz"])
def test_no_figure_of_a_running_line_is_cut(width: int, data: str):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    live = Live(console, "")
    live.start(RunConfig(method="um", data=data, rounds=8), 0, "eager on cpu")
    live.round(LINE, 19_500_000)
    live.tick(1, 3)
    live.stop()
    with console.capture() as shown:
        console.print(live.progress.get_renderable())
    (line,) = shown.get().splitlines()
    assert "…" not in line
    assert "3/8 val 0.512  label error 0.250  19.5 MB  (1/3)" in line
    assert re.search(r"left (-:--:--|\d:\d\d:\d\d)", line)
    assert ("━" in line) == (width == 120), "the bar is for who has room"


def test_the_narrowest_running_line_counts_rounds():
    live = Live(Console(file=io.StringIO(), width=55, force_terminal=True, color_system=None), "")
    live.start(RunConfig(method="um", rounds=200), 0, "eager on cpu")
    live.round({**LINE, "round": 100}, 19_500_000)
    live.stop()
    with live.progress.console.capture() as shown:
        live.progress.console.print(live.progress.get_renderable())
    assert " 100/200 " in shown.get()


def test_a_summary_breaks_between_words_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    causes = {"warm-up": 10**6, "search": 10**7, "refresh": 10**7, "upload": 10**6, "fill": 10**6}
    summary: dict[str, Any] = {"down_bytes": 10**7, "up_bytes": 10**6, "bytes_by_cause": causes, "cost_formulas": {}}
    summary |= dict.fromkeys(("test_at_best_val", "best_val", "final_test_mean", "final_test_var", "best_test", "seconds"), 0.5)
    summary |= {"best_val_round": 3, "memory": {"host_bytes": 10**9, "gpu_bytes": 0}}
    display.print_summary(summary, Path("runs/um"))
    whole = capsys.readouterr().out
    assert len(whole.splitlines()) == 7
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    display.print_summary(summary, Path("runs/um"))
    broken = capsys.readouterr().out
    assert max(map(len, broken.splitlines())) <= 60
    assert broken.split() == whole.split()
