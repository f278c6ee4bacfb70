"""The end of a network: the greatest pixel of every channel; and dropout, whose dice (`kithkin.dice`) the kernel throws."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from kithkin.nets.fused.norms import CHANNELS, greater, held, still


@triton.jit
def _peak(x, out, n, C, pixels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """The greatest of a picture's pixels, channel by channel."""
    p = tl.arange(0, PIXELS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    at = x + tl.program_id(0) * n + p[:, None] * C + c[None, :]
    v = tl.load(at, (p < pixels)[:, None] & (c < C)[None, :], float("-inf")).to(tl.float32)
    tl.store(out + tl.program_id(0) * C + c, tl.reduce(v, 0, greater).to(out.dtype.element_ty), c < C)


@triton.jit
def _peak_back(d, x, out, dx, n, C, pixels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """Those that are the greatest share the gradient, as torch.amax has it."""
    p = tl.arange(0, PIXELS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    place = tl.program_id(0) * n + p[:, None] * C + c[None, :]
    there = (p < pixels)[:, None] & (c < C)[None, :]
    top = tl.load(out + tl.program_id(0) * C + c, c < C)
    is_top = (there & (tl.load(x + place, there, 0.0) == top[None, :])).to(tl.float32)
    share = tl.load(d + tl.program_id(0) * C + c, c < C).to(tl.float32) / tl.sum(is_top, 0)
    tl.store(dx + place, (is_top * share[None, :]).to(dx.dtype.element_ty), there)


class _Peak(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        B, C, H, W = x.shape
        out = torch.empty(B, C, dtype=x.dtype, device=x.device)
        ctx.size = C * H * W, C, H * W, triton.next_power_of_2(H * W), CHANNELS
        _peak[(B, triton.cdiv(C, CHANNELS))](x, out, *ctx.size)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, out = ctx.saved_tensors
        dx = torch.empty_like(x)
        _peak_back[(len(x), triton.cdiv(x.shape[1], CHANNELS))](grads[0].contiguous(), x, out, dx, *ctx.size)
        return dx


def peak(x: Tensor) -> Tensor:
    """`torch.amax(x, (2, 3))` of a tensor that lies channels-last."""
    return _Peak.apply(x.contiguous(memory_format=torch.channels_last))


@triton.jit
def _mixed(z):
    """SplitMix64's finaliser (`dice.mix`)."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _throw(key, i):
    """Throw i of a key's dice (`dice.bits`)."""
    return _mixed(_mixed(key.to(tl.uint64)) + (i + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def _bytes(key, first, c, pixels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, PACKED: tl.constexpr):
    """The dice of PIXELS pixels from `first` on and of channels c (`dice.bytes_`): byte i decides about number i of the
    sample, counted channels first. PACKED: eight pixels at a time lie in one throw."""
    if PACKED:
        throw = _throw(key, (c * (pixels // 8))[None, :] + (first // 8 + tl.arange(0, PIXELS // 8))[:, None])
        shifts = (tl.arange(0, 8) * 8).to(tl.uint64)
        byte = (throw[:, None, :] >> shifts[None, :, None]) & 255
        return tl.reshape(byte.to(tl.int32), (PIXELS, CHANNELS))
    i = (c * pixels)[None, :] + (first + tl.arange(0, PIXELS))[:, None]
    return ((_throw(key, i // 8) >> ((i % 8) * 8).to(tl.uint64)) & 255).to(tl.int32)


@triton.jit
def _drop(
    x,
    keys,
    out,
    B,
    C,
    pixels,
    salt,
    dropped,
    factor,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PACKED: tl.constexpr,
):
    sample = tl.program_id(0).to(tl.int64)
    first = tl.program_id(2) * PIXELS
    p = first + tl.arange(0, PIXELS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = (p < pixels)[:, None] & (c < C)[None, :]
    at = p[:, None] * C + c[None, :]
    byte = _bytes(tl.load(keys + sample) ^ salt, first, c, pixels, PIXELS, CHANNELS, PACKED)
    v = tl.load(x + sample % B * pixels * C + at, there, 0.0).to(tl.float32)
    v = tl.where(byte >= dropped, v * factor, 0.0 * v)
    tl.store(out + sample * pixels * C + at, v.to(out.dtype.element_ty), there)


def _dropped(x: Tensor, keys: Tensor, salt: int, dropped: int) -> Tensor:
    if x.dim() not in (2, 4):  # dice are thrown in the order in which such numbers lie
        return _dropped(x.flatten(1), keys, salt, dropped).view(len(keys), *x.shape[1:])
    last = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    out = torch.empty((len(keys), *x.shape[1:]), dtype=x.dtype, device=x.device, memory_format=last)
    C = x.shape[1]
    pixels = x[0].numel() // C
    tile = (1, 256, False) if pixels == 1 else (16, CHANNELS, pixels % 8 == 0)
    grid = (len(keys), triton.cdiv(C, tile[1]), triton.cdiv(pixels, tile[0]))
    _drop[grid](x, keys, out, len(x), C, pixels, salt, dropped, 256 / (256 - dropped), *tile)
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, salt: int, dropped: int) -> Tensor:
        assert len(keys) == len(x) or not ctx.needs_input_grad[0]
        ctx.save_for_backward(keys)
        ctx.by = salt, dropped
        return _dropped(x, keys, *ctx.by)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        d = grads[0]
        d = d.contiguous(memory_format=torch.channels_last) if d.dim() == 4 else d.contiguous()
        return _dropped(d, *ctx.saved_tensors, *ctx.by), None, None, None


def dropout(x: Tensor, keys: Tensor, salt: int, dropped: int) -> Tensor:
    """What `Dropout` does to single numbers (not whole channels): `dropped` of 256 go.

    With T times as many keys as samples those are taken T times over; that has no gradient here.
    """
    x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()
    return _Dropout.apply(x, keys, salt, dropped)


@triton.jit
def _crown(
    y,
    x,
    keys,
    out,
    gain,
    bias,
    mean,
    var,
    eps,
    B,
    C,
    pixels,
    salt,
    dropped,
    factor,
    DROP: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PACKED: tl.constexpr,
):
    """The greatest pixel of x + dropout(relu(norm(y))), channel by channel; several passes y share one x."""
    sample = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, PIXELS)[:, None]
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = (p < pixels) & (c < C)[None, :]
    at = p * C + c[None, :]
    z = tl.load(y + sample * pixels * C + at, there, 0.0).to(tl.float32)
    scale, shift = still(gain, bias, mean, var, eps, c, C)
    z = z * scale[None, :] + shift[None, :]
    z = tl.where(z < 0, 0.0, z)
    if DROP:
        byte = _bytes(tl.load(keys + sample) ^ salt, 0, c, pixels, PIXELS, CHANNELS, PACKED)
        z = tl.where(byte >= dropped, z * factor, 0.0 * z)
    z += tl.load(x + sample % B * pixels * C + at, there, 0.0).to(tl.float32)
    top = tl.reduce(tl.where(there, z, float("-inf")), 0, greater)
    tl.store(out + sample * C + c, top.to(out.dtype.element_ty), c < C)


def crown(z: Tensor, weight: Tensor, norm: nn.BatchNorm2d, x: Tensor, keys: Tensor | None, salt: int, dropped: int) -> Tensor:
    """`peak(x + dropout(relu(norm(conv(z)))))` without a gradient: the end of ResNet-9 when it is only asked."""
    B, C, H, W = x.shape
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.conv2d(z.to(torch.bfloat16), weight.to(torch.bfloat16), padding=1).contiguous(memory_format=torch.channels_last)
    out = torch.empty(len(z), C, dtype=y.dtype, device=y.device)
    drop = keys is not None and dropped > 0
    wide = 4 * CHANNELS  # small tiles would be more work to start than to do
    sizes = (B, C, H * W, salt, dropped, 256 / (256 - dropped), drop, triton.next_power_of_2(H * W), wide, H * W % 8 == 0)
    _crown[(len(z), triton.cdiv(C, wide))](y, x, keys if drop else x, out, *held(norm), norm.eps, *sizes)
    return out
