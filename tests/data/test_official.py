"""Official files: read right, or refused by name."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import platformdirs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_sets import build, file_of, npz_bytes

import kithkin.data
from kithkin.data import Dataset, load, sources
from kithkin.data.official import SMALL, SOURCES, home, source_of
from kithkin.data.reading import read
from kithkin.errors import KithkinError

FORMS = ("idx", "cifar", "npz")


def tar_gz(contents: dict[str, bytes], below: str = "opened/") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in reversed(contents.items()):
            info = tarfile.TarInfo(below + name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def same(dataset, tiny) -> bool:
    assert dataset.images.dtype == np.uint8
    assert dataset.images.flags.c_contiguous
    assert dataset.labels.dtype == np.int64
    return np.array_equal(dataset.images, tiny.images) and np.array_equal(dataset.labels, tiny.labels)


def test_digits_are_built_in():
    digits = load("digits")
    assert digits.images.shape == (1797, 1, 8, 8)
    assert digits.images.dtype == np.uint8
    assert (digits.images.min(), digits.images.max()) == (0, 255)
    assert digits.labels.dtype == np.int64
    assert digits.classes == tuple("0123456789")
    assert not digits.flip
    assert digits.labels[:10].tolist() == list(range(10))


@pytest.mark.parametrize("form", FORMS)
def test_every_format_is_read_into_pooled_arrays(form, tiny, tmp_path):
    made = tiny(form)
    made.write(tmp_path)
    dataset = load(made.source.name, tmp_path)
    assert same(dataset, made)
    assert (dataset.name, dataset.classes, dataset.flip) == (f"tiny-{form}", ("a", "b", "c"), True)


def test_grey_npz_has_no_channel_axis(tmp_path):
    pixels = np.arange(3 * 64, dtype=np.uint8).reshape(3, 8, 8)
    arrays = {}
    for i, part in enumerate(("train", "val", "test")):
        arrays |= {f"{part}_images": pixels[i : i + 1], f"{part}_labels": np.array([[i]], np.uint8)}
    content = npz_bytes(**arrays)
    made = build("npz")
    source = replace(made.source, shape=(1, 8, 8), parts=(1, 1, 1), files=(file_of("grey.npz", content, 0, 3),))
    (tmp_path / source.name).mkdir()
    (tmp_path / source.name / "grey.npz").write_bytes(content)
    dataset = read(source, tmp_path)
    assert np.array_equal(dataset.images[:, 0], pixels)
    assert dataset.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("level", [0, 9])
def test_gz_packed_anew_still_passes(level, tiny, tmp_path):
    made = tiny("idx")
    made.contents = {f"{name}.gz": gzip.compress(content, level) for name, content in made.contents.items()}
    made.write(tmp_path)
    assert same(load("tiny-idx", tmp_path), made)


def test_official_archive_is_read_unopened_and_opened(tiny, tmp_path):
    made = tiny("cifar")
    packed, opened = tmp_path / "packed" / "tiny-cifar", tmp_path / "opened" / "tiny-cifar" / "opened"
    packed.mkdir(parents=True)
    opened.mkdir(parents=True)
    (packed / "tiny.tar.gz").write_bytes(tar_gz(made.contents))
    for name, content in made.contents.items():
        (opened / name).write_bytes(content)
    assert same(load("tiny-cifar", tmp_path / "packed"), made)
    assert same(load("tiny-cifar", tmp_path / "opened"), made)


def test_archive_without_one_batch_is_refused_by_its_name(tiny, tmp_path):
    made = tiny("cifar")
    (tmp_path / "tiny-cifar").mkdir()
    first = dict(list(made.contents.items())[:1])
    (tmp_path / "tiny-cifar" / "tiny.tar.gz").write_bytes(tar_gz(first))
    with pytest.raises(KithkinError, match=r"does not hold batch1\.bin"):
        load("tiny-cifar", tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("harm", ["truncated", "longer", "altered", "empty"])
def test_wrong_file_is_refused_with_its_name_and_a_remedy(form, harm, tiny, tmp_path):
    made = tiny(form)
    name, content = next(iter(made.contents.items()))
    middle = len(content) // 2
    made.contents[name] = {
        "truncated": content[:-1],
        "longer": content + b"\0",
        "altered": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "empty": b"",
    }[harm]
    made.write(tmp_path)
    with pytest.raises(KithkinError) as caught:
        load(made.source.name, tmp_path)
    assert name in caught.value.problem
    assert "expected" in caught.value.problem
    assert f"kithkin data get {made.source.name}" in caught.value.remedy
    assert f"kithkin data import {made.source.name} PATH" in caught.value.remedy


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(form=st.sampled_from(["gz", "tar", "npz"]), cut=st.floats(0, 1), at=st.floats(0, 1), value=st.integers(0, 255))
def test_damaged_packing_never_ends_in_another_error(form, cut, at, value, tmp_path):
    made = build({"gz": "idx", "tar": "cifar", "npz": "npz"}[form])
    home = made.write(tmp_path)
    packed, target = {
        "gz": lambda: (gzip.compress(made.contents["images0"]), home / "images0.gz"),
        "tar": lambda: (tar_gz(made.contents), home / "tiny.tar.gz"),
        "npz": lambda: (made.contents["tiny-npz.npz"], home / "tiny-npz.npz"),
    }[form]()
    if form != "npz":
        for name in made.contents if form == "tar" else ["images0"]:
            (home / name).unlink()
    harmed = bytearray(packed[: 1 + int(cut * (len(packed) - 1))])
    harmed[int(at * (len(harmed) - 1))] = value
    target.write_bytes(harmed)
    if form == "npz":  # with its own hash, so that the zip itself is what must hold
        made.source = replace(made.source, files=(file_of("tiny-npz.npz", bytes(harmed), 0, len(made.images)),))
    try:
        dataset = read(made.source, tmp_path)
    except KithkinError:
        return
    assert same(dataset, made) or form == "npz"


def test_missing_file_is_named(tiny, tmp_path):
    made = tiny("idx")
    (made.write(tmp_path) / "labels1").unlink()
    with pytest.raises(KithkinError, match="labels1 missing"):
        load("tiny-idx", tmp_path)
    with pytest.raises(KithkinError, match="is not in"):
        load("tiny-idx", tmp_path / "nowhere")


def idx_with(header: bytes) -> dict[str, bytes]:
    return {"images0": header + bytes(12 * 72)}


def npz_with(**changed: np.ndarray) -> dict[str, bytes]:
    made = build("npz")
    with np.load(io.BytesIO(made.contents["tiny-npz.npz"])) as members:
        arrays = {key: members[key] for key in members.files} | changed
    return {"tiny-npz.npz": npz_bytes(**{key: array for key, array in arrays.items() if array is not None})}


@pytest.mark.parametrize(
    ("form", "contents", "message"),
    [
        ("idx", idx_with(struct.pack(">4I", 0x803, 12, 9, 8)), "header"),
        ("idx", idx_with(struct.pack(">4I", 0x804, 12, 8, 9)), "header"),
        ("cifar", {"batch0.bin": b"\x09" * 12 * 217}, "label 9"),
        ("npz", npz_with(val_images=np.zeros((4, 8, 9), np.uint8)), "val_images"),
        ("npz", npz_with(val_images=np.zeros((4, 8, 9, 3))), "float64"),
        ("npz", npz_with(test_labels=np.array([[{}], [1], [2]], object)), "object"),
        ("npz", npz_with(test_labels=None), "test_labels"),
    ],
)
def test_wrong_structure_is_refused_even_with_the_right_hash(form, contents, message, tmp_path):
    made = build(form)
    made.contents |= contents
    files = tuple(file_of(f.name, made.contents[f.name], f.start, f.count) for f in made.source.files)
    made.write(tmp_path)
    with pytest.raises(KithkinError, match=message):
        read(replace(made.source, files=files), tmp_path)


def test_folder_comes_before_the_variable_and_that_before_the_cache(monkeypatch, tmp_path):
    source = SOURCES["pathmnist"]
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    monkeypatch.delenv("KITHKIN_DATA", raising=False)
    assert home(source) == tmp_path / "cache" / "kithkin" / "data" / "pathmnist"
    monkeypatch.setenv("KITHKIN_DATA", str(tmp_path / "variable"))
    assert home(source) == tmp_path / "variable" / "pathmnist"
    assert home(source, tmp_path / "folder") == tmp_path / "folder" / "pathmnist"


def test_system_package_is_found_without_being_told(tiny, tmp_path, monkeypatch):
    made = tiny("idx")
    system = made.write(tmp_path / "usr")
    monkeypatch.setitem(SOURCES, "tiny-idx", replace(made.source, elsewhere=(system,)))
    assert same(load("tiny-idx", tmp_path / "empty"), made)


def test_table_of_official_sets_is_consistent():
    for name, source in SOURCES.items():
        assert name == source.name
        assert len(set(source.classes)) == len(source.classes)
        assert all(len(file.sha256) == 64 for file in source.files)
        if source.form == "cifar":
            assert all(file.size == file.count * (1 + np.prod(source.shape)) for file in source.files)
        pictures = sum(file.count for file in source.files)
        assert pictures == source.count * (2 if source.form == "idx" else 1)
    assert {name: source.count for name, source in SOURCES.items()} == {
        "fashion-mnist": 70_000,
        "cifar-10": 60_000,
        "organamnist": 58_830,
        "pathmnist": 107_180,
    }
    assert {name for name, source in SOURCES.items() if source.flip} == {"fashion-mnist", "cifar-10", "pathmnist"}


def test_a_small_set_is_some_pictures_of_its_whole_at_half_their_size(monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (sources.SOME + 50, 3, 4, 6), dtype=np.uint8)
    whole = Dataset("cifar-10", images, np.arange(len(images)), ("a",), True)
    monkeypatch.setattr(sources, "read", lambda source, folder: {"cifar-10": whole}[source.name])
    small = load("small-cifar-10")
    assert (small.name, small.classes, small.flip) == ("small-cifar-10", ("a",), True)
    assert len(set(small.labels.tolist())) == sources.SOME, "no picture twice, each with its own label"
    assert small.images.shape[1:] == (3, 2, 3)
    for picture, label in zip(small.images[::99], small.labels[::99], strict=True):
        for y, x in ((0, 0), (1, 2)):
            four = images[label, :, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2]
            assert np.abs(picture[:, y, x] - four.mean((1, 2))).max() <= 0.5
    assert same(load("small-cifar-10"), small), "always the same ones"
    others = sources.small("small-cifar-10", whole, slice(sources.SOME, None))
    assert sorted([*small.labels, *others.labels]) == list(range(len(images))), "and these are those that are left over"


def test_a_small_set_is_got_and_checked_by_the_files_of_its_whole():
    assert all(source_of(name) is SOURCES[name.removeprefix("small-")] for name in SMALL)
    with pytest.raises(KithkinError, match="Unknown data set 'small-digits'"):
        source_of("small-digits")


LOAD_AND_MEASURE = """
import json, sys
from dataclasses import replace
from pathlib import Path
from kithkin.data.official import SOURCES, File
from kithkin.data import load
folder, file = json.loads(sys.argv[1])
if file:
    SOURCES["pathmnist"] = replace(SOURCES["pathmnist"], files=(File(**file),))
