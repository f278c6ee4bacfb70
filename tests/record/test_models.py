"""The file of models: the pool costs nothing where personal models are it, and gives back what went in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tiny_runs import COMMON, OWN, lines

from kithkin.errors import KithkinError
from kithkin.federation import cohort
from kithkin.helpers import Helper
from kithkin.methods.base import SERVER
from kithkin.methods.um_plus import bias_of
from kithkin.nets import ResNet9, layout_of
from kithkin.record.models import Models, Pooled, write_models

Whole = Callable[..., Path]
CPU = torch.device("cpu")


def test_what_goes_in_comes_out(tmp_path: Path):
    a, b, c = (torch.full((3,), float(v)) for v in range(3))
    pool = Pooled({4: Helper(4, 7, b, evidence=2), SERVER: Helper(SERVER, 9, c)}, {4: [0.5, -0.5]})
    write_models(tmp_path / "models.safetensors", {4: [a, b], 5: [a]}, pool)
    models = Models(tmp_path / "models.safetensors", CPU)
    assert {k: [w.tolist() for w in models.personal(k)] for k in models.clients} == {4: [[0] * 3, [1] * 3], 5: [[0] * 3]}
    assert models.pooled == [4, SERVER]
    helper = models.helper(4)
    assert (helper.client, helper.version, helper.evidence, helper.w.tolist()) == (4, 7, 2, [1] * 3)
    assert helper.w is models.personal(4)[1]
    shift = models.shift(4)
    assert shift is not None
    assert shift.tolist() == [0.5, -0.5]
    assert models.shift(5) is None


@pytest.mark.parametrize("told", [None, {"format": "pt"}, {"clients": "{"}, {"clients": "[]"}, {"pool": "{}"}])
def test_another_file_of_tensors_is_refused(tmp_path: Path, told: dict[str, str] | None):
    save_file({"0": torch.zeros(3)}, tmp_path / "models.safetensors", told)
    with pytest.raises(KithkinError, match="does not say whose its models are"):
        Models(tmp_path / "models.safetensors", CPU)


def test_the_pool_of_um_is_its_personal_models(whole: Whole):
    models = Models(whole("um") / "models.safetensors", CPU)
    assert models.pooled == list(range(6))
    assert all(models.helper(k).w is models.personal(k)[0] for k in range(6))
    for line in lines(whole("um") / "clients.jsonl"):
        own = next(h for h in line["helpers"] if h["client"] == line["client"])
        assert models.helper(line["client"]).version == own["version"]


@pytest.mark.parametrize("method", ["local", "fixbn", "mix"])
def test_others_keep_no_pool(whole: Whole, method: str):
    with safe_open(whole(method) / "models.safetensors", "pt") as file:
        assert list(file.metadata()) == ["clients"]


def test_um_plus_keeps_its_common_model_and_every_prior(whole: Whole):
    """Without a pass before evaluation, a personal model is the common one with the client's log prior in its last bias."""
    folder = whole("um-plus", **OWN["um"], tune_epochs=0)
    models = Models(folder / "models.safetensors", CPU)
    assert models.pooled == [*range(6), SERVER]
    width = json.loads((folder / "manifest.json").read_text())["config"]["width"]
    bias = bias_of(layout_of(ResNet9(1, 10, width)))
    clients = lines(folder / "clients.jsonl")
    common, last = models.helper(SERVER), cohort(0, COMMON["rounds"], list(range(6)), COMMON["sample_rate"])
    assert (common.version, common.evidence) == (4, sum(clients[k]["labelled"] for k in last))
    for line in clients:
        k = line["client"]
        assert models.helper(k).evidence == line["labelled"]
        w, shift = models.helper(SERVER).w.clone(), models.shift(k)
        assert shift is not None
        w[bias] += shift
        assert torch.allclose(w, models.personal(k)[0], atol=1e-6)
