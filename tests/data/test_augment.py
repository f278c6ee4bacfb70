"""The batched augmentations against plain per-picture ones: PIL's, slices, and a pixel-by-pixel sampler."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch.nn.functional import pad

from kithkin import dice
from kithkin.data import augment

SHAPES = [(channels, side) for channels in (1, 3) for side in (8, 28, 32, 64)]
every_shape = pytest.mark.parametrize(("channels", "side"), SHAPES)
LEVEL = 1 / 255 + 1e-5


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Pictures this small gain nothing from threads, which spin for long on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pictures(count: int, channels: int, height: int, width: int | None = None, seed: int = 0) -> np.ndarray:
    """8-bit pictures with some structure: a tilted ramp of each one's own range, and noise."""
    rng = np.random.default_rng(seed)
    width = width or height
    ramp = rng.normal(size=(count, channels, 2)) @ np.indices((height, width)).reshape(2, -1) / height
    noisy = ramp.reshape(count, channels, height, width) + rng.normal(scale=0.3, size=(count, channels, height, width))
    centre, spread = rng.uniform(60, 200, (count, channels, 1, 1)), rng.uniform(5, 90, (count, 1, 1, 1))
    return np.clip(centre + spread * noisy, 0, 255).astype(np.uint8)


def unit(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).float() / 255


def to_pil(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))


def from_pil(image: Image.Image) -> np.ndarray:
    levels = np.asarray(image, np.float64) / 255
    return levels[None] if levels.ndim == 2 else levels.transpose(2, 0, 1)


def operated(images: np.ndarray, name: str, draws: np.ndarray) -> np.ndarray:
    op = torch.full((len(images),), augment.pool(images.shape[1]).index(name))
    return augment.operate(unit(images), op, torch.from_numpy(draws).float()).numpy()


def bilinear(image: np.ndarray, matrix: tuple[float, ...]) -> np.ndarray:
    """PIL's AFFINE convention (out -> in, pixel centres at halves): each pixel a mean of four, grey all around."""
    _, height, width = image.shape
    a, b, c, d, e, f = matrix
    framed = np.pad(image, ((0, 0), (1, 1), (1, 1)), constant_values=0.5)
    out = np.full(image.shape, 0.5)
    for y in range(height):
        for x in range(width):
            u = a * (x + 0.5) + b * (y + 0.5) + c + 0.5  # in the frame's pixels: + 1 for the frame, - 0.5 to the centre
            v = d * (x + 0.5) + e * (y + 0.5) + f + 0.5
            left, top = math.floor(u), math.floor(v)
            if 0 <= left <= width and 0 <= top <= height:
                across, down = u - left, v - top
                four = framed[:, top : top + 2, left : left + 2]
                out[:, y, x] = four[:, 0] @ [1 - across, across] * (1 - down) + four[:, 1] @ [1 - across, across] * down
    return out


def affine(name: str, draw: float, height: int, width: int) -> tuple[float, ...]:
    signed = 2 * draw - 1
    if name == "rotate":
        cos, sin = math.cos(signed * math.pi / 6), math.sin(signed * math.pi / 6)
        x, y = width / 2, height / 2
        return cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y
    amount = 0.3 * signed
    return {
        "shear_x": (1, amount, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, amount, 1, 0),
        "translate_x": (1, 0, amount * width, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, amount * height),
    }[name]


PIL_OPERATIONS = {
    "autocontrast": lambda image, draw: ImageOps.autocontrast(image),
    "brightness": lambda image, draw: ImageEnhance.Brightness(image).enhance(0.05 + 0.9 * draw),
    "color": lambda image, draw: ImageEnhance.Color(image).enhance(0.05 + 0.9 * draw),
    "contrast": lambda image, draw: ImageEnhance.Contrast(image).enhance(0.05 + 0.9 * draw),
    "equalize": lambda image, draw: ImageOps.equalize(image),
    "identity": lambda image, draw: image,
    "posterize": lambda image, draw: ImageOps.posterize(image, 4 + int(5 * draw)),
    "sharpness": lambda image, draw: ImageEnhance.Sharpness(image).enhance(0.05 + 0.9 * draw),
    "solarize": lambda image, draw: ImageOps.solarize(image, 256 * draw),
}
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def test_every_operation_has_a_reference():
    assert sorted((*PIL_OPERATIONS, *GEOMETRIC)) == sorted(augment.POOL)
    assert len(augment.POOL) == 14
    assert augment.pool(3) == augment.POOL
    assert "color" not in augment.pool(1)
    assert len(augment.pool(1)) == 13


@pytest.mark.parametrize(
    ("name", "channels", "side"), [(n, c, s) for n in PIL_OPERATIONS for c, s in SHAPES if n in augment.pool(c)]
)
def test_tone_operations_are_pils(name: str, channels: int, side: int):
    images = pictures(16, channels, side)
    images[0], images[1] = 77, np.where(images[1] > images[1].mean(), 255, 0)  # constant; two levels only
    draws = np.concatenate([[0.0, 1 - 2**-24], np.random.default_rng(1).random(14, np.float32)])
    expected = [from_pil(PIL_OPERATIONS[name](to_pil(i), d)) for i, d in zip(images, draws, strict=True)]
    exact = name in ("equalize", "identity", "posterize", "solarize")
    np.testing.assert_allclose(operated(images, name, draws), expected, rtol=0, atol=1e-6 if exact else LEVEL)


