"""`kithkin predict` and `kithkin.load`: the answers are those of the evaluated model, and what is no picture is named."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import kithkin
from kithkin import dice, rng
from kithkin.data import deal, load
from kithkin.errors import KithkinError
from kithkin.helpers import Helper, entropy
from kithkin.nets import Dropout, Network
from kithkin.use.pictures import read_pictures
from kithkin.use.predicting import Predictions, Vote, ask, cast_votes

Finished = Callable[[str], Path]


def exam_of(client: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's test pictures and their classes."""
    data = load("digits")
    rows = deal(data.labels, 6, 0.5, 0).shares[client].test
    return data.images[rows], data.labels[rows]


@pytest.mark.parametrize("method", ["um", "um-plus", "mix", "fixbn"])
def test_the_answers_have_the_accuracy_of_the_record(finished: Finished, method: str):
    run = kithkin.load(finished(method))
    record = [json.loads(line) for line in (finished(method) / "clients.jsonl").read_text().splitlines()]
    right: list[float] = []
    for k in range(6):
        x, y = exam_of(k)
        answers = run.client(k).predict(x)
        right.append((answers.label == y).mean())
        assert right[-1] == pytest.approx(record[k]["test_accuracy"], abs=1e-6)
        assert answers.classes == [str(c) for c in answers.label]
        assert answers.probabilities.sum(1) == pytest.approx(1, abs=1e-5)
        assert ((answers.entropy >= 0) & (answers.entropy <= math.log(10) + 1e-5)).all()
    summary = json.loads((finished(method) / "summary.json").read_text())
    assert np.mean(right) == pytest.approx(summary["final_test_mean"], abs=1e-6), "that of the last round, as docs/use.md says"


def test_what_is_loaded_shows_itself_in_one_line(finished: Finished):
    run = kithkin.load(finished("um"))
    assert repr(run) == f"LoadedRun(um on digits, 6 clients, in {finished('um')})"
    assert repr(run.client(2)) == f"LoadedClient(2 of {finished('um')})"


def test_a_picture_is_answered_alike_in_every_layout_and_company(finished: Finished):
    client = kithkin.load(finished("um")).client(2)
    x, _ = exam_of(2)
    whole = client.predict(x)
    for form in (x[:, 0], x.transpose(0, 2, 3, 1), x / 255, torch.from_numpy(x), torch.from_numpy(x[:, 0])):
        again = client.predict(form)
        assert np.array_equal(again.probabilities, whole.probabilities)
        assert np.array_equal(again.entropy, whole.entropy)
    alone = client.predict(x[4:5])
    assert alone.entropy == pytest.approx(whole.entropy[4:5], abs=1e-5)
    assert alone.probabilities == pytest.approx(whole.probabilities[4:5], abs=1e-5)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 8, 9), np.uint8), "8x9 grey pictures, not 8x8 grey"),
        (np.zeros((2, 3, 8, 8), np.uint8), "8x8 colour"),
        (np.zeros((0, 8, 8), np.uint8), "no picture"),
        (np.zeros((2, 8, 8), np.int32), "type int32"),
        (np.full((2, 8, 8), np.nan), "NaN"),
        (np.zeros(64, np.uint8), "shape"),
    ],
)
def test_what_are_no_pictures_of_the_run_is_refused(finished: Finished, x: np.ndarray, message: str):
    with pytest.raises(KithkinError, match=message):
        kithkin.load(finished("um")).client(0).predict(x)


def test_ask_by_hand():
    """One pixel of 255 is 1 for the network: logits (2, 0) of weights (2, 0), shifted to (2, 1)."""
    build = lambda: nn.Sequential(nn.Flatten(), Dropout(1.0), nn.Linear(1, 2))  # noqa: E731
    network = Network(build, torch.device("cpu"))
    w = torch.tensor([2.0, 0.0, 0.5, 0.0])  # weights, then biases
    plain, passes = ask(network, w, torch.full((1, 1, 1, 1), 255, dtype=torch.uint8), 3, seed=0, shift=torch.tensor([0.0, 1.0]))
    assert plain[0, 0].item() == pytest.approx(1 / (1 + math.exp(1 - 2.5)))
    assert passes[0, 0].item() == pytest.approx(1 / (1 + math.exp(1 - 0.5)))  # everything is dropped but the bias
    answers = Predictions.of(("cat", "dog"), plain, torch.tensor([[0.5, 0.5]]))
    assert (answers.classes, answers.probability[0]) == (["cat"], pytest.approx(0.81757, abs=1e-5))
    assert answers.entropy[0] == pytest.approx(math.log(2))


