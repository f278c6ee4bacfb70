"""Over the network a federation is the same run as on one machine: all numbers, all bytes, all helpers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake import Federation, figures, local, terms_of

import kithkin
from kithkin.errors import KithkinError
from kithkin.methods import METHODS, sees_all_labels
from kithkin.network.terms import terms_from

SAME = ("fixprox", "fixbn", "fixavg-ft")  # on the wire as fixavg and fedper are
PLAIN = [name for name, entry in METHODS.items() if not sees_all_labels(entry.settings) and name not in SAME]


@pytest.mark.parametrize("method", PLAIN)
def test_the_same_metrics_helpers_and_counts(method: str, tmp_path: Path):
    """Only exams cost something: what the server adds to a personal model is sent where it is needed."""
    rounds = 3 if method.startswith("um") else 2
    here = local(method, tmp_path / "local", rounds=rounds)
    federation = Federation(tmp_path / "net", method, rounds=rounds)
    there = federation.serve()
    for ours, theirs in zip(figures(there.metrics), figures(here.metrics), strict=True):
        exam = ours["bytes_by_cause"].pop("exam", 0)
        assert ours["down_bytes"] - exam == theirs.pop("down_bytes")
        ours.pop("down_bytes")
        assert ours == theirs
    for name in ("marks", "lists", "audit"):
        pair = [getattr(f, name).read_text() for f in (federation.folder, type(federation.folder)(tmp_path / "local"))]
        assert pair[0] == pair[1], name
    assert there.clients == here.clients


def test_an_exam_moves_the_common_model_and_is_counted(tmp_path: Path):
    federation = Federation(tmp_path, "fixavg", rounds=2, eval_every=2)
    result = federation.serve()
    P = federation.node(0).site.craft.w0.numel()
    assert "exam" not in result.metrics[0]["bytes_by_cause"]
    assert result.metrics[1]["bytes_by_cause"]["exam"] == 3 * P * 4
    assert "exam" not in Federation(tmp_path / "um", "um", rounds=1).serve().summary["bytes_by_cause"]


@pytest.mark.parametrize("wire", ["fp16", "bf16"])
def test_half_the_bytes_for_nearly_the_same_models(wire: str, tmp_path: Path):
    whole, half = (Federation(tmp_path / w, "um", wire=w, rounds=2).serve().summary for w in ("fp32", wire))
    assert {k: v // 2 for k, v in whole["bytes_by_cause"].items()} == half["bytes_by_cause"]


def test_a_mask_travels_without_the_rest(tmp_path: Path):
    """FedPer's head stays at home: it is not in any message of a round."""
    federation = Federation(tmp_path, "fedper", rounds=1)
    sent: list[int] = []
    federation.grid.before = lambda m: sent.extend(
        len(a.data) for a in m.content.array_records.get("models", {}).values() if m.metadata.message_type == "train.round"
    )
    federation.serve()
    method = federation.node(0).site.craft.method
    assert {size - 128 for size in sent} == {4 * method.numbers}  # type: ignore[attr-defined]
    assert method.numbers < federation.node(0).site.craft.w0.numel()  # type: ignore[attr-defined]


def test_a_sites_model_is_used_at_home_as_a_runs_is(tmp_path: Path):
    federation = Federation(tmp_path, "um", rounds=1)
    result = federation.serve()
    site = federation.node(1).site
    held = site.data()
    asked, classes = held.exam.rows[held.exam.val :], held.exam.classes[held.exam.val :]
    client = kithkin.load(site.state).client()
    assert client.number == 1
    answers = client.predict(held.images[asked])
    assert (answers.label == classes.numpy()).mean() == pytest.approx(result.clients[1]["test_accuracy"])
    assert answers.names == federation.terms.classes


@pytest.mark.parametrize("what", ["method", "model"])
def test_a_site_runs_no_code_that_it_is_told_of(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("trap.py").write_text("raise SystemExit('it ran')")
    text = terms_of("um").as_text()
    told = json.loads(text)
    told["config"][what] = "trap:it"
    with pytest.raises(KithkinError, match="trap:it is not of kithkin"):
        terms_from(json.dumps(told))
    assert terms_from(text).config.method == "um"