@pytest.mark.parametrize("shape", [*((c, s, s) for c, s in SHAPES), (1, 8, 12), (3, 20, 9)], ids=str)
@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometric_operations_sample_bilinearly(name: str, shape: tuple[int, int, int]):
    draws = np.array([0, 1 - 2**-24, 0.31], np.float32)
    images = pictures(3, *shape)
    expected = [bilinear(i / 255, affine(name, float(d), *shape[1:])) for i, d in zip(images, draws, strict=True)]
    np.testing.assert_allclose(operated(images, name, draws), expected, rtol=0, atol=1e-4)


def test_rotation_and_shear_turn_as_pil_does():
    """The sampler's convention is PIL's own: on a smooth picture PIL's bilinear transform agrees inside the border."""
    image = (np.add.outer(np.arange(32), 2 * np.arange(32)) * 2)[None].astype(np.uint8)
    for name in GEOMETRIC:
        data = affine(name, 0.8, 32, 32)
        pil = to_pil(image).transform((32, 32), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
        ours = operated(image[None], name, np.array([0.8]))[0]
        np.testing.assert_allclose(ours[:, 11:21, 11:21], from_pil(pil)[:, 11:21, 11:21], atol=LEVEL)


@every_shape
@pytest.mark.parametrize("flip", [False, True])
def test_weak_is_a_crop_of_the_padded_picture(channels: int, side: int, flip: bool):
    x, keys = unit(pictures(100, channels, side)), torch.arange(100)
    margin = {8: 1, 28: 4, 32: 4, 64: 8}[side]
    seen = set()
    for image, u, ours in zip(x, dice.uniform(keys, 3), augment.weak(x, keys, flip), strict=True):
        mirrored = flip and u[0] < 0.5
        padded = pad((image.flip(-1) if mirrored else image)[None], (margin,) * 4, mode="reflect")[0]
        top, left = (int(v * (2 * margin + 1)) for v in u[1:])
        assert torch.equal(ours, padded[:, top : top + side, left : left + side])
        seen |= {("mirrored", bool(mirrored)), ("top", top), ("left", left)}
    assert {
        ("top", 0),
        ("top", 2 * margin),
        ("left", 0),
        ("left", 2 * margin),
        ("mirrored", flip),
    } <= seen


@every_shape
def test_of_weak_views_a_share_may_be_moved_and_the_rest_left_alone(channels: int, side: int):
    x, keys = unit(pictures(400, channels, side)), torch.arange(400)
    chosen = dice.uniform(keys, 4)[:, 3] < 0.25
    assert 0.15 < chosen.float().mean() < 0.35
    expected = torch.where(chosen[:, None, None, None], augment.weak(x, keys, True), x)
    assert torch.equal(augment.weak(x, keys, True, 0.25), expected)
    assert torch.equal(augment.weak(x, keys, True, 0.0), x)


@every_shape
@pytest.mark.parametrize("flip", [False, True])
def test_strong_is_weak_then_two_operations_then_cutout(channels: int, side: int, flip: bool):
    x, keys = unit(pictures(40, channels, side)), torch.arange(100, 140)
    u, names = dice.uniform(keys, 10), augment.pool(channels)
    expected = augment.weak(x, keys, flip)
    for column in (3, 5):
        expected = augment.operate(expected, (u[:, column] * len(names)).long(), u[:, column + 1])
    sides = (u[:, 7] * (side // 2 + 1)).long().tolist()
    for image, hole, (y, z) in zip(expected, sides, (u[:, 8:] * side).long().tolist(), strict=True):
        top, left = y - hole // 2, z - hole // 2
        image[:, max(0, top) : max(0, top + hole), max(0, left) : max(0, left + hole)] = 0.5
    assert min(sides) < 0.1 * side
    assert max(sides) > 0.4 * side
    assert torch.equal(augment.strong(x, keys, flip), expected)


@pytest.mark.parametrize("shape", [(8, 24), (24, 8)])
def test_no_hole_is_longer_than_half_the_shorter_side(shape: tuple[int, int]):
    hole = augment._cutout(torch.ones(400, 1, *shape), dice.uniform(torch.arange(400), 3))[:, 0] == 0.5
    assert [int(hole.any(axis).sum(1).max()) for axis in (1, 2)] == [4, 4]


@pytest.mark.parametrize("view", [augment.weak, partial(augment.weak, share=0.5), augment.strong])
@pytest.mark.parametrize(("channels", "side"), [(1, 8), (1, 28), (3, 32)])
def test_a_picture_depends_on_its_own_key_alone(view, channels: int, side: int):
    x, keys = unit(pictures(45, channels, side)), dice.bits(torch.tensor(3), 45)
    whole = view(x, keys, True)
    assert torch.equal(whole, view(x, keys, True))
    order = torch.randperm(45, generator=torch.Generator().manual_seed(0))
    assert torch.equal(view(x[order], keys[order], True), whole[order])
    assert torch.equal(torch.cat([view(x[a:b], keys[a:b], True) for a, b in [(0, 1), (1, 8), (8, 45)]]), whole)
    assert not torch.equal(view(x, keys + 1, True), whole)


@pytest.mark.parametrize("view", [augment.weak, partial(augment.weak, share=0.5), augment.strong])
@pytest.mark.parametrize(("channels", "side"), SHAPES)
def test_views_never_look_at_values_on_the_host(view, channels: int, side: int):
    """The meta device holds no values: whatever would wait for one, or take its shape from one, fails there."""
    x = torch.empty(5, channels, side, side, device="meta")
    assert view(x, torch.empty(5, dtype=torch.int64, device="meta"), True).shape == x.shape


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("channels", "side"), SHAPES)
def test_views_replay_in_a_cuda_graph(channels: int, side: int):
    images, others = unit(pictures(256, channels, side)), unit(pictures(256, channels, side, seed=1))
    x, keys = images.cuda(), torch.arange(256).cuda()
    augment.strong(x, keys, True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        views = augment.weak(x, keys, True), augment.strong(x, keys, True)
    x.copy_(others)
    keys += 1000
    graph.replay()
    soft, hard = (view.cpu() for view in views)
    assert torch.equal(soft, augment.weak(others, torch.arange(1000, 1256), True))
    # A level that bilinear sampling puts on the brink of two may round the other way on another device.
    far = (hard - augment.strong(others, torch.arange(1000, 1256), True)).abs() > 1e-3
    assert far.float().mean() < 1e-3


@pytest.mark.parametrize("channels", [1, 3])
def test_operations_are_drawn_equally_often(channels: int):
    u, names = dice.uniform(torch.arange(7000), 10), augment.pool(channels)
    for column in augment.OPERATIONS:
        share = torch.bincount((u[:, column] * len(names)).long()).double() / 7000
        assert len(share) == len(names)
        assert (share * len(names) - 1).abs().max() < 0.2


@settings(max_examples=40, deadline=None)
@given(
    channels=st.sampled_from([1, 3]),
    height=st.integers(8, 24),
    width=st.integers(8, 24),
    seed=st.integers(-(2**63), 2**63 - 1),
    constant=st.booleans(),
    flip=st.booleans(),
)
def test_views_keep_shape_type_and_range(channels, height, width, seed, constant, flip):
    images = pictures(30, channels, height, width, seed % 1000)
    if constant:
        images[:] = seed % 256
    x, keys = torch.from_numpy(images).double() / 255, dice.bits(torch.tensor(seed), 30)
    for view in (augment.weak, partial(augment.weak, share=0.5), augment.strong):
        out = view(x, keys, flip)
        assert out.shape == x.shape
        assert out.dtype == torch.float32
        assert out.isfinite().all()
        assert out.min() >= 0
        assert out.max() <= 1


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(augment.POOL), level=st.integers(0, 255), draw=st.floats(0, 1, exclude_max=True, width=32))
def test_a_constant_picture_stays_constant_but_for_the_fill(name, level, draw):
    out = operated(np.full((1, 3, 16, 16), level, np.uint8), name, np.array([min(draw, 1 - 2**-24)]))
    low, high = sorted((level / 255, 0.5))
    if name in GEOMETRIC:
        assert low - 1e-6 <= out.min() <= out.max() <= high + 1e-6
    else:
        assert out.min() == out.max()


@settings(max_examples=30, deadline=None)
@given(side=st.integers(8, 32), seed=st.integers(0, 10**6))
def test_weak_without_flip_only_shifts(side, seed):
    """Away from the border a crop is the picture moved by at most the padding, whatever its values."""
    place = torch.arange(side * side).view(1, 1, side, side) / side**2
    out, margin = augment.weak(place, torch.tensor([seed]), False), max(1, (side + 4) // 8)
    middle = slice(margin, side - margin)
    moved = (out - place)[..., middle, middle] * side**2
    assert torch.allclose(moved, moved.flatten()[0], atol=1e-2)


@pytest.mark.parametrize("shape", [(3, 1, 8, 8), (2, 3, 32, 32), (1, 3, 20, 30)])
def test_sheet_shows_original_weak_and_strong(shape: tuple[int, ...]):
    images = pictures(*shape)
    paper = augment.sheet(images, seed=1, flip=True)
    assert paper.mode == "RGB"
    assert paper.tobytes() == augment.sheet(torch.from_numpy(images), seed=1, flip=True).tobytes()
    assert paper.tobytes() != augment.sheet(images, seed=2, flip=True).tobytes()
    scale = augment.CELL // max(shape[2:])
    left = 6 + (augment.CELL - shape[3] * scale) // 2 + scale // 2
    top = 24 + (augment.CELL - shape[2] * scale) // 2 + scale // 2
    original = np.asarray(paper)[top::scale, left::scale][: shape[2], : shape[3]]
    assert (original == np.broadcast_to(images[0].transpose(1, 2, 0), original.shape)).all()
