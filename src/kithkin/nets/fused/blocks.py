"""Convolution, batch norm, ReLU and 2x2 max pooling.

All but the convolution are one pass over the picture instead of three, forward and backward. Convolutions are cuDNN's, but for
those that it does slowly: of pictures (few channels) and of few more.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional

ROWS, CHANNELS = 32, 64  # one program's tile
PROGRAMS = 132  # about how many of them take the first step of a sum: enough for every multiprocessor
FEW = 16  # channels of one program in its second step


@triton.jit
def _place(first, R, C, H, W, ROWS: tl.constexpr, CHANNELS: tl.constexpr, POOL: tl.constexpr):
    """This tile's outputs, the (first) pixels behind them, its channels, and which of them exist."""
    out = first + tl.arange(0, ROWS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = (out < R)[:, None] & (c < C)[None, :]
    pixel = out
    if POOL:
        cell = out % ((H // 2) * (W // 2))
        pixel = (out // ((H // 2) * (W // 2)) * H + cell // (W // 2) * 2) * W + cell % (W // 2) * 2
    return out, pixel, c, there


@triton.jit
def _winner(y, pixel, c, C, W, there, scale, shift, POOL: tl.constexpr):
    """The pre-activation that passes: of one pixel, or the greatest of four; its raw value, and which of the four it was."""
    raw = tl.load(y + pixel[:, None] * C + c[None, :], there, 0.0).to(tl.float32)
    best = raw * scale + shift
    which = tl.zeros_like(best).to(tl.int32)
    if POOL:
        for i in tl.static_range(1, 4):
            other = tl.load(y + (pixel + (i // 2) * W + i % 2)[:, None] * C + c[None, :], there, 0.0).to(tl.float32)
            z = other * scale + shift
            wins = (z > best) | (z != z)
            best, raw, which = tl.where(wins, z, best), tl.where(wins, other, raw), tl.where(wins, i, which)
    return best, raw, which


@triton.jit
def still(gain, bias, mean, var, eps, c, C):
    """Scale and shift of channels c by the running statistics."""
    scale = tl.load(gain + c, c < C) / tl.sqrt(tl.load(var + c, c < C) + eps)
    return scale, tl.load(bias + c, c < C) - tl.load(mean + c, c < C) * scale


@triton.jit
def greater(a, b):
    """What is not a number stays so."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _conv(
    x,
    w,
    y,
    sums,
    plus,
    gain,
    bias,
    mean,
    var,
    eps,
    M,
    H,
    W,
    C: tl.constexpr,
    N: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BACK: tl.constexpr,
    SUMS: tl.constexpr,
    ASKED: tl.constexpr,
    POOL: tl.constexpr,
    PLUS: tl.constexpr,
):
    """A 3x3 convolution as a matrix product: M pixels, C channels in, N out; w is [O, 9, I].

    SUMS: also those of y and y^2 over this tile's pixels. ASKED: normalised by the running statistics, and ReLU; POOL: and of
    every 2x2 pixels, which stand side by side then, the greatest; PLUS: and added to `plus`. BACK: the gradient of the input,
    where O is summed over and the taps are reversed.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, 64)
    there = m < M
    if POOL:
        cell = m // 4
        i, j = cell // (W // 2) % (H // 2) * 2 + m // 2 % 2, cell % (W // 2) * 2 + m % 2
        m = (cell // ((H // 2) * (W // 2)) * H + i) * W + j
    else:
        i, j = m // W % H, m % W
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(0, 9 * C // 64):
        tap, c = step // (C // 64), step % (C // 64) * 64 + k
        down, right = tap // 3 - 1, tap % 3 - 1
        inside = there & (i + down >= 0) & (i + down < H) & (j + right >= 0) & (j + right < W)
        a = tl.load(x + (m + down * W + right)[:, None] * C + c[None, :], inside[:, None], 0.0)
        if BACK:
            b = tl.load(w + (c * 9 + 8 - tap)[:, None] * N + n[None, :])
        else:
            b = tl.load(w + (n * 9 + tap)[None, :] * C + c[:, None])
        acc = tl.dot(a, b, acc)
    if ASKED:
        scale, shift = still(gain, bias, mean, var, eps, n, N)
        acc = acc * scale[None, :] + shift[None, :]
        acc = tl.where(acc < 0, 0.0, acc)
    if POOL:
        acc = tl.reduce(tl.reshape(acc, (BM // 4, 4, BN)), 1, greater)
        m = tl.program_id(0) * (BM // 4) + tl.arange(0, BM // 4)
        there = m < M // 4
    if PLUS:
        acc += tl.load(plus + m[:, None] * N + n[None, :], there[:, None], 0.0).to(tl.float32)
    out = acc.to(y.dtype.element_ty)
    tl.store(y + m[:, None] * N + n[None, :], out, there[:, None])
    if SUMS:
        v = out.to(tl.float32)  # 0 where there is no pixel
        at = sums + tl.program_id(0) * 2 * N + n
        tl.store(at, tl.sum(v, 0))
        tl.store(at + N, tl.sum(v * v, 0))


@triton.jit
def _patches(x, out, H, W, D: tl.constexpr, xb, xi, xh, xw, WIDTH: tl.constexpr, ROWS: tl.constexpr, R):
    """The 3x3 surroundings of every pixel as a row of WIDTH numbers: taps, then channels, then zeros."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    q = tl.arange(0, WIDTH)
    i, j = (m // W % H)[:, None] + (q // (3 * D) - 1)[None, :], (m % W)[:, None] + (q // D % 3 - 1)[None, :]
    inside = (m < R)[:, None] & (q < 9 * D)[None, :] & (i >= 0) & (i < H) & (j >= 0) & (j < W)
    v = tl.load(x + (m // (H * W))[:, None] * xb + (q % D)[None, :] * xi + i * xh + j * xw, inside, 0.0)
    tl.store(out + m[:, None] * WIDTH + q[None, :], v.to(out.dtype.element_ty), (m < R)[:, None])


@triton.jit
def _first(
    x,
    w,
    y,
    gain,
    bias,
    mean,
    var,
    eps,
    M,
    H,
    W,
    D: tl.constexpr,
    xb,
    xi,
    xh,
    xw,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    BM: tl.constexpr,
):
    """The 3x3 convolution of pictures with few channels, normalised by the running statistics, and ReLU; w is [N, 9, D]."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * 64 + tl.arange(0, 64)
    q = tl.arange(0, WIDTH)
    i, j = (m // W % H)[:, None] + (q // (3 * D) - 1)[None, :], (m % W)[:, None] + (q // D % 3 - 1)[None, :]
    inside = (m < M)[:, None] & (q < 9 * D)[None, :] & (i >= 0) & (i < H) & (j >= 0) & (j < W)
    a = tl.load(x + (m // (H * W))[:, None] * xb + (q % D)[None, :] * xi + i * xh + j * xw, inside, 0.0)
    b = tl.load(w + n[None, :] * (9 * D) + q[:, None], (q < 9 * D)[:, None] & (n < N)[None, :], 0.0)
    scale, shift = still(gain, bias, mean, var, eps, n, N)
    z = tl.dot(a.to(w.dtype.element_ty), b) * scale[None, :] + shift[None, :]
    z = tl.where(z < 0, 0.0, z)
    tl.store(y + m[:, None] * N + n[None, :], z.to(y.dtype.element_ty), (m < M)[:, None] & (n < N)[None, :])


@triton.jit
def _moments(y, sums, R, C, LENGTH: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Partial sums of y and y^2 over LENGTH rows."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    one = tl.zeros((ROWS, CHANNELS), tl.float32)
    two = tl.zeros((ROWS, CHANNELS), tl.float32)
    first = tl.program_id(0) * LENGTH
    for start in range(0, LENGTH, ROWS):
        row = first + start + tl.arange(0, ROWS)
        v = tl.load(y + row[:, None] * C + c[None, :], (row < R)[:, None] & (c < C)[None, :], 0.0).to(tl.float32)
        one += v
        two += v * v
    at = sums + tl.program_id(0) * 2 * C + c
    tl.store(at, tl.sum(one, 0), c < C)
    tl.store(at + C, tl.sum(two, 0), c < C)


@triton.jit
def _add_up(sums, c, C, G, GROUPS: tl.constexpr):
    """Both sums over all groups, in one fixed order."""
    g = tl.arange(0, GROUPS)
    at = sums + g[:, None] * 2 * C + c[None, :]
    there = (g < G)[:, None] & (c < C)[None, :]
    return tl.sum(tl.load(at, there, 0.0), 0), tl.sum(tl.load(at + C, there, 0.0), 0)


@triton.jit
def _settle(sums, weight, bias, mean_run, var_run, line, R, C, G, eps, momentum, GROUPS: tl.constexpr, CHANNELS: tl.constexpr):
    """Scale and shift of every channel, its mean and 1/sd; the running statistics follow."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    one, two = _add_up(sums, c, C, G, GROUPS)
    mean = one / R
    var = two / R - mean * mean
    var = tl.where(var < 0, 0.0, var)
    inv = 1 / tl.sqrt(var + eps)
    scale = tl.load(weight + c, c < C) * inv
    tl.store(line + c, scale, c < C)
    tl.store(line + C + c, tl.load(bias + c, c < C) - mean * scale, c < C)
    tl.store(line + 2 * C + c, mean, c < C)
    tl.store(line + 3 * C + c, inv, c < C)
    old = tl.load(mean_run + c, c < C)
    tl.store(mean_run + c, old + momentum * (mean - old), c < C)
    old = tl.load(var_run + c, c < C)
    tl.store(var_run + c, old + momentum * (var * R / (R - 1) - old), c < C)


@triton.jit
def _apply(
    y,
    line,
    out,
    gain,
    bias,
    mean,
    var,
    eps,
    R,
    C,
    H,
    W,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    POOL: tl.constexpr,
    ASKED: tl.constexpr,
):
    """ReLU of the normalised input, of the greatest of four where pooled. What is not a number stays so."""
    at, pixel, c, there = _place(tl.program_id(0) * ROWS, R, C, H, W, ROWS, CHANNELS, POOL)
    if ASKED:
        scale, shift = still(gain, bias, mean, var, eps, c, C)
    else:
        scale, shift = tl.load(line + c, c < C), tl.load(line + C + c, c < C)
    z, _, _ = _winner(y, pixel, c, C, W, there, scale[None, :], shift[None, :], POOL)
    tl.store(out + at[:, None] * C + c[None, :], tl.where(z < 0, 0.0, z).to(tl.bfloat16), there)


@triton.jit
def _moments_back(
    d, y, line, sums, R, C, H, W, LENGTH: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, POOL: tl.constexpr
):
    """Partial sums of dz and dz * x^ over LENGTH outputs, where z is the normalised input and x^ the standardised one."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    scale, shift = tl.load(line + c, c < C)[None, :], tl.load(line + C + c, c < C)[None, :]
    mean, inv = tl.load(line + 2 * C + c, c < C)[None, :], tl.load(line + 3 * C + c, c < C)[None, :]
    one = tl.zeros((ROWS, CHANNELS), tl.float32)
    two = tl.zeros((ROWS, CHANNELS), tl.float32)
    first = tl.program_id(0) * LENGTH
    for start in range(0, LENGTH, ROWS):
        at, pixel, _, there = _place(first + start, R, C, H, W, ROWS, CHANNELS, POOL)
        z, raw, _ = _winner(y, pixel, c, C, W, there, scale, shift, POOL)
        dz = tl.load(d + at[:, None] * C + c[None, :], there, 0.0).to(tl.float32)
        dz = tl.where(z > 0, dz, 0.0)
        one += dz
        two += dz * (raw - mean) * inv
    at = sums + tl.program_id(0) * 2 * C + c
    tl.store(at, tl.sum(one, 0), c < C)
    tl.store(at + C, tl.sum(two, 0), c < C)


@triton.jit
def _settle_back(sums, grads, C, G, GROUPS: tl.constexpr, CHANNELS: tl.constexpr):
    """The gradients of weight and bias."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    one, two = _add_up(sums, c, C, G, GROUPS)
    tl.store(grads + c, two, c < C)
    tl.store(grads + C + c, one, c < C)


@triton.jit
def _apply_back(d, y, line, grads, dy, N, C, H, W, ROWS: tl.constexpr, CHANNELS: tl.constexpr, POOL: tl.constexpr):
    """dy = scale * (dz - mean(dz) - x^ * mean(dz * x^)) for all N pixels, those included that no pooling window covers."""
    cell = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    scale, shift = tl.load(line + c, c < C)[None, :], tl.load(line + C + c, c < C)[None, :]
    mean, inv = tl.load(line + 2 * C + c, c < C)[None, :], tl.load(line + 3 * C + c, c < C)[None, :]
    two, one = tl.load(grads + c, c < C)[None, :] / N, tl.load(grads + C + c, c < C)[None, :] / N
    if POOL:
        high, wide = (H + 1) // 2, (W + 1) // 2
        picture, i, j = cell // (high * wide), cell // wide % high, cell % wide
        pixel, at = (picture * H + 2 * i) * W + 2 * j, (picture * (H // 2) + i) * (W // 2) + j
        there = (picture * H * W < N)[:, None] & (c < C)[None, :]
        whole = there & ((i < H // 2) & (j < W // 2))[:, None]
        z, _, which = _winner(y, pixel, c, C, W, whole, scale, shift, POOL)
        dz = tl.load(d + at[:, None] * C + c[None, :], whole, 0.0).to(tl.float32)
        dz = tl.where(z > 0, dz, 0.0)
        for q in tl.static_range(4):
            inside = there & ((2 * i + q // 2 < H) & (2 * j + q % 2 < W))[:, None]
            place = (pixel + (q // 2) * W + q % 2)[:, None] * C + c[None, :]
            x = (tl.load(y + place, inside, 0.0).to(tl.float32) - mean) * inv
            tl.store(dy + place, (scale * (tl.where(which == q, dz, 0.0) - one - x * two)).to(tl.bfloat16), inside)
    else:
        there = (cell < N)[:, None] & (c < C)[None, :]
        z, raw, _ = _winner(y, cell, c, C, W, there, scale, shift, POOL)
        place = cell[:, None] * C + c[None, :]
        dz = tl.where(z > 0, tl.load(d + place, there, 0.0).to(tl.float32), 0.0)
        tl.store(dy + place, (scale * (dz - one - (raw - mean) * inv * two)).to(tl.bfloat16), there)


def _groups(rows: int, channels: int) -> tuple[int, int]:
    """How many partial sums for each channel, and over how many rows each goes."""
    most = max(1, PROGRAMS // triton.cdiv(channels, CHANNELS))
    length = triton.cdiv(triton.cdiv(rows, most), ROWS) * ROWS
    return triton.cdiv(rows, length), length


def _sums(y: Tensor) -> Tensor:
    """Partial sums of y and y^2 for every channel."""
    C = y.shape[1]
    R = y.numel() // C
    G, length = _groups(R, C)
    sums = torch.empty(G, 2, C, device=y.device)
    _moments[(G, triton.cdiv(C, CHANNELS))](y, sums, R, C, length, ROWS, CHANNELS)
    return sums


def held(norm: nn.BatchNorm2d) -> tuple[Any, ...]:
    return norm.weight, norm.bias, norm.running_mean, norm.running_var


def _lines(norm: nn.BatchNorm2d, sums: Tensor, R: int) -> Tensor:
    """Four numbers for every channel: scale, shift, mean, 1/sd. The running statistics follow."""
    C, G = norm.num_features, len(sums)
    line = torch.empty(4, C, device=sums.device)
    sizes = (R, C, G, norm.eps, norm.momentum, triton.next_power_of_2(G), FEW)
    _settle[(triton.cdiv(C, FEW),)](sums, *held(norm), line, *sizes)
    return line


def _empty(B: int, C: int, H: int, W: int, like: Tensor) -> Tensor:
    return torch.empty((B, C, H, W), dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _own(weight: Tensor, back: bool = False) -> bool:
    """Whether `_conv` does this one, and not cuDNN: where it measured faster on an H200."""
    outputs, inputs = weight.shape[:2]
    return inputs in (64, 128) and outputs in ((64, 128, 256) if back else (64, 128))


def _convolve(
    x: Tensor,
    weight: Tensor,
    back: bool = False,
    sums: bool = False,
    asked: nn.BatchNorm2d | None = None,
    pool: bool = False,
    plus: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """By `_conv`: the output, and where asked for the partial sums."""
    B, C, H, W = x.shape
    N, by = weight.shape[1 if back else 0], 2 if pool else 1
    y = _empty(B, N, H // by, W // by, x)
    M = y.numel() // N * by * by
    grid = (triton.cdiv(M, 128), 1)
    parts = torch.empty(grid[0], 2, N, device=x.device) if sums else y
    norm = (*held(asked), asked.eps) if asked else (y, y, y, y, 0.0)
    flags = (back, sums, asked is not None, pool, plus is not None)
    _conv[grid](
        x, weight, y, parts, y if plus is None else plus, *norm, M, H, W, C, N, 128, N, *flags, num_warps=4, num_stages=3
    )
    return y, parts


def _patched(x: Tensor) -> Tensor:
    B, D, H, W = x.shape
    width = triton.next_power_of_2(9 * D)
    patches = torch.empty(B * H * W, width, dtype=torch.bfloat16, device=x.device)
    _patches[(triton.cdiv(len(patches), 64),)](x, patches, H, W, D, *x.stride(), width, 64, len(patches))
    return patches


def _seen(x: Tensor, weight: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """By `_first`: what the first layer answers when it is only asked."""
    B, D, H, W = x.shape
    N, M = len(weight), B * H * W
    y = _empty(B, N, H, W, weight)
    kernel = weight.permute(0, 2, 3, 1).contiguous()
    sizes = (norm.eps, M, H, W, D, *x.stride(), N, triton.next_power_of_2(9 * D), 128)
    _first[(triton.cdiv(M, 128), triton.cdiv(N, 64))](x, kernel, y, *held(norm), *sizes)
    return y


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, norm: nn.BatchNorm2d, pool: bool) -> Tensor:
        B, D, H, W = x.shape
        C, training, sums = len(weight), norm.training, None
        if D < 8 and not (training or pool):
            return _seen(x, weight, norm)
        if D < 8:  # as one matrix product
            x = _patched(x)
            kernel = functional.pad(weight.permute(0, 2, 3, 1).flatten(1), (0, x.shape[1] - 9 * D))
            y = (x @ kernel.T).view(B, H, W, C).permute(0, 3, 1, 2)
        else:
            x = x.contiguous(memory_format=torch.channels_last)
            if not _own(weight):
                y = torch.conv2d(x, weight, padding=1)
            elif training:
                y, sums = _convolve(x, weight, sums=True)
            else:
                return _convolve(x, weight, asked=norm, pool=pool)[0]
        line = _lines(norm, _sums(y) if sums is None else sums, B * H * W) if training else y
        by = 2 if pool else 1
        out = _empty(B, C, H // by, W // by, y)
        R = out.numel() // C
        sizes = (norm.eps, R, C, H, W, ROWS, CHANNELS, pool, not training)
        _apply[(triton.cdiv(R, ROWS), triton.cdiv(C, CHANNELS))](y, line, out, *held(norm), *sizes)
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
        G, length = _groups(R, C)
        sums, both, dy = torch.empty(G, 2, C, device=y.device), torch.empty(2, C, device=y.device), torch.empty_like(y)
        _moments_back[(G, blocks)](d, y, line, sums, R, C, H, W, length, ROWS, CHANNELS, ctx.pool)
        _settle_back[(triton.cdiv(C, FEW),)](sums, both, C, G, triton.next_power_of_2(G), FEW)
        cells = B * ((H + 1) // 2) * ((W + 1) // 2) if ctx.pool else N
        _apply_back[(triton.cdiv(cells, ROWS), blocks)](d, y, line, both, dy, N, C, H, W, ROWS, CHANNELS, ctx.pool)
        dx = None
        if x.dim() == 2:
            D = weight.shape[1]
            dw = (dy.permute(0, 2, 3, 1).reshape(N, C).T @ x)[:, : 9 * D].reshape(C, 3, 3, D).permute(0, 3, 1, 2)
        else:
            own = _own(weight, back=True)
            asked = [ctx.needs_input_grad[0] and not own, True, False]
            dx, dw, _ = torch.ops.aten.convolution_backward(
                dy, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, asked
            )
            if own and ctx.needs_input_grad[0]:
                dx, _ = _convolve(dy, weight, back=True)
        return dx, dw, both[0], both[1], None, None


def block(x: Tensor, weight: Tensor, norm: nn.BatchNorm2d, pool: bool, plus: Tensor | None = None) -> Tensor:
    """`relu(norm(conv(x)))` with a 3x3 convolution, and where asked the greatest of every 2x2 pixels, `plus`; in bfloat16.

    Has a gradient where the norm is in training.
    """
    low = weight.to(torch.bfloat16)
    x = x if x.shape[1] < 8 else x.to(torch.bfloat16)
    if plus is not None and not norm.training and _own(low):
        x, plus = (t.contiguous(memory_format=torch.channels_last) for t in (x, plus))
        return _convolve(x, low, asked=norm, pool=pool, plus=plus)[0]
    out = _Block.apply(x, low, norm.weight, norm.bias, norm, pool)
    return out if plus is None else plus + out
