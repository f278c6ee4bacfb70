"""Completion, in real shells; those that are not here are skipped."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kithkin.cli import COMMANDS, main

CASES = [
    ("kithkin re", {"resume", "report"}),
    ("kithkin da", {"data"}),
    ("kithkin run --meth", {"--method"}),
    ("kithkin run --method fixav", {"fixavg", "fixavg-ft"}),
    ("kithkin run --clients 3 --data ci", {"cifar-10"}),
    ("kithkin run --compute ", {"auto", "eager", "workers", "graphs"}),
    ("kithkin data ", {"list", "get", "import", "check", "show", "views"}),
    ("kithkin data get fash", {"fashion-mnist"}),
    ("kithkin paper fash", {"fashion-mnist"}),
    ("kithkin explain lg", {"lg-fedavg"}),
    ("kithkin completion z", {"zsh"}),
    ("kithkin run --method fixavg-ft --finetune", {"--finetune-epochs", "--finetune-lr"}),
    ("kithkin explain fedper --pers", {"--personal-layers"}),
    ("kithkin run --method=fedp", {"--method=fedper", "--method=fedprox-sl"}),  # bash never asks so, zsh does
    ("kithkin compare --methods um fixav", {"fixavg", "fixavg-ft"}),
    ("kithkin paper report --o", {"--out"}),  # `kithkin report` has --open too
    ("kithkin report --op", {"--open"}),
]
APART = [("kithkin run --compute =", {"auto", "eager", "workers", "graphs"}), ("kithkin run --compute = ea", {"eager"})]


pytestmark = pytest.mark.xdist_group("completion")  # the scripts are made once


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script of every shell."""
    folder = tmp_path_factory.mktemp("shells")
    for shell in ("bash", "zsh", "fish"):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            main(["completion", shell])
        (folder / shell).write_text(said.getvalue())
    return folder


def said_by(shell: str, script: str) -> list[str]:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    quiet = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run([shell, *quiet, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(("line", "expected"), [*CASES, *APART])  # bash takes --flag=value apart
def test_bash(scripts: Path, line: str, expected: set[str]):
    words = " ".join(f"'{word}'" for word in line.split(" "))
    ask = f'COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _kithkin; printf "%s\\n" "${{COMPREPLY[@]}}"'
    assert set(said_by("bash", f"source {scripts / 'bash'}; {ask}")) == expected


@pytest.mark.parametrize("line", ["kithkin resume ", "kithkin run --out ", "kithkin report --out x runs/"])
def test_bash_leaves_paths_to_the_shell(scripts: Path, line: str):
    test_bash(scripts, line, {""})


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_fish(scripts: Path, line: str, expected: set[str]):
    said = said_by("fish", f"source {scripts / 'fish'}; complete -C '{line}'")
    assert {answer.partition("\t")[0] for answer in said} == expected


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_zsh(scripts: Path, line: str, expected: set[str]):
    """As its completion calls it; zsh itself then leaves out what does not begin so."""
    words = " ".join(f"'{word}'" for word in line.split(" "))
    ask = f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _kithkin; echo ${{COMPREPLY[*]}}"
    said = said_by("zsh", f"autoload -U compinit; compinit -u -D; source {scripts / 'zsh'}; f() {{ emulate -L sh; {ask}; }}; f")
    begun = line.rpartition(" ")[2]
    assert {word for word in said[-1].split() if word.startswith(begun)} == expected


@pytest.mark.parametrize("ask", [test_bash, test_zsh])
def test_a_path_after_its_flags_sign(ask: Callable[..., None], scripts: Path, tmp_path: Path):
    for name in ("rubbish", "runs", "other"):
        (tmp_path / name).mkdir()
    asked = f"--out={tmp_path}/ru"
    ask(scripts, f"kithkin run {asked}", {f"{asked}bbish", f"{asked}ns"})
    ask(scripts, f"kithkin run --lr={tmp_path}/nothing", {""} if ask is test_bash else set())


def test_every_command_is_completed(scripts: Path):
    for shell in ("bash", "zsh", "fish"):
        text = (scripts / shell).read_text()
        assert all(name in text for name in COMMANDS)
        assert "Made by kithkin" in text
