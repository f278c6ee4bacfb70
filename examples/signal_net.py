"""A network for signals, and invented ones to try it on.

    python examples/signal_net.py signals.npz
    kithkin run --model examples/signal_net.py:build --data signals.npz

A signal of C channels and L samples travels as a picture [C, 1, L] of 8-bit numbers: scale yours to [0, 1] over the range that
matters. FixMatch's augmentations are for pictures, so methods that use them refuse signals; um, um-plus and local take them.
"""

from __future__ import annotations

import sys

import numpy as np
from torch import Tensor, nn


class SignalNet(nn.Module):
    """1-D convolutions, the mean over time, and a classifier."""

    def __init__(self, channels: int, classes: int, width: int = 16, dropout: float = 0.3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, width, 7, stride=2, padding=3),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 5, stride=2, padding=2),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
        )
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.body(x.squeeze(2)).mean(2)))  # [B, C, 1, L] -> [B, C, L]


def build(channels: int, classes: int, size: tuple[int, int]) -> nn.Module:
    assert size[0] == 1, "these are pictures, not signals"
    return SignalNet(channels, classes)


def invent(path: str, count: int = 900, length: int = 128, seed: int = 0) -> None:
    """Two-channel signals of three kinds, sine, square and sawtooth, at random pitch and phase, in noise."""
    draw = np.random.default_rng(seed)
    kind = draw.integers(0, 3, count)
    turns = draw.uniform(3, 6, (count, 1, 1)) * np.linspace(0, 1, length) + draw.uniform(0, 1, (count, 2, 1))
    waves = np.stack([np.sin(2 * np.pi * turns), np.sign(np.sin(2 * np.pi * turns)), 2 * (turns % 1) - 1])
    signals = waves[kind, np.arange(count)] + draw.normal(0, 0.3, (count, 2, length))
    images = np.clip(signals / 4 + 0.5, 0, 1)[:, :, None]
    np.savez(path, images=images, labels=np.array(["sine", "square", "sawtooth"])[kind])


if __name__ == "__main__":
    invent(sys.argv[1] if len(sys.argv) > 1 else "signals.npz")
