"""The commands of `kithkin data`, with tiny sets, a server on this machine, and archives that mean harm."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image
from tiny_sets import Tiny

from kithkin.data import commands, load
from kithkin.data.official import SOURCES, Download
from kithkin.errors import KithkinError


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def tar_of(contents: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(contents: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def packed(contents: dict[str, bytes]) -> dict[str, bytes]:
    return {f"deep/{name}.gz": gzip.compress(content) for name, content in contents.items()}


PACKINGS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "a.zip": zip_of,
    "a.tar": tar_of,
    "a.tar.gz": lambda contents: tar_of(contents, "w:gz"),
    "a.tar.xz": lambda contents: tar_of(contents, "w:xz"),
    "no-suffix": lambda contents: tar_of(contents, "w:gz"),
    "gz-in.zip": lambda contents: zip_of(packed(contents)),
    "gz-in.tar": lambda contents: tar_of(packed(contents)),
    "renamed.zip": lambda contents: zip_of({f"{i}.dat": content for i, content in enumerate(contents.values())}),
}


@pytest.mark.parametrize("form", ["idx", "cifar", "npz"])
@pytest.mark.parametrize("packing", PACKINGS)
def test_import_takes_archives_of_every_kind(form, packing, tiny, tmp_path, capsys):
    made = tiny(form)
    (tmp_path / packing).write_bytes(PACKINGS[packing](made.contents))
    commands.import_(made.source.name, tmp_path / packing, tmp_path / "cache")
    assert capsys.readouterr().out.count("OK") == len(made.contents)
    assert files_below(tmp_path / "cache") == sorted(f"{made.source.name}/{name}" for name in made.contents)
    assert np.array_equal(load(made.source.name, tmp_path / "cache").images, made.images)


@pytest.mark.parametrize("form", ["idx", "cifar", "npz"])
def test_import_takes_folders_with_other_things_in_them(form, tiny, tmp_path):
    made = tiny(form)
    home = made.write(tmp_path / "from")
    (home / "broken.gz").write_bytes(b"\x1f\x8b broken")
    (home / "broken.zip").write_bytes(zip_of(made.contents)[:-9])
    (home / "readme.txt").write_text("hello")
    (home / "empty").write_bytes(b"")
    commands.import_(made.source.name, tmp_path / "from", tmp_path / "cache")
    assert files_below(tmp_path / "cache") == sorted(f"{made.source.name}/{name}" for name in made.contents)


def test_import_takes_a_single_file_and_gathers_files_one_by_one(tiny, tmp_path):
    npz, idx = tiny("npz"), tiny("idx")
    commands.import_("tiny-npz", npz.write(tmp_path) / "tiny-npz.npz", tmp_path / "cache")
    home = idx.write(tmp_path)
    for name in list(idx.contents)[:-1]:
        with pytest.raises(KithkinError, match=r"still lacks .*labels1"):
            commands.import_("tiny-idx", home / name, tmp_path / "cache")
    commands.import_("tiny-idx", home / "labels1", tmp_path / "cache")
    assert np.array_equal(load("tiny-idx", tmp_path / "cache").images, idx.images)


@pytest.mark.parametrize("pack", [zip_of, tar_of])
def test_archive_cannot_write_outside_the_cache(pack, tiny, tmp_path):
    made = tiny("idx")
    names = ("../../escaped", str(tmp_path / "absolute"), "a/../../../up", "labels1")
    evil = pack(dict(zip(names, made.contents.values(), strict=True)))
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "evil").write_bytes(evil)
    commands.import_("tiny-idx", tmp_path / "from" / "evil", tmp_path / "cache")
    assert files_below(tmp_path) == sorted(["from/evil", *(f"cache/tiny-idx/{name}" for name in made.contents)])


def test_links_in_an_archive_are_not_followed(tiny, tmp_path):
    made = tiny("npz")
    secret = made.write(tmp_path / "elsewhere") / "tiny-npz.npz"
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            info = tarfile.TarInfo("tiny-npz.npz")
            info.type, info.linkname = kind, str(secret)
            tar.addfile(info)
    with pytest.raises(KithkinError, match="no official file"):
        commands.import_("tiny-npz", tmp_path / "evil.tar", tmp_path / "cache")
    assert files_below(tmp_path / "cache") == []


def test_import_of_wrong_things_says_what_was_wrong(tiny, tmp_path):
    made = tiny("cifar")
    cache = tmp_path / "cache"
    with pytest.raises(KithkinError, match="no file or folder"):
        commands.import_("tiny-cifar", tmp_path / "none", cache)
    with pytest.raises(KithkinError, match=r"Unknown data set 'tiny-cifr'\. Did you mean 'tiny-cifar'"):
        commands.import_("tiny-cifr", tmp_path, cache)
    altered = {name: content[:-1] for name, content in made.contents.items()}
    (tmp_path / "altered.zip").write_bytes(zip_of(altered))
    with pytest.raises(KithkinError, match=r"no official file of tiny-cifar.*batch0\.bin has sha256 .* expected"):
        commands.import_("tiny-cifar", tmp_path / "altered.zip", cache)
    whole = tar_of(made.contents, "w:gz")
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 3])
    with pytest.raises(KithkinError, match=r"cut\.tar\.gz cannot be read"):
        commands.import_("tiny-cifar", tmp_path / "cut.tar.gz", cache)
    (tmp_path / "other.tar").write_bytes(tar_of(tiny("npz").contents))
    with pytest.raises(KithkinError, match="holds tiny-npz, not tiny-cifar"):
        commands.import_("tiny-cifar", tmp_path / "other.tar", cache)
    assert files_below(cache) == []


def test_import_mends_a_damaged_cache(tiny, tmp_path):
    made = tiny("idx")
    good = made.write(tmp_path / "good")
    (made.write(tmp_path / "cache") / "images0").write_bytes(b"damaged")
    commands.import_("tiny-idx", good, tmp_path / "cache")
    assert np.array_equal(load("tiny-idx", tmp_path / "cache").images, made.images)


def test_cache_that_cannot_be_made_is_told(tiny, tmp_path):
    made = tiny("idx")
    home = made.write(tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(KithkinError, match="Cannot make the folder"):
        commands.import_("tiny-idx", home, tmp_path / "file")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args) -> None:
        pass


class Breaking(BaseHTTPRequestHandler):
    """Promises more than it sends."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"too little")

    def log_message(self, *args) -> None:
        pass


