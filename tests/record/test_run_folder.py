"""What a finished run's folder holds: every field, of its type, and all of them agreeing with each other."""

from __future__ import annotations

import errno
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from tiny_runs import COMMON, RUN, Heard, assert_same_run, checkpoints, drafts, flags, lines, record, start, weights

import kithkin
from kithkin.compute import Predict
from kithkin.data import Share, deal, load
from kithkin.disk import reason
from kithkin.errors import KithkinError
from kithkin.federation import Ledger, LocalCourier, Marks, World, paper_costs
from kithkin.flags import settle
from kithkin.nets import ResNet9, layout_of
from kithkin.nets.vector import cut
from kithkin.record import Folder
from kithkin.record.assembling import assemble
from kithkin.record.checkpoint import Pace
from kithkin.record.run import home_of, in_figures, last_labels

Whole = Callable[..., Path]
METHODS = ["um", "fixbn", "pfedme", "mix", "local"]
MODEL = 4 * layout_of(ResNet9(1, 10, COMMON["width"])).size  # bytes of one model


def read(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / name).read_text())


def kinds(line: dict[str, Any]) -> dict[str, type]:
    return {name: type(value) for name, value in line.items()}


def shares() -> tuple[Share, ...]:
    return deal(load("digits").labels, COMMON["clients"], 0.5, 0).shares


@pytest.mark.parametrize("method", ["um", "mix"])
def test_a_finished_folder_holds_these_files_and_no_draft(whole: Whole, method: str):
    folder = whole(method)
    names = {
        "manifest.json",
        "metrics.jsonl",
        "marks.jsonl",
        "audit.jsonl",
        "lists.jsonl",
        "clients.jsonl",
        "summary.json",
        "models.safetensors",
        "checkpoints",
    }
    assert {p.name for p in folder.iterdir()} == names
    assert not drafts(folder)


def test_the_manifest_tells_config_seed_settings_versions_and_split(whole: Whole):
    manifest = read(whole("um"), "manifest.json")
    both = {**manifest["config"], **manifest["settings"]}
    assert {name: both[name] for name in flags("um")} == flags("um")
    assert (both["seed"], both["alpha"], both["lr"], both["data"]) == (0, 0.5, 0.01, "digits")
    python = ".".join(map(str, sys.version_info[:3]))
    expected = {"kithkin": kithkin.__version__, "torch": torch.__version__, "numpy": np.__version__, "python": python}
    assert expected.items() <= manifest["versions"].items()
    assert manifest["split_hash"] == deal(load("digits").labels, 6, 0.5, 0).digest()
    assert manifest["model_numbers"] * 4 == MODEL


@pytest.mark.parametrize("method", METHODS)
def test_metrics_have_one_line_a_round_with_every_field(whole: Whole, method: str):
    metrics = lines(whole(method) / "metrics.jsonl")
    assert [line["round"] for line in metrics] == [1, 2, 3, 4]
    expected = {
        "round": int, "val_mean": float, "test_mean": float, "test_var": float, "pseudo_error": float,
        "pseudo_coverage": float, "bytes_by_cause": dict, "down_bytes": int, "up_bytes": int, "seconds": float,
    }  # fmt: skip
    for line in metrics:
        assert kinds(line) == expected
        assert all(0 <= line[name] <= 1 for name in ("val_mean", "test_mean", "test_var", "pseudo_error", "pseudo_coverage"))
        assert line["seconds"] > 0


@pytest.mark.parametrize("method", METHODS)
def test_means_and_variance_are_those_of_the_clients_marks(whole: Whole, method: str):
    metrics, marks = (lines(whole(method) / name) for name in ("metrics.jsonl", "marks.jsonl"))
    for line, mark in zip(metrics, marks, strict=True):
        assert line["round"] == mark["round"]
        assert line["val_mean"] == pytest.approx(fmean(mark["val"]))
        assert line["test_mean"] == pytest.approx(fmean(mark["test"]))
        assert line["test_var"] == pytest.approx(pvariance(mark["test"]))


