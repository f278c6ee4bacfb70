"""A user's own pictures: an npz file, or a folder with one sub-folder of pictures per class; either may say whose they are."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from kithkin.data.dataset import Dataset
from kithkin.data.reading import DAMAGE
from kithkin.errors import KithkinError, unknown

UNLABELLED = "unlabelled"
GREY = ("1", "L", "LA", "La")  # PIL's modes
SMALLEST, LARGEST = 8, 64
LONGEST = 4096  # a signal's samples
NEEDS_LABELS = (
    "A run hides labels itself (--label-ratio), and knows them all to tell how right it is: leave out pictures that have none. "
    "`kithkin newcomer` and the sites of a federation take them."
)
_SAVE = "Save it with numpy.savez(PATH, images=..., labels=...): uint8 pictures [N, H, W, C] and integers or names."


def read_own(path: Path) -> Dataset:
    """The data set at this path; its name is the path's own."""
    images, labels, classes, owners, clients = _read_folder(path) if path.is_dir() else _read_npz(path)
    nameless = [name for name in classes if name in ("", UNLABELLED)]
    if nameless:
        problem = f"{path} has pictures without a label ({nameless[0] or 'an empty name'})."
        raise KithkinError(problem, NEEDS_LABELS)
    if len(classes) < 2:
        raise KithkinError(f"{path} has pictures of one class only.", "Give at least two classes: one cannot be learnt.")
    name = path.resolve().name if path.is_dir() else path.stem
    return Dataset(name, np.ascontiguousarray(images), labels, classes, False, owners, clients)


def clients_in(path: Path) -> int | None:
    """How many clients the pictures belong to, where the data says so; what is wrong with it is told when it is read."""
    try:
        if path.is_dir():
            names = listing(path).clients
        else:
            names = _owners(path, _arrays(path, ("clients",))["clients"])[1] if path.is_file() else ()
    except (KithkinError, OSError):
        return None
    return len(names) or None


def read_like(path: Path, classes: tuple[str, ...], picture: tuple[int, ...]) -> Dataset:
    """Pictures [C, H, W] of classes that are known already; the label is -1 where a picture has none.

    Without a label: those in a sub-folder `unlabelled`, or with -1 or an empty name in an npz file. Integers number `classes`.
    """
    if path.is_dir():
        found = _classes_in(path)
        images = _open_all(found.files, picture)
        labels = np.array([_class(path, name, classes) for name in found.classes])[found.labels]
    else:
        arrays = _arrays(path, ("images", "labels"))
        images, given = as_pictures(path, arrays["images"]), _flat(path, arrays["labels"])
        _same_number(path, images, given)
        if given.dtype.kind in "US":
            labels = np.array([_class(path, name, classes) for name in _names(given)])
        else:
            labels = given.astype(np.int64)
            if len(labels) and not (labels.min() >= -1 and labels.max() < len(classes)):
                raise KithkinError(
                    f"{path} has labels from {labels.min()} to {labels.max()}.",
                    f"Number the classes from 0 to {len(classes) - 1}, -1 for a picture without a label, or give their names.",
                )
    fits(path, images, picture)
    return Dataset(path.stem, np.ascontiguousarray(images), labels, classes, flip=False)


def read_images(path: Path) -> np.ndarray:
    """The pictures of an npz file, with or without labels."""
    return as_pictures(path, _arrays(path, ("images",))["images"])


def fits(what: object, images: np.ndarray, picture: tuple[int, ...]) -> None:
    """Refuse pictures of another size or number of channels."""
    if images.shape[1:] != tuple(picture):
        raise KithkinError(f"{what} has {in_words(images.shape[1:])}, not {in_words(picture)}.", "Convert them first.")


def in_words(picture: tuple[int, ...]) -> str:
    """What pictures of this shape [C, H, W] are."""
    channels, height, width = picture
    if height == 1:
        return f"signals of {width} samples in {channels} channel{'s' * (channels > 1)}"
    return f"{height}x{width} {'grey' if channels == 1 else 'colour'} pictures"


def _class(where: Path, name: str, classes: tuple[str, ...]) -> int:
    if name in ("", UNLABELLED):
        return -1
    if name not in classes:
        error = unknown("class", name, classes)
        raise KithkinError(f"'{name}' in {where} is no class that is known here.", error.remedy)
    return classes.index(name)


def read_unlabelled(path: Path, picture: tuple[int, int, int]) -> np.ndarray:
    """Pictures without labels: all files of a folder, or the array `images` of an npz file."""
    if path.is_dir():
        opened = [open_picture(file, picture) for file in _files(path)]
        images = np.stack(opened) if opened else np.empty((0, *picture), np.uint8)
    elif path.is_file():
        images = read_images(path)
    else:
        raise KithkinError(f"There is no file or folder {path}.", "Check the path.")
    fits(path, images, picture)
    return images


Parts = tuple[np.ndarray, np.ndarray, tuple[str, ...], np.ndarray | None, tuple[str, ...]]  # of a Dataset, but name and flip