def test_every_pass_has_a_mask_of_its_own_that_all_pictures_share():
    network = Network(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 2)), torch.device("cpu"))
    x, w = exam_of(0)[0][:3], dice.uniform(torch.tensor(0), 130) / 5 - 0.1
    seen, expected = torch.from_numpy(x).flatten(1) / 127.5 - 1, torch.zeros(3, 2)
    for key in rng.key(4, "predict") + torch.arange(5):
        kept = dice.bytes_(key[None] ^ rng.key("dropout layer", 0), 64) >= 128
        expected += (2 * seen * kept @ w[:128].view(2, 64).T + w[128:]).softmax(1) / 5
    torch.testing.assert_close(ask(network, w, torch.from_numpy(x), 5, seed=4)[1], expected)


def test_several_models_answer_with_their_mean_by_the_seed_of_their_run(finished: Finished):
    run, x = kithkin.load(finished("mix")), exam_of(2)[0]
    client = replace(run, config=replace(run.config, seed=7)).client(2)
    asked = [ask(run.network, w, torch.from_numpy(x), 3, 7) for w in client.weights]
    plain, passes = (torch.stack(parts).mean(0) for parts in zip(*asked, strict=True))
    answers = client.predict(x, passes=3)
    assert answers.probabilities == pytest.approx(plain.numpy(), abs=1e-6)
    assert answers.entropy == pytest.approx(entropy(passes).numpy(), abs=1e-6)
    assert len(asked) == 3


def test_a_line_of_a_picture_by_hand():
    p, h = np.array([[0.75, 0.25], [0.125, 0.875]]), np.array([0.5, 0.25])
    lines = [{"class": "cat", "probability": 0.75, "entropy": 0.5}, {"class": "dog", "probability": 0.875, "entropy": 0.25}]
    assert Predictions(("cat", "dog"), p, h).rows() == lines
    votes = [{"vote": "dog", "vote_probability": 0.625}, {"vote": "cat", "vote_probability": 1.0}]
    together = Vote(np.array([[0.375, 0.625], [1.0, 0.0]]), None)
    assert Predictions(("cat", "dog"), p, h, together).rows() == [a | b for a, b in zip(lines, votes, strict=True)]
    single = replace(together, who=np.array([7, 4]))
    assert [row["vote_of"] for row in Predictions(("cat", "dog"), p, h, single).rows()] == [7, 4]


def test_there_are_as_many_passes_as_the_run_took(finished: Finished):
    assert [kithkin.load(finished(method)).passes for method in ("um", "fixbn")] == [2, 10]


def test_votes_by_hand():
    """um takes the least uncertain answer; with evidence all are weighed: (0.5*6*0.9 + 1*1*0.2) / 4 = 0.725."""
    answers = [torch.tensor([[0.9, 0.1]]), torch.tensor([[0.2, 0.8]])]
    w = torch.zeros(1)
    least = cast_votes([(Helper(7, 1, w), 0.5), (Helper(4, 1, w), 1.0)], answers)
    assert (least.probabilities[0, 0], least.who) == (pytest.approx(0.9), [7])
    both = cast_votes([(Helper(7, 1, w, evidence=6), 0.5), (Helper(4, 1, w, evidence=1), 1.0)], answers)
    assert (both.probabilities[0, 0], both.who) == (pytest.approx(0.725), None)


@pytest.mark.parametrize("method", ["um", "um-plus"])
def test_helpers_vote(finished: Finished, method: str):
    client = kithkin.load(finished(method)).client(1)
    listed = json.loads((finished(method) / "clients.jsonl").read_text().splitlines()[1])["helpers"]
    assert [(h.client, relation) for h, relation in client.helpers] == [(h["client"], h["relation"]) for h in listed]
    votes = client.predict(exam_of(1)[0], vote=True).vote
    assert votes
    shift = client.run.models.shift(1)
    asked = [ask(client.run.network, h.w, torch.from_numpy(exam_of(1)[0]), 2, 0, shift)[1] for h, _ in client.helpers]
    assert votes.probabilities == pytest.approx(cast_votes(client.helpers, asked).probabilities, abs=1e-6)
    assert (votes.who is None) == (shift is not None) == (method == "um-plus")
    if votes.who is not None:
        assert set(votes.who) <= {h["client"] for h in listed}