def test_the_summary_has_every_field_of_its_type(whole: Whole):
    expected = {
        "method": str, "data": str, "alpha": float, "seed": int, "test_at_best_val": float, "best_test": float,
        "final_test_mean": float, "final_test_var": float, "down_bytes": int, "up_bytes": int, "bytes_by_cause": dict,
        "cost_formulas": dict, "seconds": float, "memory": dict, "split_hash": str,
    }  # fmt: skip
    for method in METHODS:
        assert expected.items() <= kinds(read(whole(method), "summary.json")).items()


@pytest.mark.parametrize("method", METHODS)
def test_the_summary_agrees_with_the_metrics(whole: Whole, method: str):
    folder = whole(method)
    summary, metrics = read(folder, "summary.json"), lines(folder / "metrics.jsonl")
    best = max(metrics, key=lambda line: line["val_mean"])
    assert (summary["test_at_best_val"], summary["best_val_round"]) == (best["test_mean"], best["round"])
    assert summary["best_test"] == max(line["test_mean"] for line in metrics)
    assert (summary["final_test_mean"], summary["final_test_var"]) == (metrics[-1]["test_mean"], metrics[-1]["test_var"])
    assert summary["seconds"] == pytest.approx(sum(line["seconds"] for line in metrics), abs=1e-3)
    assert (summary["method"], summary["data"], summary["alpha"], summary["seed"]) == (method, "digits", 0.5, 0)
    assert summary["split_hash"] == read(folder, "manifest.json")["split_hash"]


@pytest.mark.parametrize("method", METHODS)
def test_bytes_by_round_by_direction_and_by_cause_are_the_same_bytes(whole: Whole, method: str):
    summary, metrics = read(whole(method), "summary.json"), lines(whole(method) / "metrics.jsonl")
    causes = summary["bytes_by_cause"]
    up = sum(causes.get(cause, 0) for cause in ("upload", "warm-up"))
    assert causes == sum((Counter(line["bytes_by_cause"]) for line in metrics), Counter())
    assert summary["up_bytes"] == sum(line["up_bytes"] for line in metrics) == up
    assert summary["down_bytes"] == sum(line["down_bytes"] for line in metrics) == sum(causes.values()) - up


def test_two_trained_clients_get_and_send_one_model_each_round(whole: Whole):
    for line in lines(whole("pfedme") / "metrics.jsonl"):
        assert (line["down_bytes"], line["up_bytes"]) == (2 * MODEL, 2 * MODEL)


def test_training_alone_moves_no_byte(whole: Whole):
    assert read(whole("local"), "summary.json")["bytes_by_cause"] == {}


def test_bytes_of_um_are_whole_models_of_its_causes(whole: Whole):
    causes = read(whole("um"), "summary.json")["bytes_by_cause"]
    models = {cause: size / MODEL for cause, size in causes.items()}
    assert models["warm-up"] == 6
    assert models["upload"] == 4 * 2
    assert models["search"] == 2 * 6 * 2  # rounds 1 and 2, F = 3
    assert all(count == int(count) for count in models.values())
    assert set(models) <= {"warm-up", "upload", "search", "refresh", "fill"}


