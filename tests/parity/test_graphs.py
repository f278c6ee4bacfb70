"""Captured graphs give the reference's run: fp32 to the bit or nearly, bf16 in accuracy. Needs a CUDA device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from kithkin import dice
from kithkin.cli import settle
from kithkin.compute import Fit, Lesson, Predict, Recipe, choose
from kithkin.methods import METHODS
from kithkin.nets import ResNet9, initial_vector
from kithkin.record import Result, run

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


@pytest.mark.parametrize("passes", [0, 4])
@pytest.mark.parametrize("n", [0, 1, 256, 300])
def test_a_prediction_is_the_same_whatever_the_padding(passes: int, n: int):
    eager, graphs = computes()
    jobs = [Predict(initial_vector(build, k).cuda(), pictures(), torch.arange(n).cuda(), passes, 7) for k in range(3)]
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


def test_bf16_learns_as_well(tmp_path: Path):
    runs = [
        small_run(tmp_path / f"{p}{s}", method="fedavg-sl", compute="graphs", precision=p, rounds=8, epochs=5, width=8, seed=s)
        for p in ("fp32", "bf16")
        for s in (0, 1, 2)
    ]
    tests = torch.tensor([r.summary["test_at_best_val"] for r in runs]).view(2, 3)
    spread = float(tests[0].max() - tests[0].min())
    assert abs(float(tests[0].mean() - tests[1].mean())) <= max(spread, 0.03)
