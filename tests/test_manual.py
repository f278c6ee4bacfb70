"""What the manual tells is what the commands take."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kithkin.cli import COMMANDS
from kithkin.config import RunConfig
from kithkin.manual import Flag, commands, flags_in, help_of, read
from kithkin.methods import METHODS


def test_every_command_is_told_with_those_below_it():
    words = [command.words for command in commands()]
    assert [w[0] for w in words if len(w) == 1] == list(COMMANDS)
    assert {("data", "import"), ("paper", "fashion-mnist")} <= set(words)
    assert all(command.about and command.usage.startswith("kithkin") for command in commands())


@pytest.mark.parametrize("method", METHODS)
def test_every_flag_of_every_method_is_told(method: str):
    """A long help stands in two columns where there is room, and breaks its lines where there is none."""
    told = {flag.name.removeprefix("--no-").removeprefix("--") for flag in flags_in(help_of(["run", "--method", method]))}
    own = {f.name for config in (RunConfig, METHODS[method].settings) for f in fields(config)} | {"out", "quiet", "report"}
    assert {name.replace("_", "-") for name in own} | {"tensorboard"} == told


def test_every_flag_says_what_it_is_for_and_none_that_its_default_is_nothing():
    flags = {(*command.words, flag.name): flag for command in commands() for flag in command.flags}
    assert [where for where, flag in flags.items() if not flag.about] == []
    assert [where for where, flag in flags.items() if flag.default in ("None", "''")] == []
    assert flags["compare", "--helpers"].default == "5"
    assert flags["compare", "--prox"].default == "the method's own"


def test_a_flag_is_told_whole():
    flags = {flag.name: flag for flag in read(("run",)).flags}
    momentum = Flag("--momentum", "FLOAT", "Momentum of SGD.", "0.9", "run options")
    assert flags["--momentum"] == momentum
    assert flags["--compute"].choices == ("auto", "eager", "workers", "graphs")
    assert flags["--label-ratio"].choices == ()
    assert flags["--quiet"].value == ""
    assert flags["--out"].is_path
    (place, *_) = read(("resume",)).flags
    assert place == Flag("", "PATH", "The run's folder, as given to --out.", "", "positional arguments")
    assert read(("explain",)).usage.startswith("kithkin explain METHOD")
