"""What is seen of trained models agrees with what they answer."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kithkin.compute import Eager, Predict
from kithkin.federation import Exam
from kithkin.nets import ResNet9
from kithkin.paper.looks import _mean_of_best, rank_correlation
from kithkin.record import looks
from kithkin.record.looks import hidden_features


def test_hidden_features_are_what_the_last_layer_decides_by():
    compute = Eager(partial(ResNet9, 1, 3, 2), torch.device("cpu"))
    network = compute.network
    images = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8)
    w = network.w.clone()
    latent = torch.from_numpy(hidden_features(network, images))
    assert latent.shape == (20, 8)
    assert (latent >= 0).all()
    head = network.module.head
    assert not head._forward_pre_hooks, "nothing is kept of what it sees later"
    (p,) = compute.work([Predict(w, images, torch.arange(20))])
    assert torch.allclose(head(latent).softmax(1), p, atol=1e-6)


def test_features_are_seen_by_the_client_that_validates_best_and_keep_their_class_and_owner(monkeypatch: pytest.MonkeyPatch):
    """Client 0 is right on 1 of 1, (1 + 1) / (2 + 1) with a prior; client 1 on 9 of 10, (1 + 9) / (2 + 10), which is more."""
    truth, right = torch.arange(24) % 3, {0: torch.tensor([True]), 1: torch.arange(10) > 0}
    rows = [torch.cat([torch.tensor([3]), torch.arange(10, 16)]), torch.cat([torch.arange(10), torch.arange(16, 24)])]
    exams = [Exam(at, truth[at], len(right[k])) for k, at in enumerate(rows)]
    models = [[torch.full((195,), float(k))] for k in range(2)]

    def work(jobs: list[Predict]) -> list[torch.Tensor]:
        classes = [torch.where(right[k], truth[job.rows], (truth[job.rows] + 1) % 3) for k, job in enumerate(jobs)]
        return [torch.nn.functional.one_hot(c, 3).float() for c in classes]

    seen: list[Any] = []

    def hidden(network: Any, pictures: torch.Tensor) -> np.ndarray:
        seen.append((float(network.w[0]), pictures[:, 0, 0, 0].tolist()))
        return np.random.default_rng(0).random((len(pictures), 4), np.float32)

    monkeypatch.setattr(looks, "hidden_features", hidden)
    monkeypatch.setattr(looks, "POINTS", 7)
    images = torch.arange(24, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8)
    federation: Any = SimpleNamespace(
        courier=SimpleNamespace(exams=exams, compute=SimpleNamespace(work=work)),
        clients=[SimpleNamespace(images=images)],
        config=SimpleNamespace(seed=0),
        device=torch.device("cpu"),
        build=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)),
    )
    told = looks.features(federation, models)
    ((whose, pictures),) = seen
    assert (told["model_of"], whose) == (1, 1.0)
    assert len(told["x"]) == len(pictures) == 7
    assert told["class"] == [at % 3 for at in pictures]
    assert told["client"] == [0 if at < 16 else 1 for at in pictures]
    assert set(told["client"]) == {0, 1}


def test_the_best_others_are_averaged_and_never_oneself():
    true = np.array([[1.0, 0.2, 0.4], [0.6, 1.0, 0.8], [0.0, 0.5, 1.0]])
    by = np.array([[9.0, 1.0, 2.0], [3.0, 9.0, 1.0], [1.0, 2.0, 9.0]])
    assert _mean_of_best(by, true, 1) == pytest.approx((0.4 + 0.6 + 0.5) / 3, abs=1e-4)
    assert _mean_of_best(true, true, 1) == pytest.approx((0.4 + 0.8 + 0.5) / 3, abs=1e-4)
    assert _mean_of_best(by, true, 2) == pytest.approx((0.3 + 0.7 + 0.25) / 3, abs=1e-4)


@pytest.mark.parametrize(
    ("a", "b", "r"),
    [
        ([1, 2, 9], [0.1, 0.2, 0.3], 1.0),
        ([3, 2, 1], [0.1, 0.2, 0.3], -1.0),
        ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
        ([1, 1, 1], [1, 2, 3], None),
        ([1], [1], None),
    ],
)
def test_rank_correlation_goes_by_order_alone(a: list[float], b: list[float], r: float | None):
    assert rank_correlation(np.array(a), np.array(b)) == r
