"""Fixtures for the fault tests: the tiny runs are those of the record tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "record"))

from tiny_runs import one_thread, whole

__all__ = ["one_thread", "whole"]