def test_cost_formulas_stand_in_the_summary_of_the_methods_they_are_about(whole: Whole):
    costs = paper_costs(K=6, M=3, R=2, F=3, nu=2, tau=2 / 6, n=4, size=MODEL // 4)
    assert read(whole("um"), "summary.json")["cost_formulas"] == pytest.approx(costs)
    assert read(whole("fixbn"), "summary.json")["cost_formulas"] == {}


def test_cost_formulas_count_no_search_after_the_last_round(tmp_path: Path):
    result = start(tmp_path / "run", "um", rounds=2, search_rounds=30, refresh_every=1)
    costs = paper_costs(K=6, M=3, R=2, F=2, nu=1, tau=2 / 6, n=2, size=MODEL // 4)
    assert result.summary["cost_formulas"] == pytest.approx(costs)


@pytest.mark.parametrize("method", METHODS)
def test_clients_tell_sizes_ratio_accuracies_and_helpers(whole: Whole, method: str):
    folder = whole(method)
    clients, final = lines(folder / "clients.jsonl"), lines(folder / "marks.jsonl")[-1]
    assert [client["client"] for client in clients] == list(range(6))
    for k, (client, share) in enumerate(zip(clients, shares(), strict=True)):
        sizes = {role: len(getattr(share, role)) for role in ("labelled", "unlabelled", "val", "test")}
        assert {role: client[role] for role in sizes} == sizes
        assert client["label_ratio"] == sizes["labelled"] / (sizes["labelled"] + sizes["unlabelled"])
        assert (client["val_accuracy"], client["test_accuracy"]) == (final["val"][k], final["test"][k])
        assert isinstance(client["helpers"], list)


def test_helper_lists_name_the_client_itself_and_at_most_m_in_order_of_relation(whole: Whole):
    for k, client in enumerate(lines(whole("um") / "clients.jsonl")):
        helpers = client["helpers"]
        assert all(kinds(helper) == {"client": int, "version": int, "relation": float} for helper in helpers)
        names = [helper["client"] for helper in helpers]
        assert k in names
        assert len(names) == len(set(names)) <= 3
        assert set(names) <= set(range(6))
        assert all(0 <= helper["relation"] <= 1 and helper["version"] >= 1 for helper in helpers)
        assert all(a["relation"] >= b["relation"] for a, b in pairwise(helpers))


def test_methods_without_helpers_have_empty_lists_and_local_has_only_itself(whole: Whole):
    assert all(client["helpers"] == [] for client in lines(whole("fixbn") / "clients.jsonl"))
    local = lines(whole("local") / "clients.jsonl")
    assert all([helper["client"] for helper in client["helpers"]] == [client["client"]] for client in local)


def network(w: torch.Tensor) -> ResNet9:
    """A fresh ResNet-9 with these numbers, written into its own tensors one by one."""
    net = ResNet9(1, 10, COMMON["width"])
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    with torch.no_grad():
        for slot in layout_of(net).slots:
            tensors[slot.name].copy_(cut(w, slot))
    return net.eval()


@pytest.mark.parametrize("method", METHODS)
def test_the_saved_models_give_the_accuracies_in_the_record(whole: Whole, method: str):
    folder, data = whole(method), load("digits")
    with safe_open(folder / "models.safetensors", "pt") as f:
        table: dict[str, list[str]] = json.loads(f.metadata()["clients"])
        assert {name for names in table.values() for name in names} == set(f.keys())
        models = {k: [network(f.get_tensor(name)) for name in names] for k, names in table.items()}
    assert list(models) == [str(k) for k in range(6)]
    assert all(len(each) == (3 if method == "mix" else 1) for each in models.values())
    for k, (client, share) in enumerate(zip(lines(folder / "clients.jsonl"), shares(), strict=True)):
        for part, positions in (("val_accuracy", share.val), ("test_accuracy", share.test)):
            x = torch.from_numpy(data.images[positions]).float() / 127.5 - 1
            with torch.no_grad():
                p = torch.stack([net(x).softmax(1) for net in models[str(k)]]).mean(0)
            right = float((p.argmax(1).numpy() == data.labels[positions]).mean())
            assert client[part] == pytest.approx(right, abs=1e-6)


def test_rounds_that_are_not_evaluated_have_nulls_and_the_last_always_is(tmp_path: Path):
    result = start(tmp_path / "run", "fixavg", rounds=5, eval_every=2, label_ratio=0.5)
    metrics = lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["round"] for line in metrics] == [1, 2, 3, 4, 5]
    for line in metrics:
        figures = [line[name] is not None for name in ("val_mean", "test_mean", "test_var")]
        assert figures == [line["round"] in (2, 4, 5)] * 3
        assert line["pseudo_error"] is not None
    evaluated = [line for line in metrics if line["val_mean"] is not None]
    best = max(evaluated, key=lambda line: line["val_mean"])
    assert result.summary["test_at_best_val"] == best["test_mean"]
    assert result.summary["best_test"] == max(line["test_mean"] for line in evaluated)
    assert [mark["round"] for mark in lines(tmp_path / "run" / "marks.jsonl")] == [2, 4, 5]


def test_the_test_accuracy_is_that_of_the_round_of_best_validation_and_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of the rounds 2, 4 and 5 that are evaluated, validation is best in 4 and test in 2."""
    val = {2: 0.25, 4: 0.75, 5: 0.5}
    test = {2: [0.875, 1.0] * 3, 4: [0.25, 0.5] * 3, 5: [0.25, 0.75] * 3}
    monkeypatch.setattr(LocalCourier, "examine", lambda self, method, server, states, t: Marks([val[t]] * 6, test[t]))
    result = start(tmp_path / "run", "fixavg", rounds=5, eval_every=2)
    assert {name: result.summary[name] for name in ("best_val_round", "best_val", "test_at_best_val")} == {
        "best_val_round": 4,
        "best_val": 0.75,
        "test_at_best_val": 0.375,
    }
    assert result.summary["test_var_at_best_val"] == 0.125**2
    assert (result.summary["final_test_mean"], result.summary["final_test_var"]) == (0.5, 0.25**2)
    assert result.summary["best_test"] == 0.9375
    assert [client["test_at_best_val"] for client in result.clients] == test[4]
    assert [client["test_accuracy"] for client in result.clients] == test[5]
    assert [client["val_accuracy"] for client in result.clients] == [0.5] * 6


def test_where_nobody_can_validate_the_last_round_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    marks = {t: Marks([None] * 6, [t / 4] * 5 + [None]) for t in (1, 2)}
    monkeypatch.setattr(LocalCourier, "examine", lambda self, method, server, states, t: marks[t])
    result = start(tmp_path / "run", "fixavg", rounds=2)
    assert (result.summary["best_val"], result.summary["best_val_round"]) == (None, 2)
    assert (result.summary["test_at_best_val"], result.summary["test_var_at_best_val"]) == (0.5, 0)
    assert [client["test_at_best_val"] for client in result.clients] == [0.5] * 5 + [None]


def test_a_run_is_judged_by_rounds_of_its_method_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """LG-FedAvg's first rounds are FedAvg's, which may be better: here every round is worse than the one before."""
    marks = [Marks([1 - t / 8] * 6, [1 - t / 8] * 6) for t in range(5)]
    monkeypatch.setattr(LocalCourier, "examine", lambda self, method, server, states, t: marks[t])
    result = start(tmp_path / "run", "lg-fedavg", rounds=4, fedavg_rounds=3)
    last = result.metrics[-1]["test_mean"]
    assert [result.summary[name] for name in ("best_val_round", "test_at_best_val", "best_test")] == [4, last, last]


def test_what_a_run_leaves_that_was_killed_before_its_manifest_is_no_hindrance(tmp_path: Path):
    out = tmp_path / "run"
    out.mkdir()
    for left in (".lock", ".manifest.json.123.draft"):
        (out / left).touch()
    kithkin.run(out=out, **flags("local", rounds=1))
    assert sorted(p.name for p in out.iterdir() if p.name.startswith(".")) == []


@pytest.mark.parametrize("foreign", ["[]", "3", "null"])
def test_a_manifest_that_is_no_object_is_named(tmp_path: Path, foreign: str):
    (tmp_path / "manifest.json").write_text(foreign)
    with pytest.raises(KithkinError, match=r"manifest.json cannot be read: it is no object"):
        kithkin.resume(tmp_path)


def test_a_lock_that_its_owner_took_away_as_we_came_is_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kithkin.record.folder.fcntl.lockf", lambda *_: (tmp_path / ".lock").unlink())
    with pytest.raises(KithkinError, match="Another process is at work"), Folder(tmp_path).claimed():
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_without_room_is_full_whatever_the_system_calls_it(number: int):
    assert reason(OSError(number, "text")) == "the disk is full"
    assert reason(OSError(errno.EACCES, "no entry")) == "no entry"


def test_a_display_that_has_stopped_is_told_of_no_job_that_looks_do(tmp_path: Path):
    class Once(Heard):
        def tick(self, done: int, jobs: int) -> None:
            assert not self.stopped

    def look(federation: Any, world: World) -> None:
        client = federation.clients[0]
        federation.courier.compute.work([Predict(federation.w0, client.images, client.labelled)])

    config, settings = settle(flags("fixavg", rounds=1))
    assert RUN.run(config, settings, tmp_path / "run", Once(), look).summary["rounds"] == 1


def test_the_pseudo_error_is_null_where_no_label_was_taken(tmp_path: Path):
    result = start(tmp_path / "run", "fixavg", rounds=2, threshold=1.1)
    assert [line["pseudo_error"] for line in result.metrics] == [None, None]
    assert [line["pseudo_coverage"] for line in result.metrics] == [0, 0], "asked for, and none taken"
    assert result.summary["final_pseudo_error"] is None


def test_the_last_labels_are_those_of_one_round():
    """Not the error of one round beside the coverage of another."""
    rounds = [(0.5, 0.2), (None, 0.0), (None, None)]  # two labels, one of them wrong; none taken; nobody asked
    metrics = [{"pseudo_error": error, "pseudo_coverage": coverage} for error, coverage in rounds]
    assert last_labels(metrics) == {"final_pseudo_error": None, "final_pseudo_coverage": 0.0}
    assert last_labels(metrics[:1]) == {"final_pseudo_error": 0.5, "final_pseudo_coverage": 0.2}
    assert last_labels(metrics[2:]) == {"final_pseudo_error": None, "final_pseudo_coverage": None}


def test_the_record_of_a_supervised_method_keeps_the_true_label_ratios(tmp_path: Path):
    result = start(tmp_path / "run", "fedavg-sl", rounds=1)
    assert [client["labelled"] for client in result.clients] == [len(share.labelled) for share in shares()]


@pytest.fixture
def few_pictures(tmp_path: Path) -> Path:
    """Forty pictures: four for validation, so that some of six clients have none."""
    digits = load("digits")
    np.savez(tmp_path / "few.npz", images=digits.images[:40, 0], labels=digits.labels[:40])
    return tmp_path / "few.npz"


def test_without_validation_pictures_accuracy_is_null_and_every_line_is_strict_json(few_pictures: Path, tmp_path: Path):
    start(tmp_path / "run", "fixavg", rounds=1, data=str(few_pictures), alpha=5.0)

    def no_such_number(text: str) -> None:
        pytest.fail(f"{text} is no JSON")

    for path in (tmp_path / "run").glob("*.json*"):
        texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        for text in texts:
            json.loads(text, parse_constant=no_such_number)
    clients = lines(tmp_path / "run" / "clients.jsonl")
    missing = [client["val_accuracy"] is None for client in clients]
    assert missing == [client["val"] == 0 for client in clients]
    assert any(missing)


def test_means_and_variance_ignore_clients_without_such_pictures():
    assert in_figures(Marks([0.5, None, 1.0], [0.25, 0.75, None])) == {"val_mean": 0.75, "test_mean": 0.5, "test_var": 0.0625}
    assert in_figures(Marks([None], [None])) == {"val_mean": None, "test_mean": None, "test_var": None}


def test_the_folder_of_a_run_on_pictures_named_by_a_dot_is_the_same_before_and_after_it_is_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("cats", "dogs"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(12):
            Image.new("L", (8, 8), i).save(tmp_path / "pets" / name / f"{i}.png")
    monkeypatch.chdir(tmp_path / "pets")
    config, settings = settle({"method": "local", "data": ".", "clients": 2, "alpha": 5.0, "width": 2})
    assert home_of(config) == home_of(assemble(config, settings).config) == Path("runs/local-pets-a5-s0")


@pytest.mark.parametrize("foreign", ["no line", "[1]", '{"round": "two"}', "[" * 100_000], ids=["text", "list", "name", "deep"])
def test_a_foreign_line_ends_a_record(foreign: str, tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text(f'{{"round": 1}}\n{foreign}\n{{"round": 3}}\n')
    for last in (None, 3):
        assert Folder(tmp_path).read_lines(tmp_path / "metrics.jsonl", last) == [{"round": 1}], "round 3 would follow a gap"


@pytest.mark.parametrize(
    ("every", "took", "rounds"),
    [(None, -1.0, [10, 20, 30]), (None, math.inf, []), (7, math.inf, [7, 14, 21, 28]), (0, -1.0, [])],
)
def test_unless_told_a_run_is_saved_every_ten_rounds_but_not_where_that_takes_long(
    every: int | None, took: float, rounds: list[int]
):
    pace = Pace(every, 0)
    pace.took = took
    assert [t for t in range(1, 31) if pace.is_time(World(t, None, (), Ledger()))] == rounds


def test_at_most_two_checkpoints_are_kept(tmp_path: Path):
    start(tmp_path / "run", "fixavg", rounds=5, checkpoint_every=1, eval_every=9)
    assert checkpoints(tmp_path / "run") == ["round-000003", "round-000004"]
    files = {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()}
    assert files == {f"round-00000{n}.{kind}" for n in (3, 4) for kind in ("json", "safetensors")}


def test_checkpoint_every_0_saves_none_in_a_run_that_is_not_interrupted(tmp_path: Path):
    start(tmp_path / "run", "fixavg", rounds=2, checkpoint_every=0, eval_every=9)
    assert checkpoints(tmp_path / "run") == []


def test_equal_personal_models_are_stored_once(tmp_path: Path):
    start(tmp_path / "run", "fixavg", rounds=2, eval_every=9)
    with safe_open(tmp_path / "run" / "models.safetensors", "pt") as f:
        stored = [f.get_tensor(name).numpy().tobytes() for name in f.keys()]  # noqa: SIM118 - not a dict
    assert len(stored) == len(set(stored)) == 1


def test_two_runs_of_one_seed_are_equal_and_another_seed_differs(whole: Whole, tmp_path: Path):
    start(tmp_path / "again", "um")
    assert_same_run(tmp_path / "again", whole("um"))
    start(tmp_path / "other", "um", seed=1)
    assert weights(tmp_path / "other") != weights(whole("um"))
    assert record(tmp_path / "other")["metrics"] != record(whole("um"))["metrics"]


def test_a_folder_whose_name_is_not_utf_8_is_refused_before_the_run(tmp_path: Path):
    """Its checkpoints and models would be written, and never read."""
    with pytest.raises(KithkinError, match="is not UTF-8") as caught:
        start(tmp_path / "odd-\udcff", "local")
    assert "--out" in caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_files_can_be_read_by_whoever_can_read_the_folder(whole: Whole):
    modes: dict[int, list[str]] = defaultdict(list)
    for path in whole("um").rglob("*"):
        if path.is_file():
            modes[path.stat().st_mode & 0o777].append(path.name)
    assert len(modes) == 1, modes


def test_bad_settings_are_refused_before_anything_is_written(tmp_path: Path):
    for wrong in ({"device": "banana"}, {"alpha": 0.0}, {"clients": 5000}, {"data": "digts"}):
        with pytest.raises(KithkinError):
            start(tmp_path / "run", "fixavg", **wrong)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", METHODS)
def test_the_audit_has_a_line_a_round_and_agrees_with_the_metrics(whole: Whole, method: str):
    metrics, audits = (lines(whole(method) / name) for name in ("metrics.jsonl", "audit.jsonl"))
    for line, audited in zip(metrics, audits, strict=True):
        assert line["round"] == audited["round"]
        asked, taken, wrong = (audited[name] for name in ("asked", "taken", "wrong"))
        assert line["pseudo_error"] == (wrong / taken if taken else None)
        assert line["pseudo_coverage"] == (taken / asked if asked else None)
        assert sum(row[0] for row in audited["by_class"]) == sum(row[0] for row in audited["by_helper"].values()) == taken
        assert sum(row[0] for row in audited["by_entropy"]) == asked


def test_the_lists_of_every_evaluated_round_are_on_record(whole: Whole):
    listed = lines(whole("um") / "lists.jsonl")
    assert [line["round"] for line in listed] == [1, 2, 3, 4]
    final = [c["helpers"] for c in lines(whole("um") / "clients.jsonl")]
    assert listed[-1]["helpers"] == [
        [[h["client"], h["version"], round(h["relation"], 4)] for h in helpers] for helpers in final
    ]
    assert lines(whole("fixavg") / "lists.jsonl")[-1]["helpers"] == [[]] * 6


def test_who_names_a_sites_folder_is_told_where_its_model_is(tmp_path: Path):
    with pytest.raises(KithkinError, match=r"is no run.* its state/run-"):
        Folder(tmp_path).read_manifest()
