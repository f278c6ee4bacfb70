"""`kithkin advise`: uncertain and diverse, of the client's own unlabelled pictures or of those it is given."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_runs import start

import kithkin
from kithkin.data import deal, load
from kithkin.record.looks import hidden_features
from kithkin.use import Predictions
from kithkin.use.advising import Advice, advise, contact_sheet, features, own_pictures, typical

Finished = Callable[[str], Path]


def rows_of(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "labels-wanted.csv").read_text().splitlines()))


def test_the_typical_picture_of_each_cluster_by_hand():
    """The left cluster's centre is (0*1 + 1*1 + 4*2) / 4 = 2.25, nearest to 1; with the last entropies 3.9, nearest to 4."""
    seen = np.array([[0.0], [1.0], [4.0], [50.0]])
    assert typical(seen, np.array([1.0, 1.0, 2.0, 1.0]), 2) == [1, 3]
    assert typical(seen, np.array([1.0, 1.0, 2.0, 5.0]), 2) == [3, 1]
    assert typical(seen, np.array([0.1, 0.1, 9.0, 5.0]), 2) == [2, 3]


def test_alike_pictures_are_chosen_last_and_none_twice():
    seen = np.array([[0.0, 0.0]] * 5 + [[1.0, 0.0], [0.0, 1.0]])
    chosen = typical(seen, np.linspace(0.5, 1, 7), 99)
    assert sorted(chosen) == list(range(7))
    assert {tuple(seen[i]) for i in chosen[:3]} == {(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)}
    assert chosen[3:] == sorted(chosen[3:], reverse=True), "the most uncertain of them first"
    assert sorted(tuple(seen[i]) for i in typical(seen, np.zeros(7), 3)) == [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)]


def test_pictures_are_told_apart_as_all_of_a_clients_models_see_them(finished: Finished):
    client = kithkin.load(finished("mix")).client(3)
    seen = features(client, load("digits").images[:9])
    size = client.run.network.module.head.in_features
    assert seen.shape == (9, 3 * size)
    for i, w in enumerate(client.weights):
        client.run.network.load(w)
        alone = hidden_features(client.run.network, client.run.batch(load("digits").images[:9]))
        assert np.array_equal(seen[:, i * size : (i + 1) * size], alone)


