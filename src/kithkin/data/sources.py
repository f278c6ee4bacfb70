"""One door to all data: `load` takes a data set's name or the path of one's own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from kithkin.config import RunConfig
from kithkin.data.dataset import Dataset
from kithkin.data.official import DIGITS, SMALL, SOURCES, names
from kithkin.data.own import clients_in, read_own
from kithkin.data.reading import read
from kithkin.errors import KithkinError, unknown
from kithkin.own import expanded

SOME = 5_000  # pictures of a small set


def is_official(data: str) -> bool:
    """Whether the data set is one that everybody has alike."""
    return data in names()


def whole_name(data: str) -> str:
    """The name of a data set as it is; the path of one's own so that it is found again from any folder."""
    own = expanded(data)
    return str(own.resolve()) if not is_official(data) and own.exists() else data


def resolved(config: RunConfig) -> RunConfig:
    """The config with every None filled in, as suits its data."""
    asked = None in (config.alpha, config.clients) and not is_official(config.data)
    return config.resolved(clients_in(expanded(config.data)) if asked else None)


def load(data: str, folder: Path | None = None) -> Dataset:
    """The data set of this name, or the one at this path; `folder` is where official files lie."""
    if data == DIGITS:
        return _digits()
    if data in SOURCES:
        return read(SOURCES[data], folder)
    if data in SMALL:
        return small(data, read(SMALL[data], folder))
    path = expanded(data)
    if path.exists():
        return read_own(path)
    if path.suffix or os.sep in str(data) or "/" in str(data):
        raise KithkinError(f"There is no file or folder {data}.", "Check the path.")
    error = unknown("data set", str(data), names())
    raise KithkinError(error.problem, f"{error.remedy} The path of your own npz file or picture folder will do too.")


def small(name: str, whole: Dataset, which: slice = slice(SOME)) -> Dataset:
    """Some of its pictures, always the same, each pixel the mean of four: a real set for machines without a GPU."""
    some = np.random.default_rng(7).permutation(len(whole.labels))[which]
    n, channels, height, width = whole.images[some].shape
    quarters = whole.images[some].reshape(n, channels, height // 2, 2, width // 2, 2)
    images = quarters.mean((3, 5)).round().astype(np.uint8)
    return Dataset(name, images, whole.labels[some], whole.classes, whole.flip)


def _digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits, which need no file: 8x8, grey, 0..16 scaled to 0..255."""
    from sklearn.datasets import load_digits  # here, because scikit-learn is slow to import and large

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    return Dataset(DIGITS, images, labels.astype(np.int64), tuple("0123456789"), flip=False)