@contextmanager
def serving(handler) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def downloadable(made: Tiny, url: str, monkeypatch, served: dict[str, bytes]) -> None:
    """Give the tiny set the addresses of these contents."""
    downloads = (Download(f"{url}/{name}", f"md5:{hashlib.md5(content).hexdigest()}", name) for name, content in served.items())
    monkeypatch.setitem(SOURCES, made.source.name, replace(made.source, downloads=tuple(downloads)))


def test_get_downloads_verifies_and_unpacks(tiny, tmp_path, monkeypatch, capsys):
    made = tiny("cifar")
    served = {"tiny.tar.gz": tar_of({f"opened/{n}": c for n, c in made.contents.items()}, "w:gz")}
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "tiny.tar.gz").write_bytes(served["tiny.tar.gz"])
    with serving(partial(Quiet, directory=str(tmp_path / "www"))) as url:
        downloadable(made, url, monkeypatch, served)
        commands.get("tiny-cifar", tmp_path / "cache")
    assert "OK" in capsys.readouterr().out
    assert files_below(tmp_path / "cache") == sorted(f"tiny-cifar/{name}" for name in made.contents)
    commands.get("tiny-cifar", tmp_path / "cache")  # the server is gone: nothing may be asked of it
    assert "here already" in capsys.readouterr().out


