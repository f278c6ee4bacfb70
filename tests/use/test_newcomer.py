"""`kithkin newcomer`: helpers from the pool, a model of its own, and nobody is harmed unknowingly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kithkin
from kithkin.data import Dataset, load
from kithkin.errors import KithkinError
from kithkin.methods.base import SERVER
from kithkin.methods.um_plus import UmPlus
from kithkin.record import Folder
from kithkin.use import joining
from kithkin.use.joining import Joined, join, share_of, write_newcomer

Finished = Callable[[str], Path]
ROWS = np.random.default_rng(3).permutation(1797)[:40]


def forty() -> Dataset:
    data = load("digits")
    return replace(data, images=data.images[ROWS], labels=data.labels[ROWS])


def saved(labels: np.ndarray) -> str:
    np.savez("mine.npz", images=forty().images, labels=labels)
    return "mine.npz"


def test_roles_by_hand():
    """Of 10 labelled pictures 7 are for training, 1 for validation, 2 for testing; half of the 7 keep labels, rounded up."""
    labels = np.array([0, -1, 1, 2, 0, 1, 2, -1, 0, 1, 2, 0])
    share = share_of(labels, 0.5, seed=0)
    assert [len(rows) for rows in (share.labelled, share.unlabelled, share.val, share.test)] == [4, 3 + 2, 1, 2]
    assert {1, 7} <= set(share.unlabelled)
    assert sorted(np.concatenate([share.train, share.val, share.test])) == list(range(12))
    whole = share_of(labels, None, seed=0)
    assert [len(rows) for rows in (whole.labelled, whole.unlabelled, whole.val, whole.test)] == [7, 2, 1, 2]
    assert set(share_of(np.arange(40) % 4, None, seed=0).test) != set(share_of(np.arange(40) % 4, None, seed=1).test)
    five = share_of(np.array([0, 1, 0, 1, 0]), None, seed=0)
    assert (len(five.labelled), len(five.val), len(five.test)) == (4, 0, 1)
    few = share_of(np.array([3, -1, 4]), None, seed=0)
    assert (sorted(few.labelled), few.unlabelled.tolist(), len(few.val), len(few.test)) == ([0, 2], [1], 0, 0)
    half = share_of(np.array([3, -1, 4]), 0.5, seed=0)
    assert (len(half.labelled), sorted(half.train), len(half.test)) == (1, [0, 1, 2], 0)
    assert not len(share_of(np.array([3, -1, 4]), 0.0, seed=0).labelled)
    with pytest.raises(KithkinError, match="label-ratio is 7"):
        share_of(np.array([3, -1, 4]), 7.0, seed=0)


def test_with_labels_alone_the_helpers_are_those_that_are_right_most_often(finished: Finished):
    """mu = 1: the relation (13) is the accuracy on the newcomer's labelled pictures."""
    run, data = kithkin.load(finished("um")), forty()
    joined = join(run, data, rounds=1)
    rows = joined.share.labelled
    right = {k: float((run.client(k).predict(data.images[rows]).label == data.labels[rows]).mean()) for k in range(6)}
    others = [h for h in joined.state.helpers if h.client != 6]
    assert joined.client.number == 6
    assert len(others) == 2
    assert [h.relation for h in others] == pytest.approx([right[h.client] for h in others])
    assert sorted(h.relation for h in others) == pytest.approx(sorted(right.values())[-2:])


@pytest.mark.parametrize("method", ["um", "um-plus"])
def test_a_newcomer_gets_a_folder_that_answers_votes_and_is_exported(finished: Finished, kith: Any, method: str):
    before = {p.name: p.read_bytes() for p in finished(method).iterdir() if p.is_file()}
    words = ("newcomer", finished(method), "--data", saved(forty().labels), "--label-ratio", 0.3, "--rounds", 1, "--out", "new")
    code, out, err = kith(*words)
    assert (code, err) == (0, "")
    assert {p.name: p.read_bytes() for p in finished(method).iterdir() if p.is_file()} == before
    about = json.loads(Path("new/manifest.json").read_text())["newcomer"]
    assert f"gain {about['gain']:+.3f}" in out
    assert about["gain"] == pytest.approx(about["test_helped"] - about["test_alone"])
    client = kithkin.load("new").client()
    assert client.number == 6
    (line,) = map(json.loads, Path("new/clients.jsonl").read_text().splitlines())
    others = [h for h in line["helpers"] if h["client"] != 6]
    assert "\nhelpers " + ", ".join(f"{h['client']} ({h['relation']:.2f})" for h in others) + "\n" in out
    assert ("Kept is the model trained alone" in out) == (about["kept"] == "alone")
    assert (line["labelled"], line["unlabelled"], line["val"], line["test"]) == (8, 20, 4, 8)
    share, data = share_of(forty().labels, 0.3, 0), forty()
    answers = client.predict(data.images[share.test], vote=True)
    assert (answers.label == data.labels[share.test]).mean() == pytest.approx(line["test_accuracy"], abs=1e-6)
    assert len(client.helpers) == len(line["helpers"]) == 3
    assert SERVER not in {h["client"] for h in line["helpers"]}
    assert (client.run.models.shift(6) is None) == (method == "um")
    assert kith("export", "new")[0] == 0
    assert Path("client-6.safetensors").exists()
    code, _, err = kith(*words)
    assert (code, "The folder new is not empty. Give another" in err) == (2, True)
    code, _, err = kith("resume", "new")
    assert (code, "newcomer" in err) == (2, True)


