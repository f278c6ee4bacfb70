"""A user's own pictures: what is accepted, and how each mistake is told."""

from __future__ import annotations

import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from kithkin.data import load
from kithkin.data.own import clients_in, listing, read_like
from kithkin.errors import KithkinError

GREY = np.arange(6 * 8 * 10, dtype=np.uint8).reshape(6, 8, 10)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def saved(path, **arrays):
    np.savez(path / "mine.npz", **arrays)
    return str(path / "mine.npz")


def test_grey_pictures_without_a_channel_axis(tmp_path):
    dataset = load(saved(tmp_path, images=GREY, labels=LABELS))
    assert dataset.images.shape == (6, 1, 8, 10)
    assert np.array_equal(dataset.images[:, 0], GREY)
    assert dataset.labels.dtype == np.int64
    assert dataset.labels.tolist() == LABELS.tolist()
    assert (dataset.name, dataset.classes, dataset.flip) == ("mine", ("0", "1", "2"), False)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("last", [True, False])
def test_channels_first_and_last_are_told_apart(channels, last, tmp_path):
    wanted = np.random.default_rng(0).integers(0, 256, (6, channels, 8, 10), dtype=np.uint8)
    dataset = load(saved(tmp_path, images=wanted.transpose(0, 2, 3, 1) if last else wanted, labels=LABELS[:, None]))
    assert np.array_equal(dataset.images, wanted)
    assert dataset.images.flags.c_contiguous


@pytest.mark.parametrize("side", [8, 64])
def test_the_smallest_and_the_largest_pictures_are_taken(side, tmp_path):
    assert load(saved(tmp_path, images=np.zeros((6, side, side), np.uint8), labels=LABELS)).images.shape == (6, 1, side, side)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_from_0_to_1_become_bytes(kind, tmp_path):
    images = np.zeros((2, 8, 8), kind)
    images[1, 0, :3] = [1, 0.5, 0.25]
    dataset = load(saved(tmp_path, images=images, labels=[0, 1]))
    assert dataset.images.dtype == np.uint8
    assert dataset.images[1, 0, 0, :4].tolist() == [255, 128, 64, 0]


@pytest.mark.parametrize("kind", ["U", "S"])
def test_names_as_labels_become_sorted_classes(kind, tmp_path):
    names = np.array(["dog", "cat", "owl", "cat", "dog", "cat"]).astype(kind)
    dataset = load(saved(tmp_path, images=GREY, labels=names))
    assert dataset.classes == ("cat", "dog", "owl")
    assert dataset.labels.tolist() == [1, 0, 2, 0, 1, 0]


def test_names_that_are_no_text_stay_apart(tmp_path):
    labels, clients = np.array([b"\xff", b"\xfe"] * 3), np.array([b"n\xf6", b"n\xe4"] * 3)
    dataset = load(saved(tmp_path, images=GREY, labels=labels, clients=clients))
    assert (dataset.classes, dataset.clients) == ((r"\xfe", r"\xff"), (r"n\xe4", r"n\xf6"))


@pytest.mark.parametrize("shape", [(6, 12, 1, 100), (6, 1, 1, 8), (6, 3, 1, 4096)])
def test_signals_are_pictures_of_height_one_with_any_number_of_channels(shape, tmp_path):
    signals = (np.arange(np.prod(shape)) % 256).astype(np.uint8).reshape(shape)
    assert np.array_equal(load(saved(tmp_path, images=signals, labels=LABELS)).images, signals)


def test_signals_of_one_channel_need_not_say_so(tmp_path):
    signals = np.linspace(0, 1, 6 * 32).reshape(6, 1, 32)
    images = load(saved(tmp_path, images=signals, labels=LABELS)).images
    assert np.array_equal(images[:, :, 0], np.rint(signals * 255))