def test_it_advises_on_the_clients_unlabelled_pictures_alone(finished: Finished, kith: Any):
    code, out, _ = kith("advise", finished("um"), "--client", 3, "--budget", 12, "--out", "wanted")
    data, share = load("digits"), deal(load("digits").labels, 6, 0.5, 0).shares[3]
    assert code == 0
    assert f"12 of {len(share.unlabelled)} pictures" in out
    rows = rows_of(Path("wanted"))
    assert [int(row["rank"]) for row in rows] == list(range(1, 13))
    positions = [int(row["picture"].removeprefix("digits[").removesuffix("]")) for row in rows]
    assert len(set(positions)) == 12
    assert set(positions) <= set(share.unlabelled.tolist())
    answers = kithkin.load(finished("um")).client(3).predict(data.images[positions])
    assert [row["class"] for row in rows] == answers.classes
    assert [float(row["entropy"]) for row in rows] == pytest.approx(answers.entropy, abs=1e-3)
    with Image.open("wanted/labels-wanted.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.size == (1320, 384), "two rows, since ten stand side by side"


@pytest.mark.parametrize("method", ["mix", "um-plus"])
def test_every_method_can_be_asked(finished: Finished, kith: Any, method: str):
    assert kith("advise", finished(method), "--client", 3, "--budget", 1)[0] == 0
    assert len(rows_of(Path("advice-3"))) == 1


def test_given_pictures_are_chosen_from_and_others_skipped(finished: Finished, kith: Any):
    np.savez("more.npz", images=load("digits").images[:9])
    Path("note.txt").write_text("no picture")
    code, out, err = kith("advise", finished("um"), "more.npz", "note.txt", "--client", 0, "--budget", 20)
    assert code == 3
    assert "skipped: note.txt" in err
    assert "9 of 9 pictures" in out
    assert {row["picture"] for row in rows_of(Path("advice-0"))} == {f"more.npz[{i}]" for i in range(9)}


def test_pictures_of_ones_own_folder_have_their_files_names(tmp_path: Path):
    data = load("digits")
    for i in range(120):
        place = tmp_path / "mine" / f"数字 {data.labels[i] % 3}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.images[i, 0]).save(place / f"{i:03d}.png")
    own = {"data": str(tmp_path / "mine"), "clients": 3, "rounds": 1, "label_ratio": 0.5}
    start(tmp_path / "run", "fixbn", **own)
    client = kithkin.load(tmp_path / "run").client(1)
    names, images = own_pictures(client)
    contact_sheet(advise(client, names, images, 2), "classes in a script that the font lacks", tmp_path / "sheet.png")
    assert len(names) == len(images) > 0
    for name, picture in zip(names, images, strict=True):
        with Image.open(name) as file:
            assert np.array_equal(np.asarray(file), picture[0])


@pytest.mark.parametrize("channels", [1, 3])
def test_signals_are_drawn_as_lines(tmp_path: Path, channels: int):
    images = np.arange(channels * 2 * 64, dtype=np.uint8).reshape(2, channels, 1, 64)
    answers = Predictions(("low", "high"), np.eye(2), np.zeros(2))
    contact_sheet(Advice(["a", "b"], images, answers), "signals", tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        hues = {(r > g, g > b) for _, (r, g, b, _) in sheet.convert("RGBA").getcolors(1 << 16) if len({r, g, b}) > 1}
    assert len(hues) >= channels, "a colour for each"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--client", "3", "--budget", "0"], "A budget of 0"),
        (["--client", "9"], "no client 9"),
        (["--client", "3", "--out", "file/below"], "Cannot write file/below"),
        (["--client", "3", "file"], "No picture is left"),
    ],
)
def test_mistakes_end_with_a_remedy(finished: Finished, kith: Any, words: list[str], message: str):
    Path("file").write_text("in the way")
    code, _, err = kith("advise", finished("um"), *words)
    assert code == 2
    assert message in err


def test_pictures_of_another_split_or_of_none_are_not_chosen_from(finished: Finished, kith: Any, tmp_path: Path):
    copy = shutil.copytree(finished("um"), tmp_path / "site")
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"split_hash": "another"}))
    code, _, err = kith("advise", copy, "--client", 3)
    assert (code, "another split than when the run began" in err) == (2, True)
    del manifest["split_hash"]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    code, _, err = kith("advise", copy, "--client", 3)
    assert (code, "has no split of its own. Name the pictures" in err) == (2, True)


def test_pictures_that_changed_since_the_run_are_not_chosen_from(kith: Any, tmp_path: Path):
    data, mine = load("digits"), tmp_path / "mine.npz"
    np.savez(mine, images=data.images[:300], labels=data.labels[:300])
    start(tmp_path / "run", "fixbn", data=str(mine), rounds=1, label_ratio=0.5)
    assert kith("advise", tmp_path / "run", "--client", 3, "--budget", 1)[0] == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    older = {name: v for name, v in manifest.items() if name not in ("classes", "picture", "fingerprint")}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(older))
    assert kith("advise", tmp_path / "run", "--client", 3, "--budget", 1, "--out", "older")[0] == 0
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    np.savez(mine, images=255 - data.images[:300], labels=data.labels[:300])
    code, _, err = kith("advise", tmp_path / "run", "--client", 3)
    assert (code, "The data has other classes or pictures than when the run began." in err) == (2, True)


def test_who_knows_all_labels_needs_no_advice(kith: Any, tmp_path: Path):
    start(tmp_path / "run", "fedbn-sl", rounds=1)
    code, _, err = kith("advise", tmp_path / "run", "--client", 3)
    assert code == 2
    assert "knows all labels" in err