def test_of_a_newcomer_there_is_no_report_and_no_table(finished: Finished, kith: Any, tmp_path: Path):
    run = kithkin.load(finished("um"))
    new = tmp_path / "runs" / "new"
    new.mkdir(parents=True)
    write_newcomer(Folder(new), run, "digits", join(run, forty(), rounds=1))
    before = sorted(new.iterdir())
    for words in (("report", new), ("report", finished("um"), new), ("watch", new, "--port", 0), ("export-metrics", new)):
        code, out, err = kith(*words)
        assert (code, out) == (2, "")
        assert "new is a newcomer's: it holds a model, and no record of rounds. Use it with `kithkin predict`, `advise`" in err
    assert sorted(new.iterdir()) == before
    assert "holds none" in kith("report", new.parent)[2]
    shutil.copytree(finished("um"), new.parent / "um")
    code, _, err = kith("report", new.parent, "--models", "never")
    assert (code, err) == (0, ""), "in a folder of runs it is none of them"


def test_labels_that_it_does_not_know_change_nothing(finished: Finished):
    run, data = kithkin.load(finished("um")), forty()
    first = join(run, data, 0.3, rounds=1)
    others = data.labels.copy()
    others[first.share.unlabelled] = (others[first.share.unlabelled] + 1) % 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kithkin.use.joining.share_of", lambda *_: first.share)
        again = join(run, replace(data, labels=others), 0.3, rounds=1)
    assert torch.equal(again.helped, first.helped)
    assert torch.equal(again.alone, first.alone)


def test_the_model_trained_alone_is_kept_where_it_validates_better():
    w = torch.zeros(1)
    nothing: Any = None

    def joined(helped: tuple[float | None, float | None], alone: tuple[float | None, float | None]) -> Joined:
        return Joined(nothing, nothing, nothing, w, w, None, helped, alone)

    assert joined((0.5, 0.9), (0.75, 0.8)).harmed
    assert joined((0.5, 0.9), (0.75, 0.8)).gain == pytest.approx(0.1)
    assert not joined((0.5, 0.1), (0.5, 0.8)).harmed
    assert not joined((None, None), (None, None)).harmed
    assert joined((None, None), (None, None)).gain is None


@pytest.mark.parametrize(("val", "kept"), [(0.5, "helped"), (0.25, "alone")])
def test_the_model_that_is_kept_is_the_one_that_is_told_of(finished: Finished, tmp_path: Path, val: float, kept: str):
    run = kithkin.load(finished("um"))
    joined = replace(join(run, forty(), rounds=1), marks=(val, 0.75), marks_alone=(0.5, 1.0))
    write_newcomer(Folder(tmp_path), run, "digits", joined)
    client = kithkin.load(tmp_path).client()
    assert torch.equal(client.weights[0], getattr(joined, kept))
    assert (client.run.manifest["newcomer"]["kept"], client.run.manifest["newcomer"]["gain"]) == (kept, -0.25)
    line = client.run.lines[6]
    assert (line["val_accuracy"], line["test_accuracy"]) == ((val, 0.75) if kept == "helped" else (0.5, 1.0))