def with_nan():
    images = np.zeros((6, 8, 8))
    images[3, 2, 1] = np.nan
    return images


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": GREY}, "no array 'labels'"),
        ({"labels": LABELS}, "no array 'images'"),
        ({"images": GREY[:5], "labels": LABELS}, "5 images but 6 labels"),
        ({"images": with_nan(), "labels": LABELS}, "NaN"),
        ({"images": np.full((6, 8, 8), np.inf), "labels": LABELS}, "values from inf to inf"),
        ({"images": GREY.astype(float), "labels": LABELS}, r"values from 0 to 255"),
        ({"images": np.full((6, 8, 8), 1.001), "labels": LABELS}, r"values from 1\.001 to 1\.001"),
        ({"images": np.full((6, 8, 8), -0.001), "labels": LABELS}, r"values from -0\.001 to -0\.001"),
        ({"images": GREY.astype(np.int64), "labels": LABELS}, "type int64"),
        ({"images": GREY[:, :7], "labels": LABELS}, "7x10 pixels is outside 8x8 to 64x64"),
        ({"images": np.zeros((6, 65, 10), np.uint8), "labels": LABELS}, "65x10"),
        ({"images": np.zeros((6, 8, 8, 2), np.uint8), "labels": LABELS}, r"\[6, 8, 8, 2\]"),
        ({"images": np.zeros((6, 64), np.uint8), "labels": LABELS}, r"\[6, 64\]"),
        ({"images": np.zeros((6, 2, 1, 7), np.uint8), "labels": LABELS}, "7 samples is outside 8 to 4096"),
        ({"images": np.zeros((6, 1, 4097), np.uint8), "labels": LABELS}, "4097 samples is outside 8 to 4096"),
        ({"images": np.zeros((6, 2, 2, 64), np.uint8), "labels": LABELS}, r"\[6, 2, 2, 64\]"),
        ({"images": np.zeros((6, 8, 1, 3), np.uint8), "labels": LABELS}, "8x1 pixels"),
        ({"images": GREY[:0], "labels": LABELS[:0]}, "no picture"),
        ({"images": GREY, "labels": LABELS - 1}, "negative label -1"),
        ({"images": GREY, "labels": LABELS * 5}, "up to 10 but only 3"),
        ({"images": GREY, "labels": LABELS * 0}, "one class only"),
        ({"images": GREY, "labels": np.array(["a"] * 6)}, "one class only"),
        ({"images": GREY, "labels": LABELS * 1.0}, "type float64"),
        ({"images": GREY, "labels": np.stack([LABELS, LABELS], 1)}, r"shape \[6, 2\]"),
        ({"images": np.zeros((6, 0, 1, 20)), "labels": LABELS}, "no picture at all"),
        ({"images": GREY, "labels": LABELS.astype(object)}, r"'labels' as Python objects.* labels\.astype\(str\)"),
        ({"images": np.array([None] * 6), "labels": LABELS}, "'images' as Python objects.* uint8 pictures"),
        ({"images": GREY, "labels": LABELS, "clients": LABELS[:5]}, "6 images but 5 clients"),
        ({"images": GREY, "labels": LABELS, "clients": LABELS * 0.5}, "clients of type float64"),
        ({"images": GREY, "labels": LABELS, "clients": np.array([None] * 6)}, r"'clients' as .* clients\.astype\(str\)"),
    ],
)
def test_mistakes_in_an_npz_are_told(arrays, message, tmp_path):
    with pytest.raises(KithkinError, match=message) as caught:
        load(saved(tmp_path, **arrays))
    assert "mine.npz" in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize("clients", [["south", "north"] * 3, [7, -2] * 3, [[7], [-2]] * 3])
def test_an_npz_may_say_whose_its_pictures_are(clients, tmp_path):
    path = saved(tmp_path, images=GREY, labels=LABELS, clients=np.array(clients))
    dataset = load(path)
    assert dataset.owners is not None
    assert dataset.owners.dtype == np.int64
    assert dataset.owners.tolist() == [1, 0, 1, 0, 1, 0], "numbered in the order of names"
    assert dataset.clients == (("north", "south") if clients[0] == "south" else ("-2", "7"))
    assert clients_in(Path(path)) == 2