def test_get_mends_a_damaged_cache(tiny, tmp_path, monkeypatch):
    made = tiny("idx")
    www = made.write(tmp_path / "www")
    (made.write(tmp_path / "cache") / "labels0").write_bytes(b"damaged")
    with serving(partial(Quiet, directory=str(www))) as url:
        downloadable(made, url, monkeypatch, made.contents)
        commands.get("tiny-idx", tmp_path / "cache")
    assert np.array_equal(load("tiny-idx", tmp_path / "cache").labels, made.labels)


def refused(name: str, cache: Path, message: str) -> None:
    with pytest.raises(KithkinError, match=message) as caught:
        commands.get(name, cache)
    assert f"kithkin data import {name} PATH" in caught.value.remedy
    assert files_below(cache) == []


def test_get_leaves_nothing_behind_when_it_fails(tiny, tmp_path, monkeypatch):
    made = tiny("npz")
    cache = tmp_path / "cache"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    downloadable(made, f"http://127.0.0.1:{port}", monkeypatch, made.contents)
    refused("tiny-npz", cache, r"127\.0\.0\.1.*failed \(ConnectionError\)")
    with serving(Breaking) as url:
        downloadable(made, url, monkeypatch, made.contents)
        refused("tiny-npz", cache, "failed")
    (tmp_path / "www").mkdir()
    with serving(partial(Quiet, directory=str(tmp_path / "www"))) as url:
        downloadable(made, url, monkeypatch, made.contents)
        refused("tiny-npz", cache, "status 404")
        (tmp_path / "www" / "tiny-npz.npz").write_bytes(b"another file")
        refused("tiny-npz", cache, "another file than the official one")


def test_check_names_every_file_and_the_wrong_one(tiny, tmp_path, capsys):
    made = tiny("idx")
    home = made.write(tmp_path)
    commands.check("tiny-idx", tmp_path)
    out = capsys.readouterr().out
    assert all(f"OK  {name}" in out for name in made.contents)
    (home / "images1").write_bytes(made.contents["images1"][:-1] + b"?")
    with pytest.raises(KithkinError, match=r"images1 is not the official file: expected .* found sha256") as caught:
        commands.check("tiny-idx", tmp_path)
    assert "kithkin data get tiny-idx" in caught.value.remedy


def test_digits_need_no_command(capsys, tmp_path):
    commands.get("digits", tmp_path)
    commands.import_("digits", tmp_path, tmp_path)
    commands.check("digits", tmp_path)
    assert capsys.readouterr().out.count("built in") == 3


def test_list_says_where_or_how(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    made = tiny("idx")
    commands.list_sets(tmp_path)
    assert "kithkin data get tiny-idx" in capsys.readouterr().out
    made.write(tmp_path)
    commands.list_sets(tmp_path)
    out = capsys.readouterr().out
    assert "kithkin data get tiny-idx" not in out
    assert str(tmp_path / "tiny-idx") in "".join(out.split())
    assert all(name in out for name in ("digits", "fashion-mnist", "cifar-10", "organamnist", "pathmnist", "107,180"))


def test_list_breaks_no_name_on_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    commands.list_sets(tmp_path)
    assert "fashion-mnist │" in capsys.readouterr().out


@pytest.mark.parametrize(("clients", "alpha", "smallest"), [(20, 0.5, 900), (3, 1.0, 900), (60, 10.0, 1500)])
def test_show_draws_a_picture_and_sums_up(clients, alpha, smallest, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    commands.show(clients=clients, alpha=alpha, label_ratio=0.25)
    (path,) = tmp_path.iterdir()
    assert path.name == f"split-digits-k{clients}-alpha{alpha:g}-seed0-label0.25.png"
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.width >= smallest
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    assert (pixels[0] == 255).all()
    for colour in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)):  # labelled discs and label ratios are there
        assert (pixels == colour).all(1).sum() > 500
    out = capsys.readouterr().out
    assert all(word in out for word in ("label ratio", "0.25", f"{clients} clients, split ", path.name))


