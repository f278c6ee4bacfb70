"""Dice against SplitMix64 in Python's own whole numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kithkin import dice

WORD = 2**64 - 1
INT64 = st.integers(-(2**63), 2**63 - 1)


def mixed(z: int) -> int:
    z &= WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def split_mix(seed: int, n: int) -> list[int]:
    return [mixed(seed + i * 0x9E3779B97F4A7C15) for i in range(1, n + 1)]


def unsigned(numbers: torch.Tensor) -> list[int]:
    return [x & WORD for x in numbers.tolist()]


def test_mix_gives_the_published_numbers_of_splitmix64():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    states = 1234567 + torch.arange(1, 6) * dice.GOLDEN
    assert unsigned(dice.mix(states)) == published == split_mix(1234567, 5)


@given(INT64, st.integers(0, 40))
def test_bits_are_splitmix64_started_at_the_mixed_key(key: int, n: int):
    assert unsigned(dice.bits(torch.tensor(key), n)) == split_mix(mixed(key), n)


@given(INT64)
def test_uniform_is_the_top_24_bits(key: int):
    u = dice.uniform(torch.tensor(key), 9)
    assert u.dtype == torch.float32
    assert u.tolist() == [(x >> 40) / 2**24 for x in split_mix(mixed(key), 9)]


def test_uniform_stays_below_1_and_reaches_0(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dice, "bits", lambda keys, n: torch.tensor([-1, 0]))  # all bits set, and none
    assert dice.uniform(torch.tensor(0), 2).tolist() == [1 - 2**-24, 0]


def test_uniform_is_spread_evenly():
    u = dice.uniform(torch.arange(1000), 100)
    tenths = torch.bincount((u * 10).long().flatten(), minlength=10) / u.numel()
    assert torch.allclose(tenths, torch.full((10,), 0.1), atol=0.005)  # 5 standard deviations


@given(INT64, st.integers(0, 33))
def test_bytes_are_those_of_the_bits_little_end_first(key: int, n: int):
    words = split_mix(mixed(key), 5)
    whole = b"".join(word.to_bytes(8, "little") for word in words)
    assert bytes(dice.bytes_(torch.tensor([key]), n)[0].tolist()) == whole[:n]


@pytest.mark.parametrize("throw", [dice.bits, dice.uniform, dice.bytes_])
def test_a_throw_depends_on_its_own_key_alone(throw):
    keys = torch.tensor([5, -3, 2**63 - 1, 0, 5, 17])
    together = throw(keys, 11)
    assert torch.equal(together, torch.stack([throw(key, 11) for key in keys]))
    assert torch.equal(together.view(2, 3, 11), throw(keys.view(2, 3), 11))
    assert torch.equal(throw(keys, 4), together[:, :4])  # more throws do not change the first ones


def test_neighbouring_keys_share_no_throw():
    assert len(dice.bits(torch.arange(1000), 20).unique()) == 20_000