def _read_npz(path: Path) -> Parts:
    arrays = _arrays(path, ("images", "labels"), ("clients",))
    images = as_pictures(path, arrays["images"])
    labels, classes = _labels(path, arrays["labels"])
    _same_number(path, images, labels)
    if "clients" not in arrays:
        return images, labels, classes, None, ()
    owners, names = _owners(path, arrays["clients"])
    _same_number(path, images, owners, "client")
    return images, labels, classes, owners, names


def _same_number(path: Path, images: np.ndarray, labels: np.ndarray, what: str = "label") -> None:
    if len(images) != len(labels):
        raise KithkinError(
            f"{path} has {len(images)} images but {len(labels)} {what}s.", f"Give every picture exactly one {what}."
        )


def _owners(path: Path, clients: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """The clients, numbered from 0 in the order of their names or numbers; and these."""
    values, owners = np.unique(_flat(path, clients, "client"), return_inverse=True)
    return owners.astype(np.int64), tuple(_names(values))


def _arrays(path: Path, keys: Sequence[str], may: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """These arrays of an npz file, and those that it `may` have."""
    arrays = {}
    try:
        path.open("rb").close()  # zipfile takes what may not be read for no zip
        if not zipfile.is_zipfile(path):
            raise KithkinError(f"{path} is not an npz file.", _SAVE)
        with np.load(path, allow_pickle=False) as members:
            for key in (*keys, *(key for key in may if key in members)):
                if key not in members:
                    held = ", ".join(members.files) or "nothing"
                    raise KithkinError(f"{path} has no array '{key}' (it holds: {held}).", _SAVE)
                try:
                    arrays[key] = members[key]
                except ValueError as error:
                    if "Object arrays" not in str(error):  # NumPy's word for what it would have to unpickle: nothing ever is
                        raise
                    remedy = _SAVE if key == "images" else f"Give it as text or numbers, for example {key}.astype(str)."
                    raise KithkinError(f"{path} holds '{key}' as Python objects.", remedy) from error
                if not isinstance(arrays[key], np.ndarray):  # NumPy gives bytes where a member is none
                    raise ValueError(f"'{key}' is no array")
    except KithkinError:
        raise
    except (*DAMAGE, MemoryError) as error:
        raise KithkinError(f"{path} cannot be read ({error}).", _SAVE) from error
    return arrays


def as_pictures(path: object, images: np.ndarray) -> np.ndarray:
    """uint8 [N, C, H, W], whichever of the accepted layouts came; a signal is a picture of height 1."""
    found = f"{path} has images of shape {list(images.shape)}"
    signals = images.ndim in (3, 4) and images.shape[-2] == 1 and images.shape[-1] not in (1, 3)  # [N, 1, L] or [N, C, 1, L]
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[-1] in (1, 3):  # no picture is 1 or 3 wide, so these are channels
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or (images.shape[1] not in (1, 3) and not signals):
        remedy = "Give [N, H, W], [N, H, W, C] or [N, C, H, W] with 1 or 3 channels; signals as [N, C, 1, L]."
        raise KithkinError(f"{found}.", remedy)
    if not images.size:
        raise KithkinError(f"{found}: no picture at all.", "Give at least a few pictures of every class.")
    if signals and not SMALLEST <= images.shape[3] <= LONGEST:
        remedy = "Cut or resample the signals first."
        raise KithkinError(f"{found}: {images.shape[3]} samples is outside {SMALLEST} to {LONGEST}.", remedy)
    if not signals:
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
    labels = _flat(path, labels)
    values, positions = np.unique(labels, return_inverse=True)
    if labels.dtype.kind in "US":
        return positions.astype(np.int64), tuple(_names(values))
    if len(values) and int(values[0]) < 0:
        raise KithkinError(f"{path} has the negative label {values[0]}.", f"Number the classes 0, 1, 2, ... {NEEDS_LABELS}")
    if not np.array_equal(values, np.arange(len(values))):
        raise KithkinError(
            f"{path} has labels up to {values[-1]} but only {len(values)} different ones.",
            "Number the classes 0, 1, 2, ... without gaps, or give class names (strings) instead.",
        )
    return positions.astype(np.int64), tuple(str(v) for v in values.tolist())


def _flat(path: Path, labels: np.ndarray, what: str = "label") -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iuUS":
        raise KithkinError(
            f"{path} has {what}s of type {labels.dtype} and shape {list(labels.shape)}.",
            f"Give one integer or one {'class name' if what == 'label' else 'name'} per picture: shape [N].",
        )
    return labels


def _names(values: np.ndarray) -> list[str]:
    return [v.decode("utf-8", "backslashreplace") if isinstance(v, bytes) else str(v) for v in values.tolist()]


def _read_folder(path: Path) -> Parts:
    found = listing(path)
    return _open_all(found.files), np.array(found.labels, np.int64), found.classes, found.owners, found.clients


def _open_all(files: Sequence[Path], picture: tuple[int, ...] | None = None) -> np.ndarray:
    """Pictures of one shape: that of the first, or `picture`, for which none may lose its colours."""
    first = _open(files[0], None) if picture is None else _blank(picture)
    if picture is None and first.ndim == 2 and any(map(_coloured, files[1:])):
        first = _blank((3, *first.shape))  # one colour picture makes them all so: nothing is lost
    images = np.empty((len(files), 1 if first.ndim == 2 else 3, *first.shape[:2]), np.uint8)
    for i, file in enumerate(files):
        images[i] = _channels_first(_open(file, first, strict=picture is not None))
    return images


@dataclass(frozen=True, eq=False)
class Listing:
    """A folder's pictures in the order of its data set."""

    files: list[Path]
    labels: list[int]
    classes: tuple[str, ...]
    owners: np.ndarray | None = None
    clients: tuple[str, ...] = ()


def listing(path: Path) -> Listing:
    """What lies in a folder with one sub-folder per class, or one per client that holds those."""
    folders = _folders(path)
    for folder in folders:
        strays = (file for file in _files(folder) if file.suffix.lower() in Image.registered_extensions())
        if (inner := _folders(folder)) and (files := list(strays)):
            problem = f"{folder} has both files ({files[0].name}) and sub-folders ({inner[0].name})."
            raise KithkinError(problem, "Leave only pictures in it if it is a class, only folders of them if it is a client.")
    if not any(map(_folders, folders)):
        return _classes_in(path)
    each = [_classes_in(folder) for folder in folders]
    classes = tuple(sorted({name for one in each for name in one.classes}))
    files = [file for one in each for file in one.files]
    labels = [classes.index(one.classes[label]) for one in each for label in one.labels]
    owners = np.repeat(np.arange(len(each)), [len(one.files) for one in each])
    return Listing(files, labels, classes, owners, tuple(folder.name for folder in folders))


def _folders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _files(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))


def _classes_in(path: Path) -> Listing:
    """What lies in a folder with one sub-folder per class."""
    folders = _folders(path)
    if not folders:
        raise KithkinError(f"{path} has no sub-folders.", "Put the pictures of each class in a sub-folder named after it.")
    found = Listing([], [], tuple(folder.name for folder in folders))
    for label, folder in enumerate(folders):
        if _folders(folder):
            problem = f"{folder} holds sub-folders where the pictures of a class should be."
            raise KithkinError(problem, "Give a folder with one sub-folder of pictures per class, and no folder in these.")
        files = _files(folder)
        if not files:
            raise KithkinError(f"{folder} holds no pictures.", "Put pictures there, or remove the sub-folder.")
        found.files.extend(files)
        found.labels.extend([label] * len(files))
    return found


def open_picture(file: Path, picture: tuple[int, ...]) -> np.ndarray:
    """One picture file as uint8 [C, H, W], if it is of that size and need not lose its colours."""
    return _channels_first(_open(file, _blank(picture), strict=True))


def _blank(picture: tuple[int, ...]) -> np.ndarray:
    return np.empty(picture[1:] if picture[0] == 1 else (*picture[1:], 3), np.uint8)


def _channels_first(picture: np.ndarray) -> np.ndarray:
    return picture[None] if picture.ndim == 2 else picture.transpose(2, 0, 1)


def _coloured(file: Path) -> bool:
    try:
        with Image.open(file) as picture:
            return picture.mode not in GREY
    except Exception:  # what is wrong with it is told when it is read
        return False


def _open(file: Path, first: np.ndarray | None, strict: bool = False) -> np.ndarray:
    """One picture as an array: grey [H, W] or RGB [H, W, 3], like the first one, and of its size.

    A grey picture among colour ones is read as RGB; a colour one among grey ones is refused if `strict`.
    """
    try:
        with warnings.catch_warnings(), Image.open(file) as picture:
            warnings.simplefilter("ignore")  # a warning about a file is no news: it either reads or it does not
            width, height, mode = *picture.size, picture.mode
            _check_size(f"{file} does not fit", height, width)
            if first is not None and (height, width) != first.shape[:2]:
                others = "the others have" if strict else "the first picture"
                raise KithkinError(
                    f"{file} has {height}x{width} pixels, {others} {first.shape[0]}x{first.shape[1]}.",
                    "Resize all pictures to one size.",
                )
            if mode[0] in "IF":  # PIL would cut 16-bit values off at 255 without a word
                raise KithkinError(f"{file} has more than 8 bits per pixel (mode {mode}).", "Convert it to 8 bits.")
            grey = mode in GREY if first is None else first.ndim == 2
            if strict and grey and mode not in GREY:
                raise KithkinError(f"{file} is a colour picture (mode {mode}), not a grey one.", "Convert it first.")
            return np.asarray(picture.convert("L" if grey else "RGB"))
    except KithkinError:
        raise
    except Exception as error:  # PIL's many decoders raise nearly anything on a damaged file
        raise KithkinError(f"{file} cannot be read as a picture ({error}).", "Replace or remove it.") from error