def test_show_of_own_data_at_a_hundred_clients(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.array(["a class with a name that is much too long for any margin", "$b$", "猫"])[np.arange(6000) % 3]
    np.savez(tmp_path / "mine.npz", images=rng.integers(0, 256, (6000, 8, 8), dtype=np.uint8), labels=labels)
    commands.show(str(tmp_path / "mine.npz"), 100, 5.0, out=tmp_path / "wide.png")
    with Image.open(tmp_path / "wide.png") as picture:
        assert picture.width > 1500


def test_show_names_the_picture_that_it_wrote(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    commands.show(clients=3, out=tmp_path / "mine")
    assert (tmp_path / "mine.png").exists()
    assert f"Picture: {tmp_path / 'mine.png'}" in capsys.readouterr().out


def test_show_says_who_the_clients_are_where_the_data_names_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    whose = np.array(["north", "south", "east"])[np.arange(90) % 3]
    np.savez(tmp_path / "mine.npz", images=np.zeros((90, 8, 8), np.uint8), labels=np.arange(90) // 3 % 2, clients=whose)
    drawn: list[list[str]] = []
    ticks = Axes.set_xticks
    monkeypatch.setattr(Axes, "set_xticks", lambda self, at, names=(), **k: (drawn.append(list(names)), ticks(self, at)))
    commands.show(str(tmp_path / "mine.npz"), out=tmp_path / "mine.png")
    assert "3 clients, as given" in (said := capsys.readouterr().out)
    assert "0 (east), 1 (north), 2 (south)" in said
    assert ["east", "north", "south"] in drawn, "and the picture too"


def test_show_tells_where_it_cannot_write(tmp_path):
    for out in (tmp_path / "none" / "a.png", tmp_path / "a.xyz"):
        with pytest.raises(KithkinError, match="Cannot write the picture"):
            commands.show(out=out)


def test_views_draws_one_of_every_class_as_it_is_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    grey = np.arange(0, 256, 64, dtype=np.uint8)  # a class is a shade, which an original alone keeps all over
    labels = np.repeat(np.arange(4), [50, 2, 2, 2])
    np.savez("mine.npz", images=np.broadcast_to(grey[labels][:, None, None], (56, 8, 8)), labels=labels)
    commands.views("mine.npz", pictures=5, out=tmp_path / "mine")
    assert f"Picture: {tmp_path / 'mine.png'}" in capsys.readouterr().out
    with Image.open("mine.png") as picture:
        originals = np.asarray(picture.convert("L"))[24 + 48 :: 102, 6 + 48]
    assert originals.tolist() == [0, 64, 128, 192, 0]


@pytest.mark.parametrize(("flip", "mirrored"), [("auto", False), ("no", False), ("yes", True)])
def test_views_mirrors_where_a_run_does(flip, mirrored, tmp_path, monkeypatch):
    slope = np.broadcast_to(np.arange(8, dtype=np.uint8) * 30, (60, 8, 8))  # brighter to the right, but where it is mirrored
    np.savez(tmp_path / "mine.npz", images=slope, labels=np.arange(60) % 2)
    commands.views(str(tmp_path / "mine.npz"), pictures=40, flip=flip, out=tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        weak = np.asarray(picture.convert("L"), int)[24 + 48 :: 102, 6 + 102 : 6 + 102 + 96]
    assert (weak[:, 36] > weak[:, 60]).any() == mirrored


def test_views_tells_what_it_cannot_draw(tmp_path):
    np.savez(tmp_path / "signals.npz", images=np.zeros((60, 1, 1, 20), np.uint8), labels=np.arange(60) % 2)
    with pytest.raises(KithkinError, match="has signals"):
        commands.views(str(tmp_path / "signals.npz"))
    with pytest.raises(KithkinError, match="--pictures is 0"):
        commands.views(pictures=0)
    with pytest.raises(KithkinError, match="Cannot write the picture"):
        commands.views(out=tmp_path / "a.xyz")
