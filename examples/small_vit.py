"""A small vision transformer as one's own network.

    kithkin run --method um-plus --model examples/small_vit.py:build --data digits --lr 0.02

Attention has no dropout of its own: only dropout *layers* are found, and given their own dice, by kithkin.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and a hidden layer, each behind a norm and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.think = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.think(x)


class SmallViT(nn.Module):
    def __init__(self, channels: int, classes: int, size: tuple[int, int], width: int = 32, dropout: float = 0.2) -> None:
        super().__init__()
        patch = max(2, min(size) // 7)  # of an 8x8 digit 2x2 pixels, of a 32x32 photo 4x4
        count = (size[0] // patch) * (size[1] // patch)
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.place = nn.Parameter(0.02 * torch.randn(1, count, width))
        self.blocks = nn.Sequential(*(Block(width, 4, dropout) for _ in range(2)))
        self.after = nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)  # last, so that fedper, lg-fedavg and um-plus find it

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.drop(self.after(self.blocks(x)).mean(1)))


def build(channels: int, classes: int, size: tuple[int, int]) -> nn.Module:
    return SmallViT(channels, classes, size)
