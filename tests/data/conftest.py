"""Fixtures for the data tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiny_sets import Tiny, build

from kithkin.data.official import SOURCES


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Tiny]:
    """Make the tiny set of a format, known to `load` and to the commands under its name."""

    def make(form: str) -> Tiny:
        made = build(form)
        monkeypatch.setitem(SOURCES, made.source.name, made.source)
        return made

    return make
