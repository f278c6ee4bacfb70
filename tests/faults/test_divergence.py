"""A loss, or an answer, that is not a number stops the run and names the client and the round."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import argv, checkpoints, lines, start

from kithkin.cli import main
from kithkin.errors import KithkinError
from kithkin.federation import DivergedError, cohort
from kithkin.methods.base import Brief, Client, Reply
from kithkin.methods.fedavg import FedAvg


@pytest.mark.parametrize(("method", "where"), [("um", "in the warm-up"), ("fixavg", "in round 1"), ("mix", "in round 1")])
def test_a_learning_rate_that_is_far_too_large_stops_the_run(
    tmp_path: Path, method: str, where: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as caught:
        main([*argv(method, tmp_path / "run", lr=1e30), "--quiet"])
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"error: The loss of client \d {where} is not a number: .* smaller --lr.*\n", err)
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("method", "flags"),
    [
        ("fixavg-ft", {"finetune_lr": 1e30}),
        ("um-plus", {"tune_lr": 1e30}),
        ("fedavg-sl", {"lr": 1e20, "rounds": 1}),
    ],
)
def test_a_model_that_answers_nothing_is_not_judged(tmp_path: Path, method: str, flags: dict[str, Any]):
    """Its answers would count as the first class. In the last step of a visit no loss tells of it."""
    one_step = {"epochs": 1, "batch_size": 1024}
    with pytest.raises(DivergedError, match=r"What the model of client \d answers in round 1 is not a number"):
        start(tmp_path / "run", method, **one_step, **flags)
    assert lines(tmp_path / "run" / "marks.jsonl") == []
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_client_and_the_round_are_named(tmp_path: Path, value: float, monkeypatch: pytest.MonkeyPatch):
    culprit = max(cohort(0, 3, 6, 0.34))
    visit = FedAvg.visit

    async def failing(self: FedAvg, client: Client, state: Any, brief: Brief) -> Reply:
        reply = await visit(self, client, state, brief)
        wrong = (brief.round, client.number) == (3, culprit)
        return replace(reply, loss=torch.tensor(value)) if wrong else reply

    monkeypatch.setattr(FedAvg, "visit", failing)
    with pytest.raises(KithkinError, match=rf"client {culprit} in round 3 "):
        start(tmp_path / "run", "fixavg", checkpoint_every=1)
    assert checkpoints(tmp_path / "run") == ["round-000001", "round-000002"]
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 2
