"""The official data sets as plain data: what their files are called, what must be in them, and where they may lie."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from kithkin.errors import KithkinError, unknown
from kithkin.own import expanded


@dataclass(frozen=True)
class File:
    """One official file; size and sha256 are those of the unpacked content, so a .gz packed anew still passes."""

    name: str
    size: int
    sha256: str
    start: int = 0  # the pooled position of its first picture
    count: int = 0  # how many pictures it holds


@dataclass(frozen=True)
class Download:
    """One address, and the hash (as pooch writes it) of what must come from there."""

    url: str
    hash: str
    name: str


@dataclass(frozen=True)
class Source:
    """One official data set."""

    name: str
    form: Literal["idx", "cifar", "npz"]
    shape: tuple[int, int, int]  # channels, height, width
    parts: tuple[int, ...]  # pictures in train, (val,) test
    classes: tuple[str, ...]
    flip: bool
    files: tuple[File, ...]
    downloads: tuple[Download, ...] = ()
    archive: str | None = None  # an official archive that may lie in the folder unopened
    unpacked: str = "."  # the folder that opening this archive makes
    elsewhere: tuple[Path, ...] = ()  # system folders where a package puts the files

    @property
    def count(self) -> int:
        """All pictures, whatever their part."""
        return sum(self.parts)

    @property
    def remedy(self) -> str:
        """How to get the right files."""
        return (
            f"Get the official files with `kithkin data get {self.name}`, or bring your own copy of them: "
            f"`kithkin data import {self.name} PATH`."
        )


DIGITS = "digits"  # embedded: it has no files
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_MEDMNIST = "https://zenodo.org/records/10519652/files"

_FASHION_MNIST = Source(
    name="fashion-mnist",
    form="idx",
    shape=(1, 28, 28),
    parts=(60_000, 10_000),
    classes=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    flip=True,
    files=tuple(
        File(f"{name}-ubyte", 16 + 784 * count if "images" in name else 8 + count, sha256, start, count)
        for name, sha256, start, count in (
            ("train-images-idx3", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", 0, 60_000),
            ("train-labels-idx1", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9", 0, 60_000),
            ("t10k-images-idx3", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b", 60_000, 10_000),
            ("t10k-labels-idx1", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34", 60_000, 10_000),
        )
    ),
    downloads=tuple(
        Download(f"{_ZALANDO}/{name}.gz", f"md5:{md5}", f"{name}.gz")
        for name, md5 in (
            ("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            ("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe"),
            ("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79"),
            ("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310"),
        )
    ),
    elsewhere=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's package dataset-fashion-mnist
)

_CIFAR_10 = Source(
    name="cifar-10",
    form="cifar",
    shape=(3, 32, 32),
    parts=(50_000, 10_000),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    flip=True,
    files=tuple(
        File(f"{name}.bin", 30_730_000, sha256, 10_000 * i, 10_000)
        for i, (name, sha256) in enumerate(
            (
                ("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                ("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                ("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                ("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                ("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
                ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
            )
        )
    ),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
            "cifar-10-binary.tar.gz",
        ),
    ),
    archive="cifar-10-binary.tar.gz",
    unpacked="cifar-10-batches-bin",
)


def _medmnist(name: str, channels: int, parts: tuple[int, ...], size: int, sha256: str, md5: str, **more) -> Source:
    file = File(f"{name}.npz", size, sha256, 0, sum(parts))
    download = Download(f"{_MEDMNIST}/{name}.npz?download=1", f"md5:{md5}", f"{name}.npz")
    return Source(name, "npz", (channels, 28, 28), parts, files=(file,), downloads=(download,), **more)


_ORGANAMNIST = _medmnist(
    name="organamnist",
    channels=1,
    parts=(34_561, 6_491, 17_778),
    size=38_247_708,
    sha256="7c8c8b0753e2c0d7f70928817eac02be7cbb09f6beff4346e9d0ea79ecb598bd",
    md5="68e3f8846a6bd62f0c9bf841c0d9eacc",
    classes=(
        *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right"),
        *("liver", "lung-left", "lung-right", "pancreas", "spleen"),
    ),
    flip=False,  # left and right organs are different classes
)

_PATHMNIST = _medmnist(
    name="pathmnist",
    channels=3,
    parts=(89_996, 10_004, 7_180),
    size=205_615_438,
    sha256="81823f52dc622e69db2db4c72f8e8e617938dd6864d3c1f23d4e49724a28ea72",
    md5="a8b06965200029087d5bd730944a56c1",
    classes=(
        *("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa"),
        *("cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
    ),
    flip=True,
)

SOURCES = {source.name: source for source in (_FASHION_MNIST, _CIFAR_10, _ORGANAMNIST, _PATHMNIST)}
SMALL = {f"small-{name}": source for name, source in SOURCES.items()}  # some of a set's pictures, at half their size


def names() -> tuple[str, ...]:
    """Of every data set that everybody has alike."""
    return DIGITS, *SOURCES, *SMALL


def source_of(name: str) -> Source:
    """The official data set of this name, or the one that a small set is made of."""
    found = {**SOURCES, **SMALL}
    if name not in found:
        raise unknown("data set", name, names())
    return found[name]


def home(source: Source, folder: Path | None = None) -> Path:
    """The set's own folder: below `folder`, else KITHKIN_DATA, else the user's cache."""
    root = folder or os.environ.get("KITHKIN_DATA") or Path(platformdirs.user_cache_dir("kithkin")) / "data"
    return expanded(root) / source.name


def find(source: Source, folder: Path | None = None) -> tuple[dict[File, Path], list[File]]:
    """Where each file lies, unpacked first, and the files that are nowhere. The content is not looked at."""
    own = home(source, folder)
    places = dict.fromkeys((own, own / source.unpacked, *source.elsewhere))
    archive = own / source.archive if source.archive else None
    found: dict[File, Path] = {}
    for file in source.files:
        candidates = [place / name for place in places for name in (file.name, f"{file.name}.gz")]
        if archive:
            candidates.append(archive)
        path = next((path for path in candidates if path.is_file()), None)
        if path:
            found[file] = path
    return found, [file for file in source.files if file not in found]


def locate(source: Source, folder: Path | None = None) -> dict[File, Path]:
    """Where each file lies; a set that is not here, or not wholly here, is an error."""
    found, missing = find(source, folder)
    if not found:
        raise KithkinError(f"{source.name} is not in {home(source, folder)}.", source.remedy)
    if missing:
        names = ", ".join(file.name for file in missing)
        raise KithkinError(f"{source.name} is not complete in {home(source, folder)}: {names} missing.", source.remedy)
    return found
