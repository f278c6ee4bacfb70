"""One thread, torch's own draws seeded, and properties that take the same examples everywhere, untimed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("kithkin", deadline=None, derandomize=True, database=None)
settings.load_profile("kithkin")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
