"""A block of a network: convolution, batch norm, ReLU and 2x2 max pooling, with its gradient."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional

from kithkin.nets.fused.convolutions import convolve, empty, ours, patched, seen
from kithkin.nets.fused.norms import (
    CHANNELS,
    FEW,
    ROWS,
    apply,
    apply_back,
    groups,
    held,
    lines,
    moments_back,
    settle_back,
    sums_of,
)


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, norm: nn.BatchNorm2d, pool: bool) -> Tensor:
        B, D, H, W = x.shape
        C, training, sums = len(weight), norm.training, None
        if D < 8 and not (training or pool):
            return seen(x, weight, norm)
        if D < 8:  # as one matrix product
            x = patched(x)
            kernel = functional.pad(weight.permute(0, 2, 3, 1).flatten(1), (0, x.shape[1] - 9 * D))
            y = (x @ kernel.T).view(B, H, W, C).permute(0, 3, 1, 2)
        else:
            x = x.contiguous(memory_format=torch.channels_last)
            if not ours(weight):
                y = torch.conv2d(x, weight, padding=1)
            elif training:
                y, sums = convolve(x, weight, sums=True)
            else:
                return convolve(x, weight, asked=norm, pool=pool)[0]
        line = lines(norm, sums_of(y) if sums is None else sums, B * H * W) if training else y
        by = 2 if pool else 1
        out = empty(B, C, H // by, W // by, y)
        R = out.numel() // C
        sizes = (norm.eps, R, C, H, W, ROWS, CHANNELS, pool, not training)
        apply[(triton.cdiv(R, ROWS), triton.cdiv(C, CHANNELS))](y, line, out, *held(norm), *sizes)
        if training:
            ctx.save_for_backward(x, weight, y, line)
            ctx.pool = pool
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, y, line = ctx.saved_tensors
        d = grads[0].contiguous(memory_format=torch.channels_last)
        B, C, H, W = y.shape
        R, N = d.numel() // C, y.numel() // C
        blocks = triton.cdiv(C, CHANNELS)
        G, length = groups(R, C)
        sums, both, dy = torch.empty(G, 2, C, device=y.device), torch.empty(2, C, device=y.device), torch.empty_like(y)
        moments_back[(G, blocks)](d, y, line, sums, R, C, H, W, length, ROWS, CHANNELS, ctx.pool)
        settle_back[(triton.cdiv(C, FEW),)](sums, both, C, G, triton.next_power_of_2(G), FEW)
        cells = B * ((H + 1) // 2) * ((W + 1) // 2) if ctx.pool else N
        apply_back[(triton.cdiv(cells, ROWS), blocks)](d, y, line, both, dy, N, C, H, W, ROWS, CHANNELS, ctx.pool)
        dx = None
        if x.dim() == 2:
            D = weight.shape[1]
            dw = (dy.permute(0, 2, 3, 1).reshape(N, C).T @ x)[:, : 9 * D].reshape(C, 3, 3, D).permute(0, 3, 1, 2)
        else:
            own = ours(weight, back=True)
            asked = [ctx.needs_input_grad[0] and not own, True, False]
            dx, dw, _ = torch.ops.aten.convolution_backward(
                dy, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, asked
            )
            if own and ctx.needs_input_grad[0]:
                dx, _ = convolve(dy, weight, back=True)
        return dx, dw, both[0], both[1], None, None


def block(x: Tensor, weight: Tensor, norm: nn.BatchNorm2d, pool: bool, plus: Tensor | None = None) -> Tensor:
    """`relu(norm(conv(x)))` with a 3x3 convolution, and where asked the greatest of every 2x2 pixels, `plus`; in bfloat16.

    Has a gradient where the norm is in training.
    """
    low = weight.to(torch.bfloat16)
    x = x if x.shape[1] < 8 else x.to(torch.bfloat16)
    if plus is not None and not norm.training and ours(low):
        x, plus = (t.contiguous(memory_format=torch.channels_last) for t in (x, plus))
        return convolve(x, low, asked=norm, pool=pool, plus=plus)[0]
    out = _Block.apply(x, low, norm.weight, norm.bias, norm, pool)
    return out if plus is None else plus + out
