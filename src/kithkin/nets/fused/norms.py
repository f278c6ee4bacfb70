"""Batch norm, ReLU and 2x2 max pooling in one pass over the picture instead of three, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

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
def apply(
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
def moments_back(
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
def settle_back(sums, grads, C, G, GROUPS: tl.constexpr, CHANNELS: tl.constexpr):
    """The gradients of weight and bias."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    one, two = _add_up(sums, c, C, G, GROUPS)
    tl.store(grads + c, two, c < C)
    tl.store(grads + C + c, one, c < C)


@triton.jit
def apply_back(d, y, line, grads, dy, N, C, H, W, ROWS: tl.constexpr, CHANNELS: tl.constexpr, POOL: tl.constexpr):
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


def groups(rows: int, channels: int) -> tuple[int, int]:
    """How many partial sums for each channel, and over how many rows each goes."""
    most = max(1, PROGRAMS // triton.cdiv(channels, CHANNELS))
    length = triton.cdiv(triton.cdiv(rows, most), ROWS) * ROWS
    return triton.cdiv(rows, length), length


def sums_of(y: Tensor) -> Tensor:
    """Partial sums of y and y^2 for every channel."""
    C = y.shape[1]
    R = y.numel() // C
    G, length = groups(R, C)
    sums = torch.empty(G, 2, C, device=y.device)
    _moments[(G, triton.cdiv(C, CHANNELS))](y, sums, R, C, length, ROWS, CHANNELS)
    return sums


def held(norm: nn.BatchNorm2d) -> tuple[Any, ...]:
    return norm.weight, norm.bias, norm.running_mean, norm.running_var


def lines(norm: nn.BatchNorm2d, sums: Tensor, R: int) -> Tensor:
    """Four numbers for every channel: scale, shift, mean, 1/sd. The running statistics follow."""
    C, G = norm.num_features, len(sums)
    line = torch.empty(4, C, device=sums.device)
    sizes = (R, C, G, norm.eps, norm.momentum, triton.next_power_of_2(G), FEW)
    _settle[(triton.cdiv(C, FEW),)](sums, *held(norm), line, *sizes)
    return line
