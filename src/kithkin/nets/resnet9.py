"""ResNet-9 (Page, DAWNBench 2018) with the paper's MC-dropout: after the last two batch norms and the hidden FC layer."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from kithkin.nets.dropout import Dropout
from kithkin.nets.fast import fusing


class ConvNormRelu(nn.Sequential):
    """3x3 convolution, batch norm, ReLU, 2x2 max pooling where asked, and a sum; in bfloat16 on CUDA by fused kernels."""

    def __init__(self, inputs: int, outputs: int, pool: bool = False) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))
        self.pool = pool

    @property
    def parts(self) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
        return cast(tuple[nn.Conv2d, nn.BatchNorm2d], tuple(self))

    def forward(self, input: Tensor, plus: Tensor | None = None) -> Tensor:
        x = input
        conv, norm = self.parts
        if fusing(x):
            from kithkin.nets import fused

            return fused.block(x, conv.weight, norm, self.pool, plus)
        x = norm(conv(x))
        x = functional.relu(functional.max_pool2d(x, 2) if self.pool else x)  # pooled first: the same numbers sooner
        return x if plus is None else plus + x


class ResNet9(nn.Module):
    """Channels width, 2, 4 and 8 times width; pictures from 8x8 to 64x64 with 1 or 3 channels.

    `forward` is `tail(*trunk(x))`, where the trunk ends before the first dropout: MC-dropout computes it once. Dropout stands
    behind ReLU instead of before it, which gives the same numbers.
    """

    def __init__(self, channels: int, classes: int, width: int = 64, dropout: float = 0.5) -> None:
        super().__init__()
        self.prepare = ConvNormRelu(channels, width)
        self.widen = nn.ModuleList(ConvNormRelu(width * 2**i, width * 2 ** (i + 1), pool=True) for i in range(3))
        self.middle = nn.ModuleList(ConvNormRelu(width * 2, width * 2) for _ in range(2))
        self.last = nn.ModuleList(ConvNormRelu(width * 8, width * 8) for _ in range(2))
        self.drop = nn.ModuleList(Dropout(dropout) for _ in range(3))
        self.hidden = nn.Linear(width * 8, width * 4)
        self.head = nn.Linear(width * 4, classes)

    def trunk(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.widen[0](self.prepare(x))
        x = self.middle[1](self.middle[0](x), plus=x)
        x = self.widen[2](self.widen[1](x))
        return x, self.last[0](x)

    def tail(self, x: Tensor, z: Tensor) -> Tensor:
        z, last = self.drop[0](z), cast(ConvNormRelu, self.last[1])
        if not fusing(x):
            z = self.drop[1](last(z))
            x = x + z if x.shape[0] == z.shape[0] else (x + z.view(-1, *x.shape)).flatten(0, 1)  # several passes share one x
            x = torch.amax(x, (2, 3))
        else:
            from kithkin.nets import fused

            conv, norm = last.parts
            drop = cast(Dropout, self.drop[1])
            if torch.is_grad_enabled() or norm.training or drop.dropped == 256:
                x = fused.peak(x + drop(last(z)))
            else:
                x = fused.crown(z, conv.weight, norm, x, drop.keys, drop.salt, drop.dropped)
        return self.head(self.drop[2](functional.relu(self.hidden(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(*self.trunk(x))