def test_a_folder_may_have_one_sub_folder_per_client(tmp_path):
    for place, pictures in {"south/owl": 2, "south/cat": 3, "north/owl": 3}.items():
        (tmp_path / place).mkdir(parents=True)
        for i in range(pictures):
            Image.fromarray(GREY[i]).save(tmp_path / place / f"{i}.png")
    dataset = load(str(tmp_path))
    assert (dataset.classes, dataset.labels.tolist()) == (("cat", "owl"), [1, 1, 1, 0, 0, 0, 1, 1])
    assert dataset.owners is not None
    assert dataset.owners.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert dataset.clients == ("north", "south")
    assert clients_in(tmp_path) == 2
    assert [str(file.relative_to(tmp_path)) for file in listing(tmp_path).files[2:4]] == ["north/owl/2.png", "south/cat/0.png"]
    (tmp_path / "north" / ".DS_Store").touch()
    (tmp_path / "north" / "Thumbs.db").touch()
    assert clients_in(tmp_path) == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(KithkinError, match="empty has no sub-folders"):
        load(str(tmp_path))
    assert clients_in(tmp_path) is None, "what is wrong is told by whoever reads it"
    (tmp_path / "empty").rmdir()
    with pytest.raises(KithkinError, match="north holds sub-folders where the pictures of a class should be"):
        read_like(tmp_path, ("cat", "owl"), (1, 8, 10))


def test_a_folder_that_may_be_of_classes_or_of_clients_is_refused(tmp_path):
    picture_folder(tmp_path)
    for name in ("cat", "dog"):
        (tmp_path / name / "more").mkdir()
    with pytest.raises(KithkinError, match=r"cat has both files \(0\.png\) and sub-folders \(more\)") as caught:
        load(str(tmp_path))
    assert "if it is a class" in caught.value.remedy


@pytest.mark.parametrize(
    ("classes", "problem"),
    [(".", r"dog has both files \(0\.png\) and sub-folders \(old\)"), ("north", "dog holds sub-folders where the pictures")],
)
def test_no_picture_in_a_folder_below_a_class_is_lost_unseen(classes, problem, tmp_path):
    home = tmp_path / classes
    home.mkdir(exist_ok=True)
    picture_folder(home)
    (home / "dog" / ".old").mkdir()
    assert len(load(str(tmp_path)).images) == 4
    (home / "dog" / "old").mkdir()
    with pytest.raises(KithkinError, match=problem):
        load(str(tmp_path))
    assert clients_in(tmp_path) is None
    with pytest.raises(KithkinError, match="dog holds sub-folders where the pictures"):
        read_like(home, ("cat", "dog"), (3, 8, 10))


def test_no_file_beside_a_clients_classes_is_lost_unseen(tmp_path):
    for client in ("north", "south"):
        (tmp_path / client).mkdir()
        picture_folder(tmp_path / client)
    (tmp_path / "notes.txt").touch()
    assert load(str(tmp_path)).clients == ("north", "south")
    Image.new("RGB", (10, 8)).save(tmp_path / "south" / "stray.png")
    with pytest.raises(KithkinError, match=r"south has both files \(stray\.png\) and sub-folders \(cat\)") as caught:
        load(str(tmp_path))
    assert "if it is a client" in caught.value.remedy


@pytest.mark.parametrize("name", ["none.npz", "torn.npz", "plain.npz", "empty.npz"])
def test_data_that_says_nothing_of_clients_has_none(name, tmp_path):
    (tmp_path / "torn.npz").write_bytes(b"PK")
    np.savez(tmp_path / "plain.npz", images=GREY, labels=LABELS)
    np.savez(tmp_path / "empty.npz", images=GREY[:0], labels=LABELS[:0], clients=LABELS[:0])
    assert clients_in(tmp_path / name) is None


class Bomb:
    """Unpickling this would raise AssertionError."""

    def __reduce__(self):
        return exec, ("raise AssertionError('unpickled')",)


def test_nothing_is_ever_unpickled(tmp_path):
    with pytest.raises(KithkinError):
        load(saved(tmp_path, images=GREY, labels=np.array([Bomb()] * 6)))
    np.save(tmp_path / "bomb.npy", np.array([Bomb()]), allow_pickle=True)
    with pytest.raises(KithkinError, match="not an npz"):
        load(str(tmp_path / "bomb.npy"))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1), at=st.floats(0, 1), value=st.integers(0, 255))
def test_damaged_npz_never_ends_in_another_error(cut, at, value, tmp_path):
    path = tmp_path / "damaged.npz"
    np.savez_compressed(path, images=GREY, labels=LABELS)
    content = bytearray(path.read_bytes())
    content = content[: 1 + int(cut * (len(content) - 1))]
    content[int(at * (len(content) - 1))] = value
    path.write_bytes(content)
    with suppress(KithkinError):
        load(str(path))


