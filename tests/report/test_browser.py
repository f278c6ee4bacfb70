"""Where the browser of the page's tests comes from; the machine is made up."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import browser
import pytest


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A machine of root's without any browser; gives the commands that were tried, all of which fail."""
    tried: list[tuple[str, ...]] = []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(browser, "own_browser", lambda: None)
    monkeypatch.setattr(browser, "attempt", lambda *command: tried.append(command))
    return tried


def put_program(folder: Path, name: str) -> None:
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def test_one_that_is_there_is_taken(bare: list[tuple[str, ...]], tmp_path: Path):
    put_program(tmp_path, "chromium")
    browser.provide()
    assert browser.system_browser() == str(tmp_path / "chromium")
    assert bare == []


def test_debians_package_comes_before_playwrights_own(bare: list[tuple[str, ...]], tmp_path: Path):
    put_program(tmp_path, "apt-get")
    browser.provide()
    assert [command[:2] for command in bare] == [
        ("apt-get", "install"),
        ("apt-get", "update"),
        (sys.executable, "-m"),
    ]


def test_without_any_the_reason_is_told(bare: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]):
    browser.provide()
    assert [command[2:] for command in bare] == [("playwright", "install", "chromium")]
    assert "are skipped" in capsys.readouterr().out
