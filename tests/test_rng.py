"""Addresses."""

from __future__ import annotations

import numpy as np
import pytest

from kithkin import rng


def test_keys_are_pinned():
    """Whoever changes these changes every run ever recorded."""
    assert rng.key(0, "split") == 6880625467214373241
    assert rng.key(7, "client", 3, "fit") == 6371627339515811050


def test_every_address_has_its_own_key():
    addresses = [(), (0,), ("0",), (0, 0), (0, "0"), ("0", 0), (1, 23), (12, 3), (123,), ("a", "b"), ("ab",), ("a, b",), (-1,)]
    addresses += [(seed, "fit", t, k) for seed in range(3) for t in range(20) for k in range(20)]
    assert len({rng.key(*address) for address in addresses}) == len(addresses)


@pytest.mark.parametrize("seed", range(20))
def test_keys_fit_a_signed_64_bit_number(seed: int):
    assert 0 <= rng.key(seed) < 2**63


def test_a_generator_starts_anew_at_its_key():
    first = rng.generator(3, "cohort", 1).random(5)
    assert np.array_equal(first, rng.generator(3, "cohort", 1).random(5))
    assert np.array_equal(first, np.random.default_rng(rng.key(3, "cohort", 1)).random(5))
    assert not np.array_equal(first, rng.generator(3, "cohort", 2).random(5))