@pytest.mark.parametrize("method", ["um", "um-plus"])
def test_it_trains_as_long_alone_as_with_helpers(finished: Finished, monkeypatch: pytest.MonkeyPatch, method: str):
    """Three rounds of two epochs, at a rate of 0.02; UM+ has them in one pass, at a rate that is told by the run."""
    visits, tuned, search, trained, tried = joining.visits, joining.tuned, joining.search, [], []

    def visited(um: Any, *about: Any) -> Any:
        trained.append((about[-1], um.recipe.epochs, um.recipe.lr, um.warmup_epochs))
        return visits(um, *about)

    def in_one_pass(plus: Any, *about: Any) -> Any:
        trained.append((1, plus.tune.epochs, plus.tune.lr, plus.um.warmup_epochs))
        return tuned(plus, *about)

    monkeypatch.setattr(joining, "visits", visited)
    monkeypatch.setattr(joining, "tuned", in_one_pass)
    monkeypatch.setattr(joining, "search", lambda pool: tried.append([h.client for h in pool]) or search(pool))
    run = kithkin.load(finished(method))
    run.manifest["settings"] |= {"tune_lr": 0.25} if method == "um-plus" else {}
    joined = join(run, forty(), 0.3, rounds=3, epochs=2, lr=0.02)
    assert tried == [[0, 1, 2, 3, 4, 5], []], "the whole pool once, without the common model, and alone nobody's"
    assert trained == [(3, 2, 0.02, 1) if method == "um" else (1, 6, 0.005, 1), (3, 2, 0.02, 1)]
    if method == "um-plus":
        counts = np.bincount(forty().labels[joined.share.labelled], minlength=10) + run.manifest["settings"]["smoothing"]
        assert joined.shift == pytest.approx(np.log(counts / counts.mean()), abs=1e-5)


def test_who_labels_for_a_newcomer_weighs_by_the_labels_behind_it(finished: Finished, monkeypatch: pytest.MonkeyPatch):
    run, label, heard = kithkin.load(finished("um-plus")), UmPlus.label, []

    def hearing(self: UmPlus, helpers: Any, common: Any) -> Any:
        heard.append({h.client: h.evidence for h in (*helpers, common)})
        return label(self, helpers, common)

    monkeypatch.setattr(UmPlus, "label", hearing)
    joined = join(run, forty(), 0.3, rounds=1)
    (voters,) = heard
    assert voters.pop(6) == len(joined.share.labelled)
    assert SERVER in voters
    assert voters == {k: run.models.helper(k).evidence for k in voters}
    assert all(voters.values())


def test_without_labels_it_is_helped_and_says_that_nothing_can_be_told(finished: Finished, kith: Any):
    code, out, _ = kith("newcomer", finished("um"), "--data", saved(np.full(40, -1)), "--rounds", 1, "--out", "new")
    assert code == 0
    assert "0 labelled and 40 unlabelled pictures" in out
    assert "No accuracy is told" in out
    assert len(kithkin.load("new").client().predict(forty().images)) == 40
    code, _, err = kith("newcomer", "new", "--data", "mine.npz", "--out", "newer")
    assert (code, "new is a newcomer's. Name the run that it joined." in err) == (2, True)


@pytest.mark.parametrize(
    ("method", "words", "message"),
    [
        ("fixbn", ["--data", "mine.npz"], "no pool to choose helpers from: its method is fixbn"),
        ("um", [], "Give --data"),
        ("um", ["--data", "nowhere.npz"], "no file or folder nowhere.npz"),
        ("um", ["--data", "strange.npz"], "labels from 0 to 10"),
        ("um", ["--data", "large.npz"], "9x9 grey pictures, not 8x8 grey"),
        ("um", ["--data", "mine.npz", "--rounds", "0"], "--rounds is 0"),
        ("um", ["--data", "mine.npz", "--epochs", "0"], "--epochs is 0"),
        ("um", ["--data", "mine.npz", "--label-ratio", "2"], "--label-ratio is 2"),
        ("um", ["--data", "mine.npz", "--lr", "1e30"], "training diverged"),
        ("um-plus", ["--data", "mine.npz", "--lr", "1e30"], "training diverged"),
    ],
)
def test_mistakes_leave_no_model(finished: Finished, kith: Any, method: str, words: list[str], message: str):
    saved(forty().labels)
    np.savez("strange.npz", images=forty().images, labels=np.resize(np.arange(11), 40))
    np.savez("large.npz", images=np.zeros((4, 9, 9), np.uint8), labels=[0, 1, 2, 3])
    code, _, err = kith("newcomer", finished(method), *words, "--out", "new")
    assert code == 2
    assert message in err
    assert not (Path("new").exists() and list(Path("new").iterdir()))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"classes": ("a", "b")}, "other classes than the run"),
        ({"images": np.zeros((40, 1, 9, 9), np.uint8)}, "9x9 grey pictures, not 8x8 grey"),
    ],
)
def test_a_data_set_with_other_classes_or_pictures_is_refused(
    other: dict[str, Any], told: str, finished: Finished, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(joining, "load_data", lambda *_: replace(forty(), **other))
    with pytest.raises(KithkinError, match=told):
        joining.read_newcomer(kithkin.load(finished("um")), "digits")
