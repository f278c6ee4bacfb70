"""What every command takes, read off its own --help: the pages of the manual and shell completion come from here."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from unittest.mock import patch

SCREEN = {"COLUMNS": "129", "NO_COLOR": "1", "TERM": "dumb", "FORCE_COLOR": "", "TTY_COMPATIBLE": ""}
NEEDS_A_METHOD = "explain"


@dataclass(frozen=True)
class Flag:
    """A flag, or a place in the line: what stands for its value, and what it is for."""

    name: str
    value: str  # "" for a switch
    about: str
    default: str
    group: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it takes, where they are few."""
        words = [w for part in re.findall(r"\{([^}]*)\}", self.value) for w in part.split(",")]
        return tuple(w for w in words if w not in ("True", "False"))

    @property
    def is_path(self) -> bool:
        return "PATH" in self.value

    @property
    def is_repeated(self) -> bool:
        """Whether it takes several values."""
        return "..." in self.value


@dataclass(frozen=True)
class Command:
    words: tuple[str, ...]  # ("data", "get")
    usage: str
    about: str
    flags: tuple[Flag, ...]
    below: tuple[str, ...]  # its own commands, if it is a group


def commands(words: tuple[str, ...] = ()) -> list[Command]:
    """This command and all below it, in the order in which they are listed."""
    command = read(words)
    return [command, *(c for name in command.below for c in commands((*words, name)))]


def read(words: Sequence[str]) -> Command:
    """One command, as its help tells it."""
    asked = [*words, "um"] if tuple(words) == (NEEDS_A_METHOD,) else list(words)
    usage, _, rest = help_of(asked).partition("\n\n")
    about, _, listed = rest.partition("commands (each has --help):\n")
    about = re.split(r"^╭", about, maxsplit=1, flags=re.MULTILINE)[0].strip()
    below = tuple(re.findall(r"^  (\S+)", listed, re.MULTILINE))
    usage = usage.removeprefix("usage: ").strip().replace("explain um", "explain METHOD")
    return Command(tuple(words), usage, about, tuple(flags_in(rest)), below)


def help_of(words: Sequence[str]) -> str:
    """What a command prints when asked for help, on the widest screen on which it stands in one column."""
    from kithkin.cli import main

    said = TextIOWrapper(BytesIO(), encoding="utf-8")
    with patch.dict(os.environ, SCREEN), redirect_stdout(said), suppress(SystemExit):
        main([*words, "--help"])
    said.seek(0)
    return said.read()


def flags_in(text: str) -> list[Flag]:
    """The rows of its boxes: names, then, two spaces on or below and indented, what they are for."""
    found: list[Flag] = []
    group, rows = "", list[list[str]]()
    for line in text.splitlines():
        row = line.strip("│").removeprefix(" ").rstrip()
        if line.startswith("╭"):
            group, rows = line.strip("╭─╮ "), []
        elif line.startswith("╰"):
            found += [_flag(names, " ".join(told), group) for names, *told in rows if names != "-h, --help"]
        elif line.startswith("│ ─"):
            rows = []  # what stood above the line was about the whole group
        elif line.startswith("│") and row.startswith(" ") and rows:
            rows[-1].append(row.strip())
        elif line.startswith("│") and row:
            names, _, told = row.partition("  ")
            rows.append([names, told.strip()])
    return found


def _flag(names: str, told: str, group: str) -> Flag:
    told = told.strip()
    about, _, default = told.partition("(default: ")
    name, _, value = names.partition(" ") if names.startswith("-") else ("", "", names)
    return Flag(name, value.strip(), about.replace("(required)", "").strip(), default.removesuffix(")"), group)
