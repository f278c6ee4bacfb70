"""A user's own pictures: an npz file, or a folder with one sub-folder of pictures per class."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from kithkin.data.dataset import Dataset
from kithkin.data.reading import DAMAGE
from kithkin.errors import KithkinError

SMALLEST, LARGEST = 8, 64
_SAVE = "Save it with numpy.savez(PATH, images=..., labels=...): uint8 pictures [N, H, W, C] and integers or names."


def read_own(path: Path) -> Dataset:
    """The data set at this path; its name is the path's own."""
    images, labels, classes = _read_folder(path) if path.is_dir() else _read_npz(path)
    if len(classes) < 2:
        raise KithkinError(f"{path} has pictures of one class only.", "Give at least two classes: one cannot be learnt.")
    name = path.resolve().name if path.is_dir() else path.stem
    return Dataset(name, np.ascontiguousarray(images), labels, classes, flip=False)


def read_pictures(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """Pictures without labels: all files of a folder, or the array `images` of an npz file."""
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        like = np.empty(shape[1:] if shape[0] == 1 else (*shape[1:], 3), np.uint8)
        pictures = [_open(file, like) for file in files]
        images = np.stack([p[None] if shape[0] == 1 else p.transpose(2, 0, 1) for p in pictures or [like]])[: len(files)]
    elif path.is_file():
        images = _pictures(path, _arrays(path, ("images",))["images"])
    else:
        raise KithkinError(f"There is no file or folder {path}.", "Check the path.")
    if images.shape[1:] != shape:
        raise KithkinError(f"The pictures of {path} have shape {list(images.shape[1:])}, not {list(shape)}.", "Convert them.")
    return images


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    arrays = _arrays(path, ("images", "labels"))
    images = _pictures(path, arrays["images"])
    labels, classes = _labels(path, arrays["labels"])
    if len(images) != len(labels):
        raise KithkinError(
            f"{path} has {len(images)} images but {len(labels)} labels.", "Give every picture exactly one label."
        )
    return images, labels, classes


def _arrays(path: Path, keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    try:
        if not zipfile.is_zipfile(path):
            raise KithkinError(f"{path} is not an npz file.", _SAVE)
        with np.load(path, allow_pickle=False) as members:
            for key in keys:
                if key not in members:
                    held = ", ".join(members.files) or "nothing"
                    raise KithkinError(f"{path} has no array '{key}' (it holds: {held}).", _SAVE)
            return {key: members[key] for key in keys}
    except KithkinError:
        raise
    except (*DAMAGE, MemoryError) as error:  # object arrays end here too: nothing is ever unpickled
        raise KithkinError(f"{path} cannot be read ({error}).", _SAVE) from error


def _pictures(path: Path, images: np.ndarray) -> np.ndarray:
    """uint8 [N, C, H, W], whichever of the three accepted layouts came."""
    found = f"{path} has images of shape {list(images.shape)}"
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[-1] in (1, 3):  # no picture is 1 or 3 wide, so these are channels
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise KithkinError(f"{found}.", "Give [N, H, W], [N, H, W, C] or [N, C, H, W] with 1 or 3 channels.")
    if not len(images):
        raise KithkinError(f"{found}: no picture at all.", "Give at least a few pictures of every class.")
    _check_size(found, images.shape[2], images.shape[3])
    if images.dtype.kind == "f":
        if not (images.min() >= 0 and images.max() <= 1):  # false for NaN as well
            what = "NaN" if np.isnan(images).any() else f"values from {images.min():g} to {images.max():g}"
            raise KithkinError(f"{path} has {what} in images.", "Scale float pictures to [0, 1], or give uint8.")
        return np.rint(images * 255).astype(np.uint8)
    if images.dtype != np.uint8:
        raise KithkinError(f"{path} has images of type {images.dtype}.", "Give uint8, or floats in [0, 1].")
    return images


def _check_size(found: str, height: int, width: int) -> None:
    if not (SMALLEST <= height <= LARGEST and SMALLEST <= width <= LARGEST):
        raise KithkinError(
            f"{found}: {height}x{width} pixels is outside {SMALLEST}x{SMALLEST} to {LARGEST}x{LARGEST}.",
            "Resize the pictures first.",
        )


def _labels(path: Path, labels: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iuUS":
        raise KithkinError(
            f"{path} has labels of type {labels.dtype} and shape {list(labels.shape)}.",
            "Give one integer or one class name per picture: shape [N].",
        )
    values, positions = np.unique(labels, return_inverse=True)
    if labels.dtype.kind in "US":
        names = (v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values.tolist())
        return positions.astype(np.int64), tuple(names)
    if len(values) and int(values[0]) < 0:
        raise KithkinError(f"{path} has the negative label {values[0]}.", "Number the classes 0, 1, 2, ...")
    if not np.array_equal(values, np.arange(len(values))):
        raise KithkinError(
            f"{path} has labels up to {values[-1]} but only {len(values)} different ones.",
            "Number the classes 0, 1, 2, ... without gaps, or give class names (strings) instead.",
        )
    return positions.astype(np.int64), tuple(str(v) for v in values.tolist())


def _read_folder(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not folders:
        raise KithkinError(f"{path} has no sub-folders.", "Put the pictures of each class in a sub-folder named after it.")
    pictures: list[tuple[Path, int]] = []
    for label, folder in enumerate(folders):
        files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
        if not files:
            raise KithkinError(f"{folder} holds no pictures.", "Put pictures there, or remove the sub-folder.")
        pictures += [(file, label) for file in files]
    first = _open(pictures[0][0], None)
    images = np.empty((len(pictures), 1 if first.ndim == 2 else 3, *first.shape[:2]), np.uint8)
    for i, (file, _) in enumerate(pictures):
        picture = _open(file, first)
        images[i] = picture if first.ndim == 2 else picture.transpose(2, 0, 1)
    return images, np.array([label for _, label in pictures], np.int64), tuple(folder.name for folder in folders)


def _open(file: Path, first: np.ndarray | None) -> np.ndarray:
    """One picture as an array: grey [H, W] or RGB [H, W, 3], like the first one, and of its size."""
    try:
        with warnings.catch_warnings(), Image.open(file) as picture:
            warnings.simplefilter("ignore")  # a warning about a file is no news: it either reads or it does not
            width, height, mode = *picture.size, picture.mode
            _check_size(f"{file} does not fit", height, width)
            if first is not None and (height, width) != first.shape[:2]:
                raise KithkinError(
                    f"{file} has {height}x{width} pixels, the first picture {first.shape[0]}x{first.shape[1]}.",
                    "Resize all pictures to one size.",
                )
            if mode[0] in "IF":  # PIL would cut 16-bit values off at 255 without a word
                raise KithkinError(f"{file} has more than 8 bits per pixel (mode {mode}).", "Convert it to 8 bits.")
            grey = first.ndim == 2 if first is not None else mode in ("1", "L", "LA", "La")
            return np.asarray(picture.convert("L" if grey else "RGB"))
    except KithkinError:
        raise
    except Exception as error:  # PIL's many decoders raise nearly anything on a damaged file
        raise KithkinError(f"{file} cannot be read as a picture ({error}).", "Replace or remove it.") from error