@pytest.mark.parametrize("method", ["local", "fixbn"])
def test_who_has_no_helpers_says_so(finished: Finished, method: str):
    with pytest.raises(KithkinError, match=f"no helpers: method {method}"):
        kithkin.load(finished(method)).client(1).predict(exam_of(1)[0], vote=True)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two digits, and all that a folder may hold beside them."""
    folder = tmp_path / "pictures"
    (folder / "deep" / ".cache").mkdir(parents=True)
    x, _ = exam_of(3)
    Image.fromarray(x[0, 0]).save(folder / "a.png")
    Image.fromarray(x[1, 0]).save(folder / "deep" / "b.png")
    Image.fromarray(x[1, 0]).save(folder / "deep" / ".cache" / "b.png")
    Image.fromarray(np.stack([x[0, 0]] * 3, -1)).save(folder / "colour.png")
    Image.fromarray(x[0, 0].repeat(2, 0)).save(folder / "tall.png")
    Image.fromarray(x[0, 0].astype(np.uint16) * 257).save(folder / "deep.tif")
    (folder / "broken.png").write_bytes((folder / "a.png").read_bytes()[:40])
    (folder / "note.txt").write_text("no picture")
    return folder


def test_what_is_no_picture_is_named_and_skipped_and_the_exit_code_tells(finished: Finished, pictures: Path, kith: Any):
    np.savez("more.npz", images=exam_of(3)[0][:3])
    np.savez("wide.npz", images=np.zeros((2, 8, 9), np.uint8))
    words = ("predict", finished("um"), "--client", 3, pictures, "more.npz", "wide.npz", "nowhere.png", "--format", "csv")
    code, out, err = kith(*words)
    assert code == 3
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["picture"] for row in rows] == [
        str(pictures / "a.png"), str(pictures / "deep" / "b.png"), "more.npz[0]", "more.npz[1]", "more.npz[2]",
    ]  # fmt: skip
    answers = kithkin.load(finished("um")).client(3).predict(exam_of(3)[0][:3])
    assert [row["class"] for row in rows[2:]] == answers.classes
    assert [float(row["entropy"]) for row in rows[2:]] == pytest.approx(answers.entropy, abs=1e-4)
    assert rows[0]["probability"] == rows[2]["probability"]
    skipped = [line for line in err.splitlines() if line.startswith("skipped: ")]
    assert len(skipped) == 7
    for name, why in (
        ("colour.png", "colour picture"),
        ("tall.png", "16x8 pixels"),
        ("deep.tif", "more than 8 bits"),
        ("broken.png", "cannot be read"),
        ("note.txt", "cannot be read"),
        ("wide.npz", "8x9 grey"),
        ("nowhere.png", "no nowhere.png"),
    ):
        assert any(name in line and why in line for line in skipped)


def test_a_grey_file_is_read_with_colours_where_the_run_has_them(pictures: Path):
    grey, colour = read_pictures([pictures / "a.png", pictures / "colour.png"], (3, 8, 8)).images
    assert np.array_equal(grey, colour)


def test_a_folder_that_is_named_is_read_though_it_is_hidden(pictures: Path):
    hidden = pictures.rename(pictures.with_name(".pictures"))
    assert read_pictures([hidden], (1, 8, 8)).names == [str(hidden / "a.png"), str(hidden / "deep" / "b.png")]


def test_json_has_every_class_and_a_file_is_written_whole(finished: Finished, pictures: Path, kith: Any):
    words = ("predict", finished("um-plus"), pictures / "a.png", "--client", 3, "--vote", "--format", "json")
    code, out, _ = kith(*words)
    (row,) = json.loads(out)
    assert code == 0
    assert list(row["probabilities"]) == list("0123456789")
    assert row["probability"] == max(row["probabilities"].values()) == row["probabilities"][row["class"]]
    assert row["vote"] in row["probabilities"]
    assert kith(*words, "--out", "answers.json")[:2] == (0, "answers.json\n")
    assert json.loads(Path("answers.json").read_text()) == [row]
    for nowhere in ("no/where/answers.json", "."):
        code, _, err = kith(*words, "--out", nowhere)
        assert (code, f"Cannot write {nowhere}: " in err) == (2, True)


@pytest.mark.parametrize("format", ["csv", "json", "table"])
@pytest.mark.skipif(sys.platform != "linux", reason="Other systems have no such names")
def test_a_name_that_is_no_text_is_written_as_what_it_is(finished: Finished, pictures: Path, kith: Any, format: str):
    name = os.fsdecode(b"\xff.png")
    (pictures / "a.png").rename(pictures / name)
    words = ("predict", finished("um"), pictures / name, "--client", 3, "--format", format, "--out", "answers")
    assert kith(*words)[:2] == (0, "answers\n")
    assert "udcff.png" in Path("answers").read_text()


def test_the_table_names_pictures_and_classes(finished: Finished, pictures: Path, kith: Any):
    code, out, _ = kith("predict", finished("fixbn"), "--client", 3, pictures / "a.png")
    assert code == 0
    assert "a.png" in out
    assert "entropy" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--client", "3", "pictures/note.txt"], "No picture is left to look at. Give 8x8 grey pictures"),
        (["--client", "6", "pictures/a.png"], "There is no client 6"),
        (["pictures/a.png"], "No client is named. Give --client from 0 to 5"),
        (["--client", "3", "--passes", "0", "pictures/a.png"], "0 dropout passes"),
        (["--client", "3"], "No picture is named"),
    ],
)
@pytest.mark.usefixtures("pictures")
def test_mistakes_end_with_a_remedy(finished: Finished, kith: Any, words: list[str], message: str):
    code, _, err = kith("predict", finished("um"), *words)
    assert code == 2
    assert message in err


def test_folders_that_cannot_answer_say_why(finished: Finished, tmp_path: Path):
    with pytest.raises(KithkinError, match="no run"):
        kithkin.load(tmp_path)
    copy = shutil.copytree(finished("um"), tmp_path / "run")
    manifest = json.loads((copy / "manifest.json").read_text())
    x, _ = exam_of(0)
    old = {k: v for k, v in manifest.items() if k not in ("classes", "picture")}
    (copy / "manifest.json").write_text(json.dumps(old))
    assert np.array_equal(
        kithkin.load(copy).client(0).predict(x).label, kithkin.load(finished("um")).client(0).predict(x).label
    )
    (copy / "manifest.json").write_text(json.dumps({**manifest, "config": {**manifest["config"], "width": 3}}))
    with pytest.raises(KithkinError, match="another network"):
        kithkin.load(copy).client(0).predict(x)
    (copy / "manifest.json").write_text(json.dumps({"classes": ["a"]}))
    with pytest.raises(KithkinError, match="not of this version"):
        kithkin.load(copy)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    (copy / "models.safetensors").write_bytes((copy / "models.safetensors").read_bytes()[:1000])
    with pytest.raises(KithkinError, match="cannot be read"):
        kithkin.load(copy)
    (copy / "models.safetensors").unlink()
    with pytest.raises(KithkinError, match=r"kithkin resume .* once there is no summary"):
        kithkin.load(copy)
    (copy / "summary.json").unlink()
    with pytest.raises(KithkinError, match=r"is not finished, and has no models yet\. `kithkin resume"):
        kithkin.load(copy)


@pytest.mark.parametrize("format", ["table", "csv", "json"])
def test_names_of_a_folder_from_elsewhere_command_no_terminal(finished: Finished, pictures: Path, kith: Any, format: str):
    run = pictures.parent / "from-elsewhere"
    shutil.copytree(finished("um"), run)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest |= {"classes": [f"\x1b[31m{c}\x9b\x7f\r" for c in range(10)], "client_names": ["\x1b]0;north\x07"] * 6}
    (run / "manifest.json").write_text(json.dumps(manifest))
    told = [*kith("predict", run, pictures, "--client", 1, "--format", format), *kith("predict", run, pictures)[1:]]
    said = "".join(map(str, told))
    assert not set("\x1b\x9b\x7f\r\x07") & set(said)
    assert "x1b[31m" in said
    assert r"or a name such as \x1b]0;north\x07." in said


def test_a_client_is_found_by_name_or_number_and_a_name_comes_first(finished: Finished, tmp_path: Path):
    copy = shutil.copytree(finished("um"), tmp_path / "run")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["client_names"] = ["2", "3", "17", "north", "4", "north"[::-1]]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    run = kithkin.load(copy)
    whom = {"17": 2, 2: 2, "north": 3, "0": 0, "1": 1, "2": 0, "3": 1, "4": 4, "5": 5, 17: None, "6": None, "-1": None}
    for who, number in whom.items():
        if number is None:
            with pytest.raises(KithkinError, match=f"There is no client {who}"):
                run.client(who)
        else:
            assert run.client(who).number == number, who
