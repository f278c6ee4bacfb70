"""What every data set is once it is read, wherever it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Dataset:
    """Pictures with labels; the official train, validation and test parts are pooled in that order."""

    name: str
    images: np.ndarray  # uint8 [N, C, H, W], C-contiguous
    labels: np.ndarray  # int64 [N]
    classes: tuple[str, ...]
    flip: bool  # whether a horizontal mirror image keeps its label
    owners: np.ndarray | None = None  # int64 [N]: the client that each picture belongs to, where the data says so,
    clients: tuple[str, ...] = ()  # and what it calls them


def called(client: int, names: Sequence[str]) -> str:
    """A client by its number and, where it has another name, by that.

    >>> called(1, ("north", "south")), called(1, ("0", "1")), called(1, ())
    ('1 (south)', '1', '1')
    """
    name = names[client] if client < len(names) else str(client)
    return str(client) if name == str(client) else f"{client} ({name})"
