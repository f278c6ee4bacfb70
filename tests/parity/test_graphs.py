"""Captured graphs give the reference's run: fp32 to the bit or nearly, bf16 in accuracy. Needs a CUDA device."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import kithkin.compute.graphs
import kithkin.nets.fast
import kithkin.nets.vector
from kithkin import dice
from kithkin.compute import Fit, Lesson, Predict, Recipe, choose
from kithkin.flags import settle
from kithkin.methods import METHODS
from kithkin.nets import ResNet9, initial_vector
from kithkin.record import Result, resume, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
RECIPES = {
    "alternate": Recipe("alternate", 2, 32, 0.01),
    "weighted": Recipe("weighted", 2, 32, 0.01),
    "fixmatch": Recipe("fixmatch", 2, 32, 0.01, threshold=0.1, flip=True),
    "proximal": Recipe("fixmatch", 1, 32, 0.01, prox=1.0, threshold=0.1),
    "moreau": Recipe("fixmatch", 1, 32, 0.01, prox=15.0, inner_steps=3, anchor_rate=0.1, momentum=0.0, threshold=0.1),
}


def build() -> ResNet9:
    return ResNet9(3, 10, 8)


def computes(precision: Any = "fp32") -> tuple[Any, Any]:
    device = torch.device("cuda")
    return choose("eager", build, device, 10, "fp32"), choose("graphs", build, device, 10, precision)


def pictures() -> torch.Tensor:
    return dice.bytes_(torch.arange(300), 3 * 16 * 16).view(300, 3, 16, 16).cuda()


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
@pytest.mark.parametrize(("labelled", "unlabelled"), [(70, 50), (70, 0), (0, 50), (1, 3)])
def test_a_fit_is_the_same_on_every_lane(recipe: Recipe, labelled: int, unlabelled: int):
    eager, graphs = computes()
    images, w = pictures(), initial_vector(build, 0).cuda()
    rows = torch.arange(300).cuda()
    targets = torch.softmax(dice.uniform(rows, 10) * 5, 1)
    jobs = [
        Fit(
            w,
            Lesson(images, rows[k : k + labelled], rows[:labelled] % 10, rows[-unlabelled or 300 :], targets[:unlabelled]),
            recipe,
            k,
        )
        for k in range(12)  # more than there are lanes
    ]
    for mine, theirs in zip(graphs.work(jobs), eager.work(jobs), strict=True):
        torch.testing.assert_close(mine.w, theirs.w, rtol=0, atol=1e-5)
        torch.testing.assert_close(mine.anchor, theirs.anchor, rtol=0, atol=1e-5)
        torch.testing.assert_close(mine.loss, theirs.loss, rtol=0, atol=1e-5)
        assert (mine.p_u is None) == (recipe.objective != "fixmatch" or not unlabelled)
        torch.testing.assert_close(mine.p_u, theirs.p_u, rtol=0, atol=1e-4)


@pytest.mark.parametrize("passes", [0, 4])
@pytest.mark.parametrize("n", [0, 1, 256, 300])
def test_a_prediction_is_the_same_whatever_the_padding(passes: int, n: int):
    eager, graphs = computes()
    models, images = [initial_vector(build, k).cuda() for k in range(3)], pictures()
    plain = [Predict(w, images, torch.arange(n).cuda(), passes, 7 + k) for k, w in enumerate(models * 2)]
    shifts = torch.arange(60.0).view(6, 10).cos().cuda()
    jobs = [*plain, *(replace(job, shift=shift) for job, shift in zip(plain, shifts, strict=True))]
    for mine, theirs in zip(graphs.work(jobs), eager.work(jobs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def small_run(out: Path, **flags: Any) -> Result:
    small = {"clients": 6, "rounds": 2, "epochs": 1, "width": 4, "alpha": 5.0, "device": "cuda"}
    config, settings = settle({**small, **flags})
    return run(config, settings, out)


@pytest.mark.parametrize("method", METHODS)
def test_two_rounds_of_every_method_give_the_same_models(method: str, tmp_path: Path):
    few = {
        "um": {"helpers": 3, "warmup_epochs": 1},
        "um-plus": {"helpers": 3, "warmup_epochs": 1},
        "local": {"warmup_epochs": 1},
        "lg-fedavg": {"fedavg_rounds": 1},
    }
    for compute in ("eager", "graphs"):
        small_run(tmp_path / compute, method=method, compute=compute, precision="fp32", **few.get(method, {}))
    eager, graphs = (load_file(tmp_path / compute / "models.safetensors") for compute in ("eager", "graphs"))
    assert eager.keys() == graphs.keys()
    for name, w in eager.items():
        torch.testing.assert_close(graphs[name], w, rtol=0, atol=1e-5)


def test_a_pool_in_host_memory_gives_the_same_models(tmp_path: Path):
    few = {"method": "um", "helpers": 3, "warmup_epochs": 1, "precision": "fp32", "rounds": 4}
    for pool in ("device", "host"):
        small_run(tmp_path / pool, pool=pool, **few)
    device, host = (load_file(tmp_path / pool / "models.safetensors") for pool in ("device", "host"))
    for name, w in device.items():
        torch.testing.assert_close(host[name], w, rtol=0, atol=1e-5)


def test_a_run_with_a_host_pool_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    few = {"method": "um", "helpers": 3, "warmup_epochs": 1, "pool": "host", "rounds": 4, "checkpoint_every": 1}
    small_run(tmp_path / "whole", **few)
    module = importlib.import_module("kithkin.record.run")
    monkeypatch.setattr(module, "finish", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        small_run(tmp_path / "broken", **few)
    monkeypatch.undo()
    resume(tmp_path / "broken")
    whole, broken = (load_file(tmp_path / name / "models.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(broken[name], w) for name, w in whole.items())


class Asking(nn.Module):
    """A network that asks the host in the middle: no graph can hold that."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1)) * (2.0 if float(x.mean()) > 0 else 1.0)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_network_that_cannot_be_captured_is_left_to_the_reference(precision: Any):
    graphs: Any = choose("graphs", Asking, torch.device("cuda"), 10, precision)
    said: list[str] = []
    graphs.say = said.append
    w, rows = initial_vector(Asking, 0).cuda(), torch.arange(40).cuda()
    fit = Fit(w, Lesson(pictures(), rows, rows % 10, rows[:0]), RECIPES["alternate"], 3)
    for job in (fit, Predict(w, pictures(), rows)):
        mine, theirs = graphs.work([job])[0], choose("eager", Asking, torch.device("cuda"), 10, "fp32").work([job])[0]
        torch.testing.assert_close(getattr(mine, "w", mine), getattr(theirs, "w", theirs))
    assert len(said) == 1
    assert "cannot be captured" in said[0]


