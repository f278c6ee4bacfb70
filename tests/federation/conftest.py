"""The federation tests use the same scripted compute and small networks as the method tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "methods"))