def test_unknown_name_and_missing_path_are_different_mistakes(tmp_path):
    with pytest.raises(KithkinError, match="Did you mean 'digits'") as caught:
        load("digit")
    assert "path" in caught.value.remedy
    for path in (tmp_path / "none.npz", tmp_path / "none"):
        with pytest.raises(KithkinError, match="no file or folder"):
            load(str(path))


def picture_folder(path, mode="RGB", size=(10, 8)):
    for label, name in enumerate(("cat", "dog")):
        (path / name).mkdir()
        for i in range(2):
            Image.new(mode, size, color=None if mode == "1" else (40 * label + 10 * i)).save(path / name / f"{i}.png")
    return path


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("LA", 1), ("RGB", 3), ("RGBA", 3), ("P", 3)])
def test_folder_of_pictures(mode, channels, tmp_path, monkeypatch):
    picture_folder(tmp_path, mode)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"junk")
    (tmp_path / "notes.txt").write_text("beside the classes, so no picture")
    dataset = load(str(tmp_path))
    assert dataset.images.shape == (4, channels, 8, 10)
    assert dataset.labels.tolist() == [0, 0, 1, 1]
    assert dataset.classes == ("cat", "dog")
    assert dataset.name == tmp_path.name
    assert not dataset.flip
    monkeypatch.chdir(tmp_path)
    assert load(".").name == tmp_path.name


def test_pixels_keep_their_places_and_first_picture_sets_the_mode(tmp_path):
    picture_folder(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "cat" / "0.png")
    Image.new("L", (10, 8), color=77).save(tmp_path / "dog" / "1.png")
    images = load(str(tmp_path)).images
    assert np.array_equal(images[0], pixels.transpose(2, 0, 1))
    assert (images[3] == 77).all()


def test_mistakes_in_a_folder_are_told(tmp_path):
    with pytest.raises(KithkinError, match="no sub-folders"):
        load(str(tmp_path))
    picture_folder(tmp_path)
    (tmp_path / "owl").mkdir()
    with pytest.raises(KithkinError, match="owl holds no pictures"):
        load(str(tmp_path))
    bad = tmp_path / "owl" / "bad.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 10, 3), dtype=np.uint8)).save(bad)
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(KithkinError, match=r"bad\.png cannot be read"):
        load(str(tmp_path))
    bad.write_bytes(b"not a picture")
    with pytest.raises(KithkinError, match=r"bad\.png cannot be read"):
        load(str(tmp_path))
    Image.new("RGB", (9, 8)).save(bad)
    with pytest.raises(KithkinError, match=r"bad\.png has 8x9 pixels, the first picture 8x10"):
        load(str(tmp_path))
    Image.new("RGB", (100, 8)).save(bad)
    with pytest.raises(KithkinError, match="8x100 pixels is outside"):
        load(str(tmp_path))
    Image.new("I;16", (10, 8)).save(bad)
    with pytest.raises(KithkinError, match="more than 8 bits"):
        load(str(tmp_path))
    bad.unlink()
    Image.new("F", (10, 8)).save(tmp_path / "owl" / "bad.tif")
    with pytest.raises(KithkinError, match=r"more than 8 bits per pixel \(mode F\)"):
        load(str(tmp_path))


def test_one_class_is_not_enough(tmp_path):
    (tmp_path / "cat").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "cat" / "a.png")
    with pytest.raises(KithkinError, match="one class only"):
        load(str(tmp_path))


CLASSES = ("cat", "dog", "owl")


def test_known_classes_may_be_few_numbered_named_or_missing(tmp_path):
    for labels in (np.array([2, -1, 0, 0, -1, 2]), np.array(["owl", "", "cat", "cat", "unlabelled", "owl"])):
        dataset = read_like(Path(saved(tmp_path, images=GREY, labels=labels)), CLASSES, (1, 8, 10))
        assert dataset.labels.tolist() == [2, -1, 0, 0, -1, 2]
        assert dataset.classes == CLASSES
        assert np.array_equal(dataset.images[:, 0], GREY)


