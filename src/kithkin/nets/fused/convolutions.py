"""The 3x3 convolutions that cuDNN does slowly: of pictures (few channels) and of few more."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from kithkin.nets.fused.norms import greater, held, still


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


def empty(B: int, C: int, H: int, W: int, like: Tensor) -> Tensor:
    return torch.empty((B, C, H, W), dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def ours(weight: Tensor, back: bool = False) -> bool:
    """Whether `_conv` does this one, and not cuDNN: where it measured faster on an H200."""
    outputs, inputs = weight.shape[:2]
    return inputs in (64, 128) and outputs in ((64, 128, 256) if back else (64, 128))


def convolve(
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
    y = empty(B, N, H // by, W // by, x)
    M = y.numel() // N * by * by
    grid = (triton.cdiv(M, 128), 1)
    parts = torch.empty(grid[0], 2, N, device=x.device) if sums else y
    norm = (*held(asked), asked.eps) if asked else (y, y, y, y, 0.0)
    flags = (back, sums, asked is not None, pool, plus is not None)
    _conv[grid](
        x, weight, y, parts, y if plus is None else plus, *norm, M, H, W, C, N, 128, N, *flags, num_warps=4, num_stages=3
    )
    return y, parts


def patched(x: Tensor) -> Tensor:
    B, D, H, W = x.shape
    width = triton.next_power_of_2(9 * D)
    patches = torch.empty(B * H * W, width, dtype=torch.bfloat16, device=x.device)
    _patches[(triton.cdiv(len(patches), 64),)](x, patches, H, W, D, *x.stride(), width, 64, len(patches))
    return patches


def seen(x: Tensor, weight: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """By `_first`: what the first layer answers when it is only asked."""
    B, D, H, W = x.shape
    N, M = len(weight), B * H * W
    y = empty(B, N, H, W, weight)
    kernel = weight.permute(0, 2, 3, 1).contiguous()
    sizes = (norm.eps, M, H, W, D, *x.stride(), N, triton.next_power_of_2(9 * D), 128)
    _first[(triton.cdiv(M, 128), triton.cdiv(N, 64))](x, kernel, y, *held(norm), *sizes)
    return y
