"""The fused kernels against plain PyTorch in double precision: on a CUDA device, or on the CPU by Triton's interpreter."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kithkin import dice

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # read as the kernels are defined
pytest.importorskip("triton", reason="Triton comes with CUDA builds of torch, and with the dev extra on Linux")

from kithkin.compute.descent import Descent  # noqa: E402
from kithkin.nets import fused  # noqa: E402
from kithkin.nets.fused import convolutions  # noqa: E402

DEVICE = torch.device("cuda" if CUDA else "cpu")
SMALL = [(4, 16, 24, 8, 8), (3, 3, 16, 7, 7), (2, 1, 16, 6, 6), (2, 16, 8, 3, 5)]
LARGE = [(64, 3, 64, 32, 32), (64, 512, 512, 4, 4), (64, 64, 128, 32, 32), (64, 128, 128, 14, 14), (5, 128, 128, 7, 7)]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's NumPy, on NaN


def draw(*shape: int, key: int = 0) -> Tensor:
    """Numbers about 0, the same on every machine."""
    n = int(torch.tensor(shape).prod())
    return (dice.uniform(torch.tensor(key), n) * 4 - 2).view(shape).to(DEVICE)


def low(x: Tensor) -> Tensor:
    return x.bfloat16().contiguous(memory_format=torch.channels_last)


def off_by(mine: Tensor, theirs: Tensor) -> float:
    return float((mine.detach().double() - theirs.detach()).norm() / theirs.detach().norm().clamp_min(1e-9))


def block_in_double(x: Tensor, weight: Tensor, norm: nn.BatchNorm2d, pool: bool) -> Tensor:
    y = functional.conv2d(x, weight, padding=1)
    y = y + (y.bfloat16().double() - y).detach()  # the kernels keep the convolution's output in bfloat16
    y = functional.relu(norm(y))
    return functional.max_pool2d(y, 2) if pool else y


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("shape", SMALL + (LARGE if CUDA else []), ids=str)
def test_a_block_is_conv_norm_relu_pool(shape: tuple[int, int, int, int, int], pool: bool):
    B, D, C, H, W = shape
    x = draw(B, D, H, W) if D < 8 else low(draw(B, D, H, W))
    weight = low(draw(C, D, 3, 3, key=1) / (9 * D) ** 0.5)
    norm = nn.BatchNorm2d(C).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(draw(C, key=2))
        norm.bias.copy_(draw(C, key=3))
    norm2 = copy.deepcopy(norm).double()
    a, w = x.clone().requires_grad_(D >= 8), weight.clone().requires_grad_()
    b, w2 = x.bfloat16().double().requires_grad_(), weight.double().requires_grad_()
    mine, theirs = fused.block(a, w, norm, pool), block_in_double(b, w2, norm2, pool)
    d = draw(*mine.shape, key=4).bfloat16()
    mine.backward(d)
    theirs.backward(d.double())
    coarse = 0.1 if B * H * W < 500 else 0.03  # a ReLU that falls to the other side weighs more among few pixels
    assert off_by(mine, theirs) < 0.01
    assert off_by(w.grad, w2.grad) < coarse
    assert D < 8 or off_by(a.grad, b.grad) < coarse
    assert off_by(norm.weight.grad, norm2.weight.grad) < coarse
    assert off_by(norm.bias.grad, norm2.bias.grad) < coarse
    assert off_by(norm.running_mean, norm2.running_mean) < 0.02
    assert off_by(norm.running_var, norm2.running_var) < 0.01
    if D < 8 and not (pool or CUDA):
        return  # Triton's interpreter multiplies no bfloat16 matrices: see below
    norm.eval()
    norm2.eval()
    with torch.no_grad():
        theirs = block_in_double(b, w2, norm2, pool)
        assert off_by(fused.block(x, weight, norm, pool), theirs) < 0.01
        assert off_by(fused.block(x, weight, norm, pool, plus=d), theirs + d.double()) < 0.01


@pytest.mark.parametrize("pool", [False, True])
def test_what_is_not_a_number_stays_so(pool: bool):
    x, weight = torch.full((2, 16, 4, 4), torch.nan, device=DEVICE), draw(8, 16, 3, 3)
    assert fused.block(low(x), low(weight), nn.BatchNorm2d(8).to(DEVICE), pool).isnan().all()
    assert fused.peak(low(x)).isnan().all()


@pytest.mark.parametrize("size", [(3, 6, 5), (2, 4, 4)])
def test_the_own_convolution_is_pytorchs(size: tuple[int, int, int]):
    """In half precision, which the interpreter multiplies."""
    B, H, W = size
    x, d = (draw(B, 64, H, W, key=k).half().contiguous(memory_format=torch.channels_last) for k in (0, 1))
    weight = (draw(64, 64, 3, 3, key=2) / 24).half().contiguous(memory_format=torch.channels_last)
    y, sums = convolutions.convolve(x, weight, sums=True)
    theirs = functional.conv2d(x.double(), weight.double(), padding=1)
    assert off_by(y, theirs) < 1e-3
    flat = y.double().permute(1, 0, 2, 3).flatten(1)
    assert off_by(sums.sum(0), torch.stack([flat.sum(1), (flat**2).sum(1)])) < 1e-3
    assert torch.equal(convolutions.convolve(x, weight)[0], y)
    norm = nn.BatchNorm2d(64).to(DEVICE).eval()
    with torch.no_grad():
        norm.running_mean.copy_(draw(64, key=3))
        norm.running_var.copy_(draw(64, key=4).abs() + 0.5)
        asked, _ = convolutions.convolve(x, weight, asked=norm)
        pooled, _ = convolutions.convolve(x, weight, asked=norm, pool=True)
        summed, _ = convolutions.convolve(x, weight, asked=norm, plus=d)
        x[0, 0, 0, 0] = torch.nan
        lost, _ = convolutions.convolve(x, weight, asked=norm, pool=True)
    theirs = functional.relu(copy.deepcopy(norm).double()(theirs))
    assert off_by(asked, theirs) < 1e-3
    assert off_by(summed, theirs + d.double()) < 1e-3
    assert off_by(pooled, functional.max_pool2d(theirs, 2)) < 1e-3
    assert lost[0, :, 0, 0].isnan().all()
    assert not lost[1:].isnan().any()
    back, _ = convolutions.convolve(d, weight, back=True)
    assert off_by(back, torch.nn.grad.conv2d_input(x.shape, weight.double(), d.double(), padding=1)) < 1e-3


@pytest.mark.parametrize("shape", [(2, 3, 70, 7, 6), (3, 1, 16, 5, 8)])
def test_the_first_layer_is_pytorchs(shape: tuple[int, int, int, int, int]):
    B, D, C, H, W = shape
    x, weight = draw(B, D, H, W).half(), (draw(C, D, 3, 3, key=1) / 5).half()
    norm = nn.BatchNorm2d(C).to(DEVICE).eval()
    with torch.no_grad():
        norm.running_mean.copy_(draw(C, key=3))
        norm.running_var.copy_(draw(C, key=4).abs() + 0.5)
        theirs = functional.relu(copy.deepcopy(norm).double()(functional.conv2d(x.double(), weight.double(), padding=1)))
        assert off_by(convolutions.seen(x, weight, norm), theirs) < 1e-3


@pytest.mark.parametrize("shape", [(3, 20, 4, 4), (2, 70, 3, 3), (2, 8, 1, 1)])
def test_peak_is_amax_and_shares_the_gradient_among_equals(shape: tuple[int, ...]):
    x = draw(*shape).round().contiguous(memory_format=torch.channels_last).requires_grad_()
    y = x.detach().clone().requires_grad_()
    d = draw(*shape[:2], key=1)
    fused.peak(x).backward(d)
    y.amax((2, 3)).backward(d)
    assert torch.equal(fused.peak(x), y.amax((2, 3)))
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 24, 4, 4), (5, 40), (3, 7, 3, 5), (3, 5, 8), (3, 4, 2, 2, 2)])
@pytest.mark.parametrize("dropped", [1, 77, 128, 255])
def test_dropout_throws_the_references_dice(shape: tuple[int, ...], dropped: int):
    x = draw(*shape)
    x = (x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x).requires_grad_()
    keys, salt = torch.arange(len(x), device=DEVICE) * 77777777777 - 5, -123456789012345
    kept = (dice.bytes_(keys ^ salt, x[0].numel()) >= dropped).view(x.shape)
    scale = 256 / (256 - dropped)
    y = fused.dropout(x, keys, salt, dropped)
    y.sum().backward()
    torch.testing.assert_close(y, x * kept * scale)
    torch.testing.assert_close(x.grad, kept * torch.tensor(scale, device=DEVICE).float())


@pytest.mark.parametrize("shape", [(16, 24, 4, 4), (8, 70, 3, 3), (8, 8, 1, 1)])
@pytest.mark.parametrize("dropped", [0, 128])
def test_the_crown_is_conv_norm_relu_dropout_sum_and_peak(shape: tuple[int, int, int, int], dropped: int):
    """Two passes over three pictures."""
    D, C, H, W = shape
    z, x, weight = low(draw(6, D, H, W)), low(draw(3, C, H, W, key=1)), low(draw(C, D, 3, 3, key=2) / (9 * D) ** 0.5)
    norm = nn.BatchNorm2d(C).to(DEVICE).eval()
    with torch.no_grad():
        norm.running_mean.copy_(draw(C, key=3))
        norm.running_var.copy_(draw(C, key=4).abs() + 0.5)
    keys = torch.arange(6, device=DEVICE) * 77777777777
    y = functional.relu(copy.deepcopy(norm).double()(functional.conv2d(z.double(), weight.double(), padding=1)))
    kept = (dice.bytes_(keys ^ 5, y[0].numel()) >= dropped).view(y.shape)
    theirs = (y * kept * 256 / (256 - dropped) + x.double().repeat(2, 1, 1, 1)).amax((2, 3))
    with torch.no_grad():
        assert off_by(fused.crown(z, weight, norm, x, keys, 5, dropped), theirs) < 0.01
        x[0, 0] = torch.nan
        assert fused.crown(z, weight, norm, x, keys, 5, dropped).isnan().nonzero().tolist() == [[0, 0], [3, 0]]


@pytest.mark.skipif(not CUDA, reason="the interpreter has no addresses of tensors")
@pytest.mark.parametrize("prox", [0.0, 0.5])
def test_descent_is_sgd_with_momentum_and_a_pull(prox: float):
    sizes = [3, 1500, 64]
    w, speed, anchor = draw(sum(sizes)), draw(sum(sizes), key=1), draw(sum(sizes), key=2)
    gradients: list[Any] = [draw(3, key=3).bfloat16(), draw(1500, key=4), draw(64, key=5).bfloat16()]
    g = torch.cat([x.float() for x in gradients]) + prox * (w - anchor)
    v = 0.9 * speed + g
    after = w - 0.1 * v
    descent, copy16 = Descent(sizes, DEVICE), w.bfloat16()
    table = descent.table()
    table.fill(gradients)
    descent.step((w, copy16, speed, anchor), table, 0.1, 0.9, prox)
    torch.testing.assert_close(w, after)
    torch.testing.assert_close(speed, v)
    assert torch.equal(copy16, w.bfloat16())