def test_a_folder_of_known_classes_may_have_unlabelled_pictures(tmp_path):
    for i, name in enumerate(("owl", "unlabelled", "cat")):
        (tmp_path / name).mkdir()
        Image.fromarray(GREY[i]).save(tmp_path / name / "a.png")
    dataset = read_like(tmp_path, CLASSES, (1, 8, 10))
    assert dataset.labels.tolist() == [0, 2, -1]
    assert np.array_equal(dataset.images[:, 0], GREY[[2, 0, 1]])
    (tmp_path / "own").mkdir()
    Image.fromarray(GREY[0]).save(tmp_path / "own" / "a.png")
    with pytest.raises(KithkinError, match=r"'own' in .* is no class .* Did you mean 'owl'"):
        read_like(tmp_path, CLASSES, (1, 8, 10))
    Image.fromarray(np.stack([GREY[0]] * 3, -1)).save(tmp_path / "own" / "a.png")
    (tmp_path / "own").rename(tmp_path / "dog")
    with pytest.raises(KithkinError, match=r"a\.png is a colour picture"):
        read_like(tmp_path, CLASSES, (1, 8, 10))
    mixed = read_like(tmp_path, CLASSES, (3, 8, 10)).images
    assert np.array_equal(mixed, np.stack([GREY[[2, 0, 0, 1]]] * 3, 1)), "a grey picture loses nothing among colours"


@pytest.mark.parametrize(
    ("labels", "picture", "message"),
    [
        (np.array([0, 1, 2, 0, 1, 3]), (1, 8, 10), "labels from 0 to 3"),
        (np.array([0, 1, -2, 0, 1, 2]), (1, 8, 10), "labels from -2 to 2"),
        (np.array(["cat"] * 5 + ["cow"]), (1, 8, 10), r"'cow' in .*mine\.npz is no class"),
        (LABELS[:5], (1, 8, 10), "6 images but 5 labels"),
        (LABELS, (3, 8, 10), "8x10 grey pictures, not 8x10 colour pictures"),
        (LABELS, (1, 8, 8), "not 8x8 grey"),
    ],
)
def test_what_does_not_fit_known_classes_or_pictures_is_told(labels, picture, message, tmp_path):
    with pytest.raises(KithkinError, match=message):
        read_like(Path(saved(tmp_path, images=GREY, labels=labels)), CLASSES, picture)


def test_signals_that_do_not_fit_are_told_by_their_channels_and_samples(tmp_path):
    signals = np.zeros((6, 2, 1, 32), np.uint8)
    told = "signals of 32 samples in 2 channels, not signals of 32 samples in 6 channels"
    with pytest.raises(KithkinError, match=told):
        read_like(Path(saved(tmp_path, images=signals, labels=LABELS)), CLASSES, (6, 1, 32))


def test_a_member_that_is_no_array_is_told(tmp_path):
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as file:
        file.writestr("images.npy", "junk")
        file.writestr("labels.npy", "junk")
    with pytest.raises(KithkinError, match="'images' is no array"):
        load(str(tmp_path / "mine.npz"))


@pytest.mark.parametrize("coloured", [0, 3])
def test_one_picture_with_colours_makes_a_folder_coloured(coloured, tmp_path):
    for i, name in enumerate(["cat", "cat", "owl", "owl"]):
        (tmp_path / name).mkdir(exist_ok=True)
        picture = np.stack([GREY[i]] * 3, 2)
        picture[0, 0] = (255, 0, 0)
        Image.fromarray(picture if i == coloured else GREY[i]).save(tmp_path / name / f"{i}.png")
    images = load(str(tmp_path)).images
    assert images.shape == (4, 3, *GREY.shape[1:])
    assert images[coloured, :, 0, 0].tolist() == [255, 0, 0]
    assert np.array_equal(images[1], np.stack([GREY[1]] * 3))


@pytest.mark.parametrize("nameless", ["unlabelled", "", -1])
def test_pictures_without_a_label_are_no_class(nameless, tmp_path):
    labels = np.array([nameless, 0, 1, 0, 1, 0]) if nameless == -1 else np.array([nameless, "a", "b", "a", "b", "a"])
    with pytest.raises(KithkinError, match=r"without a label|negative label") as caught:
        load(saved(tmp_path, images=GREY, labels=labels))
    assert "A run hides labels itself" in caught.value.remedy
