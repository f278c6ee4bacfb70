"""FixMatch's weak and strong augmentations (Sohn et al., 2020), batched on the device that holds the pictures.

A picture's augmentation depends on its own key alone. All shapes are static and nothing waits for the host, so both
functions may be captured in a CUDA graph.
"""

from __future__ import annotations

from math import radians

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import grid_sample

from kithkin import dice

POOL = (
    *("autocontrast", "brightness", "color", "contrast", "equalize", "identity", "posterize"),
    *("rotate", "sharpness", "shear_x", "shear_y", "solarize", "translate_x", "translate_y"),
)
GREY = 0.5  # fills what an operation uncovers or cuts out
CELL = 96  # pixels of a picture on the contact sheet: a multiple of 8 and 32, and nearly of 28

# The columns of a picture's one throw of dice: flip, crop (y, x) | operation, magnitude, twice | cutout (side, y, x).
# In weak views the fourth one says whether the picture is moved at all.
WEAK, OPERATIONS, COLUMNS = 3, (3, 5), 10


def pool(channels: int) -> tuple[str, ...]:
    """The operations to draw from: a grey picture has no colour to fade."""
    return POOL if channels == 3 else tuple(name for name in POOL if name != "color")


def weak(x: Tensor, keys: Tensor, flip: bool, share: float = 1.0) -> Tensor:
    """Mirror half of the pictures if `flip`, then crop each at random out of its reflection-padded self.

    Only about this `share` of them; the others stay as they are.
    """
    u = dice.uniform(keys, WEAK + 1)
    moved = _flip_and_crop(x.float(), u, flip)
    return moved if share == 1 else torch.where(u[:, WEAK:, None, None] < share, moved, x.float())


def strong(x: Tensor, keys: Tensor, flip: bool) -> Tensor:
    """Weak, then two random operations of random magnitude (RandAugment), then cutout."""
    u = dice.uniform(keys, COLUMNS)
    x = _flip_and_crop(x.float(), u, flip)
    for column in OPERATIONS:
        x = operate(x, _below(u[:, column], len(pool(x.shape[1]))), u[:, column + 1])
    return _cutout(x, u[:, -3:])


def operate(x: Tensor, op: Tensor, draw: Tensor) -> Tensor:
    """Do to each picture the operation at place `op` in the `pool`, its magnitude given by `draw` in [0, 1)."""
    names = pool(x.shape[1])
    chosen = (op[:, None] == torch.arange(len(names), device=x.device))[..., None, None, None]
    is_ = dict(zip(names, chosen.unbind(1), strict=True))
    draw = draw.view(-1, 1, 1, 1)
    geometric = is_["rotate"] | is_["shear_x"] | is_["shear_y"] | is_["translate_x"] | is_["translate_y"]
    toned = torch.where(is_["identity"], x, _tone(x, is_, draw))
    return torch.where(geometric, _move(x, is_, draw), toned)


def _below(u: Tensor, n: int) -> Tensor:
    """Uniform whole numbers 0..n-1 from uniform numbers in [0, 1)."""
    return (u * n).long()


def _flip_and_crop(x: Tensor, u: Tensor, flip: bool) -> Tensor:
    """One exact gather: each row and column of the crop, folded back at the borders and mirrored, names its source."""

    def source(side: int, u: Tensor) -> Tensor:
        pad = max(1, (side + 4) // 8)  # an eighth of the side, rounded
        place = torch.arange(side, device=x.device) + (_below(u, 2 * pad + 1) - pad)[:, None]
        return (side - 1) - ((side - 1) - place.abs()).abs()  # F.pad's "reflect"

    h, w = x.shape[2:]
    rows, columns = source(h, u[:, 1]), source(w, u[:, 2])
    if flip:
        columns = torch.where(u[:, :1] < 0.5, (w - 1) - columns, columns)
    pixels = (rows[:, :, None] * w + columns[:, None, :]).flatten(1)
    return x.flatten(2).gather(2, pixels[:, None].expand(-1, x.shape[1], -1)).view(x.shape)


def _move(x: Tensor, is_: dict[str, Tensor], draw: Tensor) -> Tensor:
    """Rotate about the centre, shear from the corner (as PIL does) or translate, in one bilinear sampling."""
    h, w = x.shape[2:]
    signed = 0.6 * draw - 0.3  # a uniform magnitude with a random sign; 30 degrees are 100 times as many
    shear_x, shear_y = is_["shear_x"] * signed, is_["shear_y"] * signed
    shift_x, shift_y = is_["translate_x"] * signed, is_["translate_y"] * signed
    angle = (is_["rotate"] * signed).double() * radians(100)  # double, so that any library's sine is the same float
    cos, sin = angle.cos().float(), angle.sin().float()
    across = torch.linspace(1 / w - 1, 1 - 1 / w, w, device=x.device)  # pixel centres, the picture from -1 to 1
    down = torch.linspace(1 / h - 1, 1 - 1 / h, h, device=x.device)[:, None]
    # Elementwise rather than F.affine_grid, whose matrix product may run in TF32 and differ with the batch's size.
    from_x = cos * across + ((sin + shear_x) * (h / w) * down + (shear_x * (h / w) + 2 * shift_x))
    from_y = (shear_y - sin) * (w / h) * across + (cos * down + (shear_y * (w / h) + 2 * shift_y))
    grid = torch.stack((from_x, from_y), -1).squeeze(1)
    return grid_sample(x - GREY, grid, align_corners=False).add_(GREY).clamp_(0, 1)


def _tone(x: Tensor, is_: dict[str, Tensor], draw: Tensor) -> Tensor:
    """PIL's operations on 8-bit levels: a tone curve per picture and channel, then the two blends no curve can do."""
    levels = (x * 255).round_()
    index = levels.long().flatten(2)
    grey = _luma(levels)
    toned = _curve(levels, index, grey, is_, draw).gather(2, index).view(x.shape)
    fade = 0.95 - 0.9 * draw  # how far towards the degenerate image: 1 - PIL's enhancement factor
    inner = levels[..., 1:-1, 1:-1]  # PIL's SMOOTH leaves the border as it is
    rows = levels[..., :-2, :] + levels[..., 1:-1, :] + levels[..., 2:, :]
    smooth = ((rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]).add_(4 * inner) / 13).round_()
    toned[..., 1:-1, 1:-1] += smooth.sub_(inner).mul_(is_["sharpness"] * fade)
    if "color" in is_:
        toned += (grey - toned).mul_(is_["color"] * fade)
    return toned.div_(255)


