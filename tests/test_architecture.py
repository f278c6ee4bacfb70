"""Imports point down, nothing is unpickled, what is asked for often comes without torch, and what is installed is whole."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
FILES = sorted((SRC / "kithkin").rglob("*.py"))
FLOORS = (
    {"errors", "rng", "dice", "config", "disk", "own", "palette"},
    {"data", "nets"},
    {"compute"},
    {"helpers"},
    {"methods"},
    {"federation"},
)  # above them all: record, report, paper, network, flags, cli, display and whatever else has no place here
PICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def module_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(SRC).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def room_of(path: Path) -> str:
    module = module_of(path)
    return module[1] if len(module) > 1 else "top"


def imports(source: str, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Everything imported anywhere in a file, also inside functions, as full dotted names; `from a import b` gives a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = start + tuple(node.module.split(".") if node.module else ())
            yield from ((*base, alias.name) for alias in node.names)


def imported_by(path: Path) -> set[tuple[str, ...]]:
    return set(imports(path.read_text("utf-8"), path.parent.relative_to(SRC).parts))


def known_by(room: str) -> set[tuple[str, ...]]:
    """All that a room's files import of kithkin, without its name: ("data", "augment"); kithkin itself is ("top",)."""
    names = {name for path in FILES if room_of(path) == room for name in imported_by(path)}
    return {name[1:] or ("top",) for name in names if name[0] == "kithkin"}


def who_knows(room: str) -> set[str]:
    """The other rooms that import it."""
    others = {room_of(path) for path in FILES} - {room}
    return {other for other in others if room in {name[0] for name in known_by(other)}}


def floor(room: str) -> int:
    return next((i for i, rooms in enumerate(FLOORS) if room in rooms), len(FLOORS))


def too_high(room: str, names: set[tuple[str, ...]]) -> list[str]:
    """Which of the imported names a room may not know: other rooms on its floor or above."""
    rooms = {name[1]: ".".join(name) for name in names if name[0] == "kithkin" and len(name) > 1}
    return [name for other, name in rooms.items() if other != room and floor(other) >= floor(room) > 0]


def test_imports_are_found_in_every_form():
    source = (
        "import kithkin.a.b, numpy as np\nfrom kithkin import c\nfrom . import d\nfrom ..e import f\n"
        "def g():\n    if True:\n        from kithkin.h import i, j\n"
    )
    found = {".".join(name) for name in imports(source, ("kithkin", "room"))}
    assert found == {
        *("kithkin.a.b", "numpy", "kithkin.c", "kithkin.room.d", "kithkin.e.f", "kithkin.h.i", "kithkin.h.j"),
    }


def test_what_points_up_is_named():
    down_and_up = {("kithkin", "nets"), ("kithkin", "rng"), ("kithkin", "compute", "jobs"), ("kithkin", "record"), ("torch",)}
    assert too_high("compute", down_and_up) == ["kithkin.record"]
    assert too_high("nets", {("kithkin", "data")}) == ["kithkin.data"]
    assert too_high("helpers", {("kithkin", "methods", "um")}) == ["kithkin.methods.um"]
    assert too_high("federation", {("kithkin", "cli")}) == ["kithkin.cli"]


def test_every_floor_is_built():
    assert {room_of(path) for path in FILES} >= set().union(*FLOORS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: ".".join(module_of(path)))
def test_imports_point_down(path: Path):
    room = room_of(path)
    if floor(room) < len(FLOORS):
        assert too_high(room, imported_by(path)) == []


@pytest.mark.parametrize("room", sorted(FLOORS[0]))
def test_the_ground_floor_knows_itself_alone(room: str):
    assert {name[0] for name in known_by(room)} <= FLOORS[0]


def test_compute_knows_of_data_only_the_augmentations():
    assert {name[:2] for name in known_by("compute") if name[0] == "data"} == {("data", "augment")}


@pytest.mark.parametrize("room", ["helpers", "methods", "federation"])
def test_methods_know_no_kind_of_compute(room: str):
    protocol = {"Compute", "Fit", "Fitted", "Lesson", "Predict", "Read", "Recipe", "all_of", "together", "jobs"}
    assert {name[1] for name in known_by(room) if name[0] == "compute"} <= protocol


@pytest.mark.parametrize("path", FILES, ids=lambda path: ".".join(module_of(path)))
def test_nothing_is_pickled(path: Path):
    tree = ast.parse(path.read_text("utf-8"))
    assert not {name[0] for name in imported_by(path)} & PICKLERS
    assert not imported_by(path) & {("torch", "load"), ("torch", "save")}
    dotted = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not dotted & {"torch.load", "torch.save"}
    allowed = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "allow_pickle"]
    assert all(isinstance(value, ast.Constant) and value.value is False for value in allowed)


def test_the_command_line_is_known_by_nobody_but_its_doors():
    """Whoever needs a run's flags knows these alone, and they know no command."""
    assert who_knows("cli") == {"__main__", "manual"}, "the manual asks every command for --help"
    assert who_knows("flags") == {"top", "cli", "network", "paper"}
    assert {name[0] for name in known_by("flags")} == {"config", "errors", "own", "data", "methods", "display", "report"}


def test_nobody_below_knows_the_report():
    """A run does without it; only the flags that ask for it know it, and the command line, by the names of its commands."""
    assert who_knows("report") == {"flags"}
    assert {name[:2] for name in known_by("flags") if name[0] == "report"} == {("report", "live")}


def test_the_paper_is_known_by_the_command_line_alone():
    assert who_knows("paper") == {"cli"}


def test_what_uses_finished_runs_is_known_by_the_doors_alone():
    assert who_knows("use") == {"top"}, "and the command line, by the names of its commands"


def test_the_network_is_known_by_the_command_line_alone():
    """A run on one machine does without Flower, which nothing outside this room imports."""
    assert who_knows("network") == set(), "the command line loads it by name, where it is asked for"
    flower = {room_of(path) for path in FILES if {"flwr", "ray", "cryptography"} & {n[0] for n in imported_by(path)}}
    assert flower == {"network"}


@pytest.mark.parametrize("module", ["kithkin.data", "kithkin.cli", "kithkin.network.joining"])
def test_data_the_command_line_and_a_site_that_joins_come_without_torch(module: str):
    assert "torch" not in loaded_with(module)


def test_kithkin_itself_loads_nothing_before_it_is_asked():
    heavy = {"kithkin", "numpy", "rich", "torch", "tyro"}
    assert [name for name in loaded_with("kithkin") if name.partition(".")[0] in heavy] == ["kithkin"]


def loaded_with(module: str) -> list[str]:
    command = [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"]
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()


def test_what_is_no_python_is_installed_too():
    """Also py.typed: without it the type checkers of those who write a method see no types."""
    told = tomllib.loads((SRC.parent / "pyproject.toml").read_text(encoding="utf-8"))
    package = SRC / "kithkin"
    installed = {path for pattern in told["tool"]["setuptools"]["package-data"]["kithkin"] for path in package.glob(pattern)}
    assert installed == {path for path in package.rglob("*.*") if path.suffix not in (".py", ".pyc")}
    assert package / "py.typed" in installed
