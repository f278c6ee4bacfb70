"""Imports point down, nothing is unpickled, and the data room needs no torch."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
FILES = sorted((SRC / "kithkin").rglob("*.py"))
FLOORS = (
    {"errors", "rng", "dice", "config", "own"},
    {"data", "nets"},
    {"compute"},
    {"helpers"},
    {"methods"},
    {"federation"},
)  # above them all: record, report, paper, network, cli, display and whatever else has no place here
PICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def module_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(SRC).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


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
    rooms = {module_of(path)[1] for path in FILES if len(module_of(path)) > 1}
    assert rooms >= set().union(*FLOORS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: ".".join(module_of(path)))
def test_imports_point_down(path: Path):
    module = module_of(path)
    room = module[1] if len(module) > 1 else "top"
    if floor(room) < len(FLOORS):
        assert too_high(room, imported_by(path)) == []


@pytest.mark.parametrize("room", ["errors", "rng", "dice", "config", "own"])
def test_the_ground_floor_knows_itself_alone(room: str):
    known = {name[1] for name in imported_by(SRC / "kithkin" / f"{room}.py") if name[0] == "kithkin"}
    assert known <= FLOORS[0]


def test_compute_knows_of_data_only_the_augmentations():
    known = {name for path in FILES if module_of(path)[1:2] == ("compute",) for name in imported_by(path)}
    assert {name[1:3] for name in known if name[:2] == ("kithkin", "data")} == {("data", "augment")}


@pytest.mark.parametrize("room", ["helpers", "methods", "federation"])
def test_methods_know_no_kind_of_compute(room: str):
    protocol = {"Compute", "Fit", "Fitted", "Lesson", "Predict", "Read", "Recipe", "all_of", "together", "jobs"}
    known = {name for path in FILES if module_of(path)[1:2] == (room,) for name in imported_by(path)}
    assert {name[2] for name in known if name[:2] == ("kithkin", "compute")} <= protocol


@pytest.mark.parametrize("path", FILES, ids=lambda path: ".".join(module_of(path)))
def test_nothing_is_pickled(path: Path):
    tree = ast.parse(path.read_text("utf-8"))
    assert not {name[0] for name in imported_by(path)} & PICKLERS
    assert not imported_by(path) & {("torch", "load"), ("torch", "save")}
    dotted = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not dotted & {"torch.load", "torch.save"}
    allowed = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "allow_pickle"]
    assert all(isinstance(value, ast.Constant) and value.value is False for value in allowed)


def test_nobody_below_knows_the_report():
    """A run does without it; only the command line, which offers it, knows it."""
    knowing = {module_of(path)[1] for path in FILES if len(module_of(path)) > 1 and knows_report(path)}
    assert knowing == {"report", "cli"}


def knows_report(path: Path) -> bool:
    return any(name[:2] == ("kithkin", "report") for name in imported_by(path))


def test_the_paper_is_known_by_the_command_line_alone():
    known = {module_of(path)[1] for path in FILES if ("kithkin", "paper") in {name[:2] for name in imported_by(path)}}
    assert known == {"cli", "paper"}


def test_what_uses_finished_runs_is_known_by_the_doors_alone():
    known = {module_of(path)[1:2] for path in FILES if ("kithkin", "use") in {name[:2] for name in imported_by(path)}}
    assert known == {(), ("cli",), ("use",)}


def test_the_network_is_known_by_the_command_line_alone():
    """A run on one machine does without Flower, which nothing outside this room imports."""
    known = {module_of(path)[1] for path in FILES if ("kithkin", "network") in {name[:2] for name in imported_by(path)}}
    assert known == {"network"}, "the command line loads it by name, where it is asked for"
    flower = {module_of(path)[1] for path in FILES if {"flwr", "ray", "cryptography"} & {n[0] for n in imported_by(path)}}
    assert flower == {"network"}


def test_a_site_joins_without_torch():
    command = "import sys, kithkin.network.joining; print('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", command], env={**os.environ, "PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"


def test_data_comes_without_torch():
    command = "import sys, kithkin, kithkin.data; print('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", command], env={**os.environ, "PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"
