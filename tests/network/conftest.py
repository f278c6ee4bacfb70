"""Tests of the network: with a grid in this process, and with real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "record")]
