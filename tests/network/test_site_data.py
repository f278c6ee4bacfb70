"""Sites with data of their own: pictures without labels are trained with, and what is wrong is told without paths."""

from __future__ import annotations

import errno
import shutil
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from fake import Federation
from flwr.app import Context
from PIL import Image

from kithkin.cli import main
from kithkin.data import load
from kithkin.network import client
from kithkin.network.client import app_for
from kithkin.network.papers import read_papers, write_papers
from kithkin.network.site import Site
from kithkin.network.wire import RefusedError

DIGITS = load("digits")
Capsys = pytest.CaptureFixture[str]


def labelled(home: Path, images: np.ndarray = DIGITS.images[:200]) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    np.savez(home / "labelled.npz", images=images, labels=np.array(DIGITS.classes)[DIGITS.labels[: len(images)]])
    return home / "labelled.npz"


def unlabelled(home: Path, kind: str, images: np.ndarray) -> Path:
    path = home / f"rest.{kind}"
    if kind == "npz":
        np.savez(path, images=images)
    else:
        path.mkdir()
        for i, image in enumerate(images):
            Image.fromarray(image[0]).save(path / f"{i:03d}.png")
    return path


def init(home: Path, *more: str) -> Path:
    main(["site", "init", str(home / "site"), "--data", str(labelled(home)), "--device", "cpu", *more])
    return home / "site"


def seated(federation: Federation, number: int, folder: Path, data: Any = None) -> None:
    """A site of this federation's that has its data, and all else, from its folder."""

    def site(context: Context) -> Site:
        found = Site.at(folder, federation.terms)
        found.data = data or found.data
        found.number = number
        return found

    federation.node(number).app = app_for(site)


@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_a_sites_unlabelled_pictures_are_there_and_trained_with(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    more = DIGITS.images[1000:1030]
    folder = init(tmp_path / "a", "--unlabelled", str(unlabelled(labelled(tmp_path / "a").parent, kind, more)))
    federation = Federation(tmp_path / "f", "um", rounds=1, sample_rate=1.0)
    held = Site.at(folder, federation.terms).data()
    assert (held.images[held.unlabelled].numpy() == more).all(), "all labels are used, so these alone have none"
    assert (held.truth == -1).all()
    assert not set(held.unlabelled.tolist()) & set(held.exam.rows.tolist())

    asked: list[int] = []
    audited = Site._audited

    def counting(self: Site, k: int, reply: Any, held: Any) -> Any:
        asked.extend([len(reply.labels.classes)] if k == 0 and reply.labels is not None else [])
        return audited(self, k, reply, held)

    monkeypatch.setattr(Site, "_audited", counting)
    seated(federation, 0, folder)
    result = federation.serve()
    assert result.summary["rounds"] == 1
    assert asked == [len(more)], "each of them was given a pseudo label, or none that is sure enough"
    without = Federation(tmp_path / "g", "um", rounds=1, sample_rate=1.0)
    seated(without, 0, alone := init(tmp_path / "b"))
    without.serve()
    models = [Site.at(at, federation.terms).last() for at in (folder, alone)]
    own = [world.states[0].helpers.own for world in models if world]
    assert [h.version for h in own] == [2, 2]
    assert not torch.equal(own[0].w, own[1].w), "and they changed the model"


@pytest.mark.parametrize(("kind", "remedy"), [("folder", "Resize all pictures to one size"), ("npz", "Convert them first")])
def test_unlabelled_pictures_of_another_size_are_named(kind: str, remedy: str, tmp_path: Path, capsys: Capsys):
    path = unlabelled(tmp_path, kind, np.zeros((3, 1, 9, 8), np.uint8))
    with pytest.raises(SystemExit) as caught:
        init(tmp_path, "--unlabelled", str(path))
    said = capsys.readouterr().err.replace("\n", " ")
    assert caught.value.code == 2
    assert path.name in said
    assert "9x8" in said
    assert remedy in said
    assert not (tmp_path / "site").exists()


def test_unlabelled_pictures_lose_no_colours_unseen(tmp_path: Path, capsys: Capsys):
    path = unlabelled(tmp_path, "folder", DIGITS.images[:2])
    Image.fromarray(np.stack([DIGITS.images[2, 0]] * 3, -1)).save(path / "002.png")
    with pytest.raises(SystemExit):
        init(tmp_path, "--unlabelled", str(path))
    said = capsys.readouterr().err.replace("\n", " ")
    assert "002.png is a colour picture (mode RGB), not a grey one. Convert it first." in said
    assert not (tmp_path / "site").exists()


def spoil(folder: Path, how: str) -> None:
    home = folder.parent
    if how == "no data":
        (home / "labelled.npz").unlink()
    elif how == "no npz":
        (home / "labelled.npz").write_text("x")
    elif how == "no papers":
        (folder / "site.toml").write_text("x")
    elif how == "other shape":
        labelled(home, np.zeros((20, 1, 9, 8), np.uint8))
    elif how == "other class":
        np.savez(home / "labelled.npz", images=DIGITS.images[:20], labels=np.array(["J. Doe", "3"] * 10))
    elif how == "no state":
        shutil.rmtree(folder / "state", ignore_errors=True)
        (folder / "state").write_text("x")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("no data", "failed (KithkinError)"),
        ("no npz", "failed (KithkinError)"),
        ("no papers", "it cannot begin"),
        ("other shape", "The pictures have shape [1, 9, 8], the federation's [1, 8, 8]"),
        ("other class", "1 of its 2 classes are not the federation's (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"),
        ("no state", "Cannot write: Not a directory"),
        ("a bug", "failed (FileNotFoundError)"),
    ],
)
def test_what_is_wrong_is_told_without_paths_which_the_sites_own_log_has(how: str, told: str, tmp_path: Path, capsys: Capsys):
    folder = init(home := tmp_path / "J. Doe", "--name", "north")
    federation = Federation(tmp_path / "f", "fixavg", rounds=1, least=2)
    seated(federation, 0, folder, (home / "scan of J. Doe.png").read_bytes if how == "a bug" else None)
    spoil(folder, how)
    capsys.readouterr()
    federation.serve()
    said = "\n".join(federation.said())
    assert told in said, said
    assert "Doe" not in said
    assert str(tmp_path) not in said
    own = capsys.readouterr()
    assert "Doe" in own.out + own.err or how == "other shape"


