"""What is seen of trained models agrees with what they answer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from kithkin.compute import Eager, Predict
from kithkin.nets import ResNet9
from kithkin.paper.looks import _mean_of_best, rank_correlation
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
    (p,) = compute.work([Predict(w, images, torch.arange(20))])
    assert torch.allclose(head(latent).softmax(1), p, atol=1e-6)


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
