"""The doctor: what it finds, and that its exit code tells whether kithkin can work here."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from kithkin import doctor
from kithkin.cli import main
from kithkin.data.official import SOURCES


def run(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code: Any = 0
    try:
        main(["doctor"])
    except SystemExit as e:
        code = e.code
    return code, capsys.readouterr().out


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KITHKIN_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def test_a_machine_that_works_has_code_0_and_is_told_what_it_lacks(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    code, said = run(capsys)
    assert code == 0
    assert "0 broken" in said
    assert re.search(r"^ok +torch +\d", said, re.MULTILINE)
    assert re.search(r"^ok +a small run +um on digits, one round, [\d.]+ s$", said, re.MULTILINE)
    assert re.search(
        rf"^missing +cifar-10 +not in {tmp_path}/data/cifar-10\n +-> kithkin data get cifar-10$", said, re.MULTILINE
    )
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_that_is_there_in_part_says_which_files_it_lacks(tmp_path: Path):
    first, *rest = SOURCES["cifar-10"].files
    (tmp_path / "data" / "cifar-10").mkdir(parents=True)
    (tmp_path / "data" / "cifar-10" / first.name).touch()
    finding = next(f for f in doctor.data_sets() if f.what == "cifar-10")
    assert finding.state == "missing"
    assert all(file.name in finding.found for file in rest)
    assert first.name not in finding.found
    for file in rest:
        (tmp_path / "data" / "cifar-10" / file.name).touch()
    assert next(f for f in doctor.data_sets() if f.what == "cifar-10").state == "ok"


def test_what_is_broken_is_told_with_a_remedy_and_code_2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def version(package: str) -> str:
        if package == "pooch":
            raise PackageNotFoundError
        return "1"

    def no_run(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such [kernel]\nmore")

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr("kithkin.run", no_run)
    code, said = run(capsys)
    assert code == 2
    assert "2 broken" in said
    assert re.search(r"^broken +pooch +not installed\n +-> pip install pooch$", said, re.MULTILINE)
    assert re.search(r"^broken +trial +RuntimeError: no such \[kernel\]$", said, re.MULTILINE)


def test_what_it_looks_for_is_what_is_needed():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert set(doctor.NEEDED) == {re.split(r"\W*[<>=]", line)[0] for line in project["dependencies"]}
    extras, by = project["optional-dependencies"], {"ray": "flwr[simulation]"}
    assert doctor.EXTRAS.keys() == extras.keys() - {"docs", "dev"}, "which are for who works on kithkin"
    for extra, (package, _) in doctor.EXTRAS.items():
        assert any(line.startswith(by.get(package, package)) for line in extras[extra])
