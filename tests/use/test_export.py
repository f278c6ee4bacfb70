"""`kithkin export`: one file that answers as the model does, with all that is needed to ask it inside."""

from __future__ import annotations

import io
import json
import logging
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from tiny_runs import flags
from torch import Tensor

import kithkin
from kithkin.compute.loss import centred, scaled
from kithkin.errors import KithkinError
from kithkin.use import exporting
from kithkin.use.exporting import Answering, read_exported

Finished = Callable[[str], Path]
PICTURES = np.random.default_rng(7).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)


def with_torch(file: Path) -> tuple[np.ndarray, dict[str, Any]]:
    extra = {"kithkin.json": ""}
    program = torch.export.load(io.BytesIO(file.read_bytes()), extra_files=extra)
    alone = program.module()(torch.from_numpy(PICTURES[:1]))
    answers = program.module()(torch.from_numpy(PICTURES)).numpy()
    assert alone.numpy() == pytest.approx(answers[:1], abs=1e-6)
    return answers, json.loads(extra["kithkin.json"])


def with_onnx(file: Path) -> tuple[np.ndarray, dict[str, Any]]:
    session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["kithkin"])
    (given,), (wanted,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, given.shape[1:]) == ("pictures", "tensor(uint8)", about["input"]["shape"][1:])
    assert (wanted.name, wanted.shape[1:]) == ("probabilities", about["output"]["shape"][1:])
    return session.run(None, {"pictures": PICTURES})[0], about


def with_safetensors(file: Path) -> tuple[np.ndarray, dict[str, Any]]:
    with safe_open(file, "pt") as opened:
        about = json.loads(opened.metadata()["kithkin"])
    return read_exported(file)(torch.from_numpy(PICTURES)).numpy(), about


READ = {"torch-export": with_torch, "onnx": with_onnx, "safetensors": with_safetensors}


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's own reader of .pt2 files
@pytest.mark.parametrize(("format", "method"), [("torch-export", "um"), ("onnx", "um"), ("safetensors", "mix")])
def test_the_file_alone_answers_as_the_client(finished: Finished, kith: Any, format: str, method: str):
    code, out, _ = kith("export", finished(method), "--client", 2, "--format", format, "--out", "model")
    assert code == 0
    assert "of the model" in out
    answers, about = READ[format](Path("model"))
    assert answers == pytest.approx(kithkin.load(finished(method)).client(2).predict(PICTURES).probabilities, abs=1e-5)
    assert about["classes"] == list("0123456789")
    assert about["input"] == {"name": "pictures", "type": "uint8", "shape": ["N", 1, 8, 8]}
    pictures = torch.from_numpy(PICTURES)
    torch.testing.assert_close(eval(about["preprocessing"], {"pictures": pictures}), centred(scaled(pictures)))
    assert (about["client"], about["models"], about["trained"]["method"]) == (2, 3 if method == "mix" else 1, method)
    assert [p.name for p in Path().iterdir()] == ["model"]
    assert logging.getLogger("torch.onnx").level == logging.NOTSET, "hushed only for as long as it takes"


def test_height_comes_before_width(finished: Finished):
    client = replace(kithkin.load(finished("um")), picture=(1, 8, 12)).client(2)
    assert exporting.describe(client)["input"]["shape"] == ["N", 1, 8, 12]


def test_left_out_the_file_is_named_after_the_client(finished: Finished, kith: Any):
    assert kith("export", finished("um"), "--client", 4)[1].startswith("client-4.safetensors ")
    assert Path("client-4.safetensors").exists()


@pytest.mark.parametrize("spoil", [lambda p: p.roll(1, 1), lambda p: p * math.nan], ids=["other classes", "no numbers"])
def test_a_file_that_answers_otherwise_is_not_kept(spoil: Any, finished: Finished, kith: Any, monkeypatch: pytest.MonkeyPatch):
    class Wrong(Answering):
        def forward(self, pictures: Tensor) -> Tensor:
            return spoil(super().forward(pictures))

    monkeypatch.setattr(exporting, "Answering", Wrong)
    Path("model").write_text("what was there before")
    code, _, err = kith("export", finished("um"), "--client", 2, "--out", "model")
    assert code == 2
    assert "answers otherwise" in err
    assert Path("model").read_text() == "what was there before"


def test_without_onnx_it_says_what_to_install(finished: Finished, kith: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name == "onnxscript" else sys)
    code, _, err = kith("export", finished("um"), "--client", 2, "--format", "onnx")
    assert code == 2
    assert "onnxscript must be installed. `pip install 'kithkin[export]'`" in err


def test_a_network_that_cannot_be_traced_is_told(finished: Finished, kith: Any, monkeypatch: pytest.MonkeyPatch):
    class Branching(Answering):
        def forward(self, pictures: Tensor) -> Tensor:
            return super().forward(pictures) if pictures.float().sum() > 3 else super().forward(pictures * 2)

    monkeypatch.setattr(exporting, "Answering", Branching)
    code, _, err = kith("export", finished("um"), "--client", 2, "--format", "torch-export")
    assert code == 2
    assert "cannot be traced" in err
    assert not list(Path().iterdir())


def test_what_was_not_exported_is_not_read(finished: Finished, tmp_path: Path):
    (tmp_path / "text").write_text("no tensors")
    for path in (tmp_path / "none", tmp_path / "text", finished("um") / "models.safetensors"):
        with pytest.raises(KithkinError, match="no exported model"):
            read_exported(path)


NET = """
from torch import nn

def net(channels, classes, size):
    pixels = channels * size[0] * size[1]
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, classes))
"""


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_ones_own_network_answers_and_leaves_the_house_too(kith: Any, tmp_path: Path):
    Path("nets.py").write_text(NET)
    Path("mine.py").write_text("from kithkin.methods import METHODS\nUM = METHODS['um']\n")
    kithkin.run("run", **flags("um", model="nets:net") | {"method": "mine:UM"})
    client = kithkin.load("run").client(1)
    expected = client.predict(PICTURES, vote=True).probabilities
    for format in ("torch-export", "onnx"):
        assert kith("export", "run", "--client", 1, "--format", format, "--out", "model")[0] == 0
        answers, about = READ[format](Path("model"))
        assert answers == pytest.approx(expected, abs=1e-4)
        assert about["trained"]["method"] == "mine:UM", "no path leaves the house"
    assert kith("export", "run", "--client", 1, "--out", "model")[0] == 0
    answers = read_exported(Path("model"), client.run.build)(torch.from_numpy(PICTURES)).numpy()
    assert answers == pytest.approx(expected, abs=1e-4)
    with pytest.raises(KithkinError, match="holds the network nets:net"):
        read_exported(Path("model"))
    code, out, _ = kith(
        "newcomer", "run", "--data", "digits", "--label-ratio", "0.1", "--rounds", "1", "--epochs", "1", "--out", "new"
    )
    assert (code, "gain" in out) == (0, True)
    assert kith("advise", "run", "--client", 1, "--budget", "2", "--out", "wanted")[0] == 0
