"""Finished runs to use: the tiny ones of the record tests. And the command line, called in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "record"))

from tiny_runs import OWN, one_thread, whole

from kithkin.cli import main

__all__ = ["finished", "kith", "one_thread", "whole"]


@pytest.fixture(scope="session")
def finished(whole: Callable[..., Path]) -> Callable[[str], Path]:
    """The folder of a tiny finished run of a method."""
    return lambda method: whole(method, **OWN["um"]) if method == "um-plus" else whole(method)


@pytest.fixture
def kith(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Call a command; its exit code, what it printed, and what it said beside that."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def call(*words: Any) -> tuple[int, str, str]:
        code: Any = 0
        try:
            main([str(word) for word in words])
        except SystemExit as e:
            code = e.code or 0
        return (code, *capsys.readouterr())

    return call