dataset = load("pathmnist", Path(folder))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([list(dataset.images.shape), int(peak), "torch" in sys.modules]))
"""


def measured(folder: Path, file: dict | None) -> tuple[list[int], int, bool]:
    where = str(Path(kithkin.data.__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", LOAD_AND_MEASURE, json.dumps([str(folder), file])],
        env={**os.environ, "PYTHONPATH": where},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_loading_pathmnist_stays_below_400_mb_without_torch(tmp_path):
    """A file of PathMNIST's true dimensions, with blank pictures so that it is quick to write."""
    path = tmp_path / "pathmnist" / "pathmnist.npz"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as members:
        for part, count in zip(("train", "val", "test"), SOURCES["pathmnist"].parts, strict=True):
            for kind, shape in (("images", (count, 28, 28, 3)), ("labels", (count, 1))):
                with members.open(f"{part}_{kind}.npy", "w") as member:
                    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(member, header)
                    left = int(np.prod(shape))
                    while left:
                        member.write(bytes(min(left, 1 << 20)))
                        left -= min(left, 1 << 20)
    content = path.read_bytes()
    file = {"name": path.name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "count": 107_180}
    shape, peak, torch = measured(tmp_path, file)
    assert shape == [107_180, 3, 28, 28]
    assert peak * 1024 < 400e6
    assert not torch


