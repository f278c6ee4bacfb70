"""ResNet-9 (Page, DAWNBench 2018) with the paper's MC-dropout: after the last two batch norms and the hidden FC layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from kithkin.nets.dropout import Dropout


def conv_norm(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))


class ResNet9(nn.Module):
    """Channels width, 2, 4 and 8 times width; pictures from 8x8 to 64x64 with 1 or 3 channels.

    `forward` is `tail(*trunk(x))`, where the trunk ends before the first dropout: MC-dropout computes it once.
    """

    def __init__(self, channels: int, classes: int, width: int = 64, dropout: float = 0.5) -> None:
        super().__init__()
        self.prepare = conv_norm(channels, width)
        self.widen = nn.ModuleList(conv_norm(width * 2**i, width * 2 ** (i + 1)) for i in range(3))
        self.middle = nn.ModuleList(conv_norm(width * 2, width * 2) for _ in range(2))
        self.last = nn.ModuleList(conv_norm(width * 8, width * 8) for _ in range(2))
        self.drop = nn.ModuleList(Dropout(dropout) for _ in range(3))
        self.hidden = nn.Linear(width * 8, width * 4)
        self.head = nn.Linear(width * 4, classes)

    def trunk(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = functional.relu(self.prepare(x))
        x = functional.max_pool2d(functional.relu(self.widen[0](x)), 2)
        x = x + functional.relu(self.middle[1](functional.relu(self.middle[0](x))))
        for widen in self.widen[1:]:
            x = functional.max_pool2d(functional.relu(widen(x)), 2)
        return x, self.last[0](x)

    def tail(self, x: Tensor, z: Tensor) -> Tensor:
        z = functional.relu(self.drop[0](z))
        x = x + functional.relu(self.drop[1](self.last[1](z)))
        x = torch.amax(x, (2, 3))
        return self.head(self.drop[2](functional.relu(self.hidden(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(*self.trunk(x))