@pytest.mark.parametrize(("error", "told"), [(OSError(28, "x"), "the disk is full"), (OSError("/J. Doe/x"), "OSError")])
def test_a_disk_that_fails_is_told_without_its_paths(error: OSError, told: str, tmp_path: Path):
    federation = Federation(tmp_path / "f", "fixavg")
    site = federation.node(0).site
    with pytest.raises(RefusedError) as caught, site.disk():
        raise error
    assert caught.value.problem == f"Cannot write: {told}."
    assert "Doe" not in str(site.refuse(caught.value))


def test_a_log_on_a_full_disk_does_not_keep_a_site_from_answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = init(tmp_path / "a")
    federation = Federation(tmp_path / "f", "fixavg", rounds=1, least=2)
    seated(federation, 0, folder)
    spoil(folder, "no state")

    def full(text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(client, "say", full)
    federation.serve()
    assert "site is left out of round 1: Cannot write: Not a directory." in federation.said()


def test_what_a_site_comes_to_so_late_that_nobody_waits_for_it_is_not_done(tmp_path: Path):
    site = Federation(tmp_path / "f", "fixavg", deadline=0.1).node(0).site
    with site.at_work():
        waiting = Thread(target=lambda: late.append(refusal_of(site)))
        late: list[str] = []
        waiting.start()
        time.sleep(0.5)
    waiting.join()
    assert late == ["site-0 was still at what it was asked before."]
    assert refusal_of(site) == "", "the next one finds it free"


def refusal_of(site: Site) -> str:
    try:
        with site.at_work():
            return ""
    except RefusedError as e:
        return e.problem


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["predict", "SITE", "labelled.npz", "--vote"], "is a site's: its own model alone is kept there. Leave --vote away"),
        (["newcomer", "SITE", "--data", "labelled.npz", "--out", "new"], "Join its federation, with `kithkin site init`"),
        (["resume", "SITE"], "is a site's. It goes on with `kithkin site join`"),
        (["predict", "RUN", "labelled.npz"], "has no models: they are at the sites. Name a site's folder"),
    ],
)
def test_what_a_sites_folder_and_a_servers_are_not_for_is_told(words: list[str], told: str, tmp_path: Path, capsys: Capsys):
    federation = Federation(tmp_path / "f", "um-plus", rounds=1, sample_rate=1.0)
    federation.serve()
    known = {"SITE": federation.node(1).site.state, "RUN": federation.folder.path}
    known |= {"labelled.npz": labelled(tmp_path), "new": tmp_path / "new"}
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main([str(known.get(word, word)) for word in words])
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("change", ["one more picture", "another label ratio", "another seed"])
def test_pictures_that_change_while_a_run_goes_on_are_not_dealt_anew(change: str, tmp_path: Path):
    """What was trained on must not be tested on."""
    folder = init(tmp_path, "--name", "north")
    federation = Federation(tmp_path / "f", "fixavg", rounds=3, least=2, sample_rate=1.0)
    seated(federation, 0, folder)

    def before(message: Any) -> None:
        if message.metadata.group_id != "2":
            return
        if change == "one more picture":
            labelled(tmp_path, DIGITS.images[:201])
        else:
            papers = read_papers(folder)
            write_papers(folder, replace(papers, label_ratio=0.5) if "ratio" in change else replace(papers, seed=1))

    federation.grid.before = before
    federation.serve()
    left = [what for what in federation.said() if what.startswith("north is left out")]
    assert len(left) == 2, left  # of training and exam, told once a round
    assert all("have changed since the run began" in what for what in left)