real = pytest.mark.skipif(not os.environ.get("KITHKIN_DATA"), reason="KITHKIN_DATA does not name a data folder")


@pytest.mark.realdata
@real
@pytest.mark.parametrize(
    ("name", "shape", "first", "smallest_and_largest_class"),
    [
        ("fashion-mnist", (70_000, 1, 28, 28), 9, (7_000, 7_000)),
        ("cifar-10", (60_000, 3, 32, 32), 6, (6_000, 6_000)),
        ("organamnist", (58_830, 1, 28, 28), 6, (2_375, 10_482)),
        ("pathmnist", (107_180, 3, 28, 28), 0, (9_504, 15_550)),
    ],
)
def test_real_files(name, shape, first, smallest_and_largest_class):
    dataset = load(name)
    counts = np.bincount(dataset.labels)
    assert dataset.images.shape == shape
    assert dataset.labels[0] == first
    assert (counts.min(), counts.max()) == smallest_and_largest_class
    assert len(counts) == len(dataset.classes)


@pytest.mark.realdata
@real
@pytest.mark.parametrize(
    ("name", "shape", "sha256"),
    [
        ("fashion-mnist", (1, 14, 14), "71e8587393d0562b"),
        ("cifar-10", (3, 16, 16), "36bb4b36eec73f25"),
        ("organamnist", (1, 14, 14), "e1e0caf4163df581"),
        ("pathmnist", (3, 14, 14), "0b0100b0df10ce79"),
    ],
)
def test_real_small_sets_are_those_that_the_committed_cells_were_run_on(name, shape, sha256):
    dataset = load(f"small-{name}")
    assert dataset.images.shape == (5000, *shape)
    assert hashlib.sha256(dataset.images.tobytes() + dataset.labels.astype("<i8").tobytes()).hexdigest().startswith(sha256)


@pytest.mark.realdata
@real
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_real_pathmnist_stays_below_400_mb():
    shape, peak, torch = measured(Path(os.environ["KITHKIN_DATA"]), None)
    assert shape == [107_180, 3, 28, 28]
    assert peak * 1024 < 400e6
    assert not torch
