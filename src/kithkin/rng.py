"""Randomness is addressed, not shared: every draw names the place it belongs to.

`generator(seed, round, client, "search")` gives the same numbers whoever asks, in whatever order, before or after a resume,
so another courier, another compute or another order of clients gives the same run.
"""

from __future__ import annotations

import hashlib

import numpy as np

Address = int | str


def key(*address: Address) -> int:
    """A 63-bit number that belongs to this address alone.

    >>> key(0, "split") == key(0, "split") != key(1, "split")
    True
    """
    plain = tuple(part if isinstance(part, str) else int(part) for part in address)  # NumPy's integers read as Python's
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*address: Address) -> np.random.Generator:
    """NumPy's generator for this address."""
    return np.random.default_rng(key(*address))
