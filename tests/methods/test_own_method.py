"""The method of examples/momentum.py, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scripted import SETTING

from kithkin.flags import of_single_methods
from kithkin.methods import Parcel, Reply, entry_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "momentum.py"


def test_it_moves_as_its_equation_says():
    """v <- beta v + (mean - w), w <- w + v; norm statistics are the mean's."""
    entry = entry_of(f"{EXAMPLE}:FEDAVGM")
    method = entry.make(type(entry.settings)(push=0.5), SETTING)
    size, trained = SETTING.layout.size, SETTING.layout.trained

    def upload(k: int, w: float, examples: int) -> Reply:
        return Reply(None, (Parcel("upload", k, 1, torch.full((size,), w), size),), examples)

    server = method.open(2, torch.zeros(size))
    server = method.merge(server, {0: upload(0, 1.0, 3), 1: upload(1, 5.0, 1)}, 1)  # the mean is 2
    assert server.w.unique().item() == 2
    server = method.merge(server, {0: upload(0, 3.0, 1)}, 2)  # v = 0.5 * 2 + (3 - 2)
    assert server.w[:trained].unique().item() == 4
    assert server.w[trained:].unique().item() == 3
    server = method.merge(server, {0: upload(0, 9.0, 0)}, 3)  # nobody learnt anything: it rolls on, v = 0.5 * 2
    assert server.w[:trained].unique().item() == 5
    assert server.w[trained:].unique().item() == 3


@pytest.mark.parametrize("words", [["--methods", "um", "OWN"], ["--methods=OWN"], ["--out", "x", "--methods=OWN", "--quiet"]])
def test_a_comparison_has_its_settings(words: list[str]):
    own = of_single_methods([word.replace("OWN", f"{EXAMPLE}:FEDAVGM") for word in words])
    assert "push" in own.__annotations__
    assert "push" not in of_single_methods(["--methods", "um"]).__annotations__


def test_it_is_under_forty_lines():
    assert len(EXAMPLE.read_text().splitlines()) < 40
