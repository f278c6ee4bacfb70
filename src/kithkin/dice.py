"""Dice thrown by number: random tensors that depend on integer keys alone, the same on every device and in every batching.

SplitMix64 (Steele et al., OOPSLA 2014) in plain tensor arithmetic. A sample's dropout mask or augmentation is a function of its
key; so padding a batch, capturing it in a graph or stacking clients changes nothing.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit number
C1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
C2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


def _shift(z: Tensor, by: int) -> Tensor:
    """Logical right shift of signed 64-bit numbers."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser: 64 well-mixed bits of every 64-bit number."""
    z = (z ^ _shift(z, 30)) * C1
    z = (z ^ _shift(z, 27)) * C2
    return z ^ _shift(z, 31)


@cache
def _counter(n: int, device: torch.device) -> Tensor:
    return torch.arange(1, n + 1, device=device) * GOLDEN


def bits(keys: Tensor, n: int) -> Tensor:
    """`n` random 64-bit numbers for every key: shape [*keys.shape, n]."""
    return mix(mix(keys).unsqueeze(-1) + _counter(n, keys.device))


def uniform(keys: Tensor, n: int) -> Tensor:
    """`n` numbers in [0, 1) for every key, exact in float32 on every device."""
    return _shift(bits(keys, n), 40).to(torch.float32) * 2.0**-24


def bytes_(keys: Tensor, n: int) -> Tensor:
    """`n` random bytes for every key, eight from each throw."""
    return bits(keys, -(-n // 8)).view(torch.uint8)[..., :n]