def test_without_triton_bf16_goes_on_and_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kithkin.compute.graphs, "why_not", lambda: "no C compiler")
    monkeypatch.setattr(kithkin.nets.vector, "why_not", lambda: "no C compiler")
    monkeypatch.setattr(kithkin.nets.fast, "why_not", lambda: "no C compiler")
    eager, graphs = computes("bf16")
    said: list[str] = []
    graphs.say = said.append
    w, rows = initial_vector(build, 0).cuda(), torch.arange(70).cuda()
    job = Fit(w, Lesson(pictures(), rows, rows % 10, rows[:0]), RECIPES["alternate"], 3)
    mine, theirs = graphs.work([job])[0], eager.work([job])[0]
    assert float((mine.w - theirs.w).norm() / (theirs.w - w).norm()) < 0.2
    assert ["no C compiler" in line for line in said] == [True]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_bf16_follows_the_reference(recipe: Recipe):
    """With the fused kernels: the way from the start to the end of a fit differs by what bfloat16 rounds off."""
    eager, graphs = computes("bf16")
    w, rows = initial_vector(build, 0).cuda(), torch.arange(300).cuda()
    targets = torch.softmax(dice.uniform(rows, 10) * 5, 1)
    job = Fit(w, Lesson(pictures(), rows[:70], rows[:70] % 10, rows[-50:], targets[:50]), replace(recipe, epochs=1), 3)
    mine, theirs = graphs.work([job])[0], eager.work([job])[0]
    assert float((mine.w - theirs.w).norm() / (theirs.w - w).norm()) < 0.25
    assert mine.loss.item() == pytest.approx(theirs.loss.item(), rel=0.02)


def test_bf16_learns_as_well(tmp_path: Path):
    runs = [
        small_run(tmp_path / f"{p}{s}", method="fedavg-sl", compute="graphs", precision=p, rounds=8, epochs=5, width=8, seed=s)
        for p in ("fp32", "bf16")
        for s in (0, 1, 2)
    ]
    tests = torch.tensor([r.summary["test_at_best_val"] for r in runs]).view(2, 3)
    spread = float(tests[0].max() - tests[0].min())
    assert abs(float(tests[0].mean() - tests[1].mean())) <= max(spread, 0.03)