def _luma(levels: Tensor) -> Tensor:
    """PIL's conversion to grey; its 16-bit fixed point is exact in float32."""
    if levels.shape[1] == 1:
        return levels
    r, g, b = levels.split(1, 1)
    return ((19595 * r + 38470 * g + 7471 * b + 32768) / 65536).floor()


def _curve(levels: Tensor, index: Tensor, grey: Tensor, is_: dict[str, Tensor], draw: Tensor) -> Tensor:
    """What becomes of each of the 256 levels, by picture and channel [B, C, 256]: less work than pixel by pixel."""
    pixels = index.shape[2]
    ramp = torch.arange(256, device=levels.device)
    shift = 4 - _below(draw, 5)  # posterize keeps 4 to 8 bits
    curve = torch.where(is_["posterize"], ramp >> shift << shift, ramp)
    curve = torch.where(is_["solarize"] & (ramp >= 256 * draw), 255 - ramp, curve).float()

    mean = (2 * grey.sum((1, 2, 3), keepdim=True).long() + pixels) // (2 * pixels)  # rounded, in exact integers
    mean = mean * is_["contrast"]  # brightness fades to black
    curve = torch.where(is_["brightness"] | is_["contrast"], mean + (0.05 + 0.9 * draw) * (ramp - mean), curve)

    low, high = levels.amin((2, 3), keepdim=True), levels.amax((2, 3), keepdim=True)
    stretched = ((ramp - low) * (255 / (high - low).clamp(min=1))).clamp(0, 255)
    curve = torch.where(is_["autocontrast"] & (high > low), stretched, curve)
    if pixels < 256:  # too few to equalize: PIL's step below is 0 whatever the picture
        return curve.squeeze(2)

    count = index.new_zeros(*index.shape[:2], 256).scatter_add_(2, index, index.new_ones(()).expand_as(index))
    last = count.gather(2, high.long().squeeze(2))
    step = (pixels - last) // 255
    equal = ((step // 2 + count.cumsum(2) - count) // step.clamp(min=1)).clamp(max=255)
    return torch.where(is_["equalize"].squeeze(3) & (step > 0), equal, curve.squeeze(2))


def _cutout(x: Tensor, u: Tensor) -> Tensor:
    """Grey out a square of a side from 0 to half the picture's, centred anywhere in it (so the border may clip it)."""
    h, w = x.shape[2:]
    side = _below(u[:, :1], min(h, w) // 2 + 1)

    def covered(length: int, u: Tensor) -> Tensor:
        place = torch.arange(length, device=x.device) - (_below(u, length) - side // 2)
        return (place >= 0) & (place < side)

    hole = covered(h, u[:, 1:2])[:, None, :, None] & covered(w, u[:, 2:3])[:, None, None, :]
    return torch.where(hole, GREY, x)


def sheet(images: np.ndarray | Tensor, seed: int = 0, flip: bool = False) -> Image.Image:
    """A contact sheet of uint8 pictures [n, C, H, W]: a row each, original, then weak and strong views."""
    x = torch.as_tensor(images).float() / 255
    n, _, h, w = x.shape
    keys = dice.bits(torch.tensor(seed), 9 * n).view(9, n)
    shown = [("original", x)]
    shown += [(f"weak {i + 1}", weak(x, key, flip)) for i, key in enumerate(keys[:3])]
    shown += [(f"strong {i + 1}", strong(x, key, flip)) for i, key in enumerate(keys[3:])]
    scale, cell, gap, head = max(1, CELL // max(h, w)), max(CELL, h, w), 6, 24
    size = (w * scale, h * scale)
    paper = Image.new("RGB", (gap + len(shown) * (cell + gap), head + n * (cell + gap)), "white")
    draw, font = ImageDraw.Draw(paper), ImageFont.load_default(14)
    for column, (heading, view) in enumerate(shown):
        left = gap + column * (cell + gap)
        draw.text((left + cell / 2, head / 2), heading, fill="black", font=font, anchor="mm")
        pixels = (view * 255).round().byte().expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
        for row, picture in enumerate(pixels):
            corner = (left + (cell - size[0]) // 2, head + row * (cell + gap) + (cell - size[1]) // 2)
            paper.paste(Image.fromarray(picture).resize(size, Image.Resampling.NEAREST), corner)
    return paper
