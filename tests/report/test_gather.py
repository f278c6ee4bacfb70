"""What the page is made of: its numbers are the record's, and whatever is missing is told."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import pytest
from invented import make_up, many_pictures

import kithkin
from kithkin.comparison import harmed, worst_decile
from kithkin.config import RunConfig, as_json
from kithkin.errors import KithkinError
from kithkin.report import gather, page, write_page
from kithkin.report.figures import figures_of
from kithkin.report.gather import (
    ENTRIES,
    compare_with,
    formulas,
    gather_audit,
    gather_clients,
    gather_cost,
    gather_helpers,
    gather_marks,
    headline,
    runs_to_ask,
    thinned,
)
from kithkin.report.tables import export


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def embedded(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="gathered">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


@pytest.fixture
def broken(runs: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs["um"], tmp_path / "broken"))


def test_accuracies_are_those_of_the_record(runs: dict[str, Path]):
    run = gather([runs["um"]])["runs"][0]
    marks, summary = lines(runs["um"] / "marks.jsonl"), json.loads((runs["um"] / "summary.json").read_text())
    assert run["curve"]["round"] == [m["round"] for m in marks]
    assert run["curve"]["mean"] == pytest.approx([fmean(m["test"]) for m in marks], abs=1e-4)
    assert run["curve"]["low"] == pytest.approx([np.quantile(m["test"], 0.1) for m in marks], abs=1e-4)
    assert run["curve"]["high"] == pytest.approx([np.quantile(m["test"], 0.9) for m in marks], abs=1e-4)
    best = next(m for m in marks if m["round"] == summary["best_val_round"])
    assert run["clients"]["test"] == pytest.approx(best["test"], abs=1e-4)
    assert run["headline"]["test"] == pytest.approx(summary["test_at_best_val"], abs=1e-4)
    assert run["headline"]["round"] == summary["best_val_round"] == run["clients"]["best_round"]
    fairness = run["clients"]["fairness"]
    assert fairness["worst_decile"] == pytest.approx(worst_decile(best["test"]), abs=1e-4)
    assert fairness["variance"] == pytest.approx(np.var(best["test"]), abs=1e-7)
    assert run["remarks"] == []


def test_accuracy_over_rounds_by_hand():
    """Of two rounds that validate alike the first is the best; none beats nothing, however bad it is."""
    unseen = {"round": 1, "val": [None, None], "test": [0.5, 0.25]}
    marks = [unseen, {"round": 2, "val": [0.0, None], "test": [0.0, 1.0]}, {"round": 3, "val": [0.0, 0.0], "test": [1.0, 1.0]}]
    found = gather_marks(marks, [], None)
    assert (found["best_round"], found["test"]) == (2, [0.0, 1.0])
    curve = {"mean": [0.375, 0.5, 1], "low": [0.275, 0.1, 1], "high": [0.475, 0.9, 1], "val": [None, 0, 0]}
    assert found["curve"] == {"round": [1, 2, 3], **curve}
    assert gather_marks([unseen, {**unseen, "round": 4}], [], None)["best_round"] == 4, "the last, where nobody can tell"
    told = [{"round": 1, "test_mean": None}, {"round": 2, "test_mean": 0.5, "val_mean": 0.25}]
    alone = {"curve": {"round": [2], "mean": [0.5], "val": [0.25], "low": None, "high": None}}
    assert gather_marks([], told, None) == alone


def test_what_is_known_of_clients_by_hand():
    split = {"every": [[1, 3], [2, 0]], "labelled": [[1, 0], [1, 0]]}
    found = gather_clients({"test": [0.0, 1.0], "best_round": 3}, [], split)
    assert found
    assert (found["labelled"], found["size"]) == ([1, 1], [4, 2])
    assert (found["ratio"], found["class"]) == ([0.25, 0.5], [1, 0])
    assert found["fairness"]["deciles"] == [i / 10 for i in range(11)]


def test_clients_are_shown_at_the_round_by_which_the_run_was_judged(broken: Path):
    """Which need not be that of best validation accuracy: LG-FedAvg's first rounds are not its own."""
    marks, summary = lines(broken / "marks.jsonl"), json.loads((broken / "summary.json").read_text())
    other = next(m for m in marks if m["round"] != summary["best_val_round"])
    (broken / "summary.json").write_text(json.dumps({**summary, "best_val_round": other["round"]}))
    clients = gather([broken])["runs"][0]["clients"]
    assert clients["best_round"] == other["round"]
    assert clients["test"] == pytest.approx(other["test"], abs=1e-4)


def test_gains_are_over_the_local_run_of_the_same_split(runs: dict[str, Path], tmp_path: Path):
    um, local = gather([runs["um"], runs["local"]])["runs"]
    pairs = zip(um["clients"]["test"], local["clients"]["test"], strict=True)
    gains = [a - b for a, b in pairs]
    assert um["clients"]["gain"] == pytest.approx(gains, abs=2e-4)
    assert um["headline"]["gain"] == pytest.approx(fmean(gains), abs=2e-4)
    assert um["clients"]["tested"] == median(line["test"] for line in lines(runs["um"] / "clients.jsonl"))
    assert um["headline"]["harmed"] == pytest.approx(fmean(g < -0.03 for g in gains), abs=1e-4)
    assert "gain" not in local["clients"]
    stranger = make_up(tmp_path / "local", "local", seed=1)
    assert "gain" not in gather([runs["um"], stranger])["runs"][0]["clients"]


@pytest.mark.parametrize(
    "other",
    [
        *({"rounds": 10}, {"epochs": 1}, {"sample_rate": 1.0}, {"batch_size": 64}, {"width": 4}, {"model": "nets.py:net"}),
        {"rounds": 10, "epochs": 1},
    ],
    ids=lambda other: "-".join(other),
)
def test_a_local_run_of_another_experiment_is_no_yardstick_and_that_is_told(
    runs: dict[str, Path], tmp_path: Path, other: dict[str, Any]
):
    stranger = make_up(tmp_path / "stranger", "local", **other)
    um, local = gather([runs["um"], stranger])["runs"]
    assert "gain" not in um["clients"] | um["headline"]
    assert um["remarks"] == [f"The gain over local is not shown: that run has another {', '.join(other)}."]
    assert local["remarks"] == []
    um, *_ = gather([runs["um"], runs["local"], stranger])["runs"]
    assert um["clients"]["gain"] == gather([runs["um"], runs["local"]])["runs"][0]["clients"]["gain"]
    assert um["remarks"] == []


def test_a_client_is_harmed_if_it_ends_more_than_three_points_below():
    run: dict[str, Any] = {"method": "um", "clients": {"test": [0.48, 0.46, None, 0.5, 0.6]}, "headline": {}}
    compare_with([0.5, 0.5, 0.5, 0.5, 0.5], run)
    assert run["clients"]["gain"] == [-0.02, -0.04, None, 0, 0.1]
    assert run["headline"] == {"gain": 0.01, "harmed": 0.25}


def test_helpers_and_churn(runs: dict[str, Path]):
    helpers = gather([runs["um"]])["runs"][0]["helpers"]
    lists = lines(runs["um"] / "lists.jsonl")
    assert helpers["round"] == [line["round"] for line in lists]
    flat = helpers["lists"][-1][3]
    assert flat[::2] == [h[0] for h in lists[-1]["helpers"][3]]
    assert [v / 1000 for v in flat[1::2]] == pytest.approx([h[2] for h in lists[-1]["helpers"][3]], abs=1e-3)
    first, second = (line["helpers"] for line in lists[:2])
    new = [len({h[0] for h in b} - {h[0] for h in a}) / len(b) for a, b in zip(first, second, strict=True)]
    assert helpers["churn"]["share"][0] == pytest.approx(fmean(new), abs=1e-4)


def test_helpers_and_churn_by_hand():
    """Client 0 has one new helper among two, client 1 two among three: 7/12."""
    before = {"round": 2, "helpers": [[[0, 1, 0.5], [1, 1, 0.25]], [[1, 1, 0.5]]]}
    after = {"round": 4, "helpers": [[[0, 2, 0.5], [2, 1, 0.125]], [[1, 1, 0.5], [0, 2, 0.75], [2, 2, 0.0]]]}
    found = gather_helpers([before, after], ENTRIES)
    assert found
    assert (found["round"], found["lists"][1]) == ([2, 4], [[0, 500, 2, 125], [1, 500, 0, 750, 2, 0]])
    assert found["churn"] == {"round": [4], "share": [0.5833]}
    assert gather_helpers([{"round": 2, "helpers": [[[0, 1, 0.5]], [[1, 1, 0.5]]]}], ENTRIES) is None, "each has itself alone"


def test_the_audit_by_hand():
    """Eighty rounds in forty steps: two in each."""
    parts = {"by_class": [[2, 1]], "by_entropy": [[4, 1]], "by_helper": {"3": [2, 1]}}
    found = gather_audit([{"round": t, "asked": 8, "taken": 4, "wrong": 1, **parts} for t in range(1, 81)])
    assert found
    assert (found["error"], found["coverage"]) == ([0.25] * 80, [0.5] * 80)
    parts = {"by_class": [[4, 2]], "by_entropy": [[8, 2]], "by_helper": {"3": [4, 2]}}
    assert found["steps"][1] == {"rounds": [3, 4], **parts}


def test_the_audit_adds_up(runs: dict[str, Path]):
    audit = gather([runs["um"]])["runs"][0]["audit"]
    told = lines(runs["um"] / "audit.jsonl")
    assert sum(wrong for step in audit["steps"] for _, wrong in step["by_class"]) == sum(line["wrong"] for line in told)
    assert np.sum([s["by_class"] for s in audit["steps"]], 0).tolist() == np.sum([t["by_class"] for t in told], 0).tolist()
    assert np.sum([s["by_entropy"] for s in audit["steps"]], 0).tolist() == np.sum([t["by_entropy"] for t in told], 0).tolist()
    given = sum(n for s in audit["steps"] for n, _ in s["by_helper"].values())
    assert given == sum(n for t in told for n, _ in t["by_helper"].values())
    assert audit["error"] == pytest.approx([t["wrong"] / t["taken"] for t in told], abs=1e-4)


def test_of_a_federation_over_the_network_is_shown_what_its_sites_tell(spread: Path):
    run = gather([spread], models=True)["runs"][0]
    stay = "Pictures and models stay with the sites: the split, confusion and latent features are not shown."
    assert run["remarks"] == [stay]
    assert (run["split"], run["confusion"]) == (None, None)
    assert len(run["audit"]["error"]) == len(lines(spread / "audit.jsonl"))
    assert all(step["by_class"] == [] for step in run["audit"]["steps"])
    assert {name for name, _ in figures_of([run])} >= {"accuracy", "labels", "bytes", "helpers"}


def test_of_a_site_is_said_where_the_record_is_and_no_data_that_its_server_names_is_looked_for(tmp_path: Path):
    told = {"config": as_json(RunConfig(data=str(tmp_path))), "settings": {}, "site": "north"}
    (tmp_path / "manifest.json").write_text(json.dumps(told))
    (run,) = gather([tmp_path])["runs"]
    assert run["remarks"] == ["A site keeps its own model: the record of the run is with the federation's server."]


def test_bytes_and_formulas_end_where_the_summary_does(runs: dict[str, Path]):
    cost = gather([runs["um"]])["runs"][0]["cost"]
    summary = json.loads((runs["um"] / "summary.json").read_text())
    assert {c: series[-1] for c, series in cost["moved"].items()} == pytest.approx(
        {c: size / 1e6 for c, size in summary["bytes_by_cause"].items()}, abs=1e-2
    )
    assert cost["formulas"]["greedy_27"][-1] == pytest.approx(summary["cost_formulas"]["greedy_27"] / 1e6, abs=1e-2)
    assert cost["formulas"]["helper_lists_28"][-1] == pytest.approx(summary["cost_formulas"]["helper_lists_28"] / 1e6, abs=1e-2)


def test_bytes_and_seconds_add_up_by_hand():
    metrics = [
        {"round": 1, "bytes_by_cause": {"upload": 10**6}, "seconds": 1.5},
        {"round": 2, "bytes_by_cause": {"upload": 10**6, "start": 2 * 10**6}, "seconds": None, "test_mean": 0.5},
        {"round": 3, "bytes_by_cause": {}, "seconds": 2.0, "test_mean": 0.75},
    ]
    found = gather_cost(metrics, {})
    assert found
    assert found["moved"] == {"upload": [1, 2, 2], "start": [0, 2, 2]}
    assert (found["seconds"], found["megabytes"], found["formulas"]) == ([1.5, 1.5, 3.5], 4, None)
    assert found["accuracy"] == {"megabytes": [4, 4], "test": [0.5, 0.75]}


def test_the_papers_costs_by_hand():
    """A model of 1 MB; 0.3 of 5 clients are 2. After 8 rounds: 5 * 3 * 8 / 4 refreshed, 2 * 5 tried, 8 * 2 uploaded."""
    settings = {"helpers": 3, "candidates": 1, "search_rounds": 2, "refresh_every": 4}
    manifest = {"settings": settings, "config": {"clients": 5, "sample_rate": 0.3}, "model_numbers": 250_000}
    assert formulas(manifest, [1, 8]) == {"greedy_27": [10, 80], "helper_lists_28": [3.75 + 5 + 2, 30 + 10 + 16]}
    assert formulas({**manifest, "settings": {**settings, "helpers": 1}}, [1]) is None


def test_the_headline_of_a_run_that_goes_on_is_that_of_its_last_round():
    told = headline(
        {
            "clients": {"fairness": {"mean": 0.5, "worst_decile": 0.25, "variance": 0.125}, "best_round": 2},
            "audit": {"error": [0.5, 0.25], "coverage": [0.1, 0.2]},
            "cost": {"megabytes": 3, "seconds": [1, 5]},
            "curve": {"mean": [0.5, 0.75, None], "high": [0.9, 0.8, None]},
            "summary": {},
        }
    )
    assert (told["test"], told["round"], told["best_test"]) == (0.5, 2, 0.75)
    assert (told["worst_decile"], told["variance"]) == (0.25, 0.125)
    assert (told["label_error"], told["coverage"], told["megabytes"], told["seconds"]) == (0.25, 0.2, 3, 5)


def test_a_folder_of_runs_stands_for_all(runs: dict[str, Path]):
    assert [run["name"] for run in gather([runs["um"].parent])["runs"]] == ["local", "um"]


def test_a_comparison_has_the_rows_of_its_table_in_that_order(compared: Path):
    data = gather([compared])
    table = data["comparison"]
    assert [row["name"] for row in table] == ["um a5", "local a5", "mix a5", "um a0.5", "local a0.5", "mix a0.5"]
    ums, alone = ([run for run in data["runs"] if run["group"] == name] for name in ("um a0.5", "local a0.5"))
    marks = [[client["test_at_best_val"] for client in lines(Path(run["folder"]) / "clients.jsonl")] for run in (*ums, *alone)]
    gains = [a - b for mine, theirs in zip(marks[:3], marks[3:], strict=True) for a, b in zip(mine, theirs, strict=True)]
    assert table[3]["seeds"] == 3
    assert table[3]["test"] == pytest.approx(fmean(map(fmean, marks[:3])), abs=1e-5)
    assert table[3]["test_sd"] == pytest.approx(stdev(map(fmean, marks[:3])), abs=1e-5)
    assert table[3]["worst_decile"] == pytest.approx(fmean(map(worst_decile, marks[:3])), abs=1e-5)
    assert table[3]["variance"] == pytest.approx(fmean(map(np.var, marks[:3])), abs=1e-5)
    assert table[3]["gain"] == pytest.approx(fmean(gains), abs=1e-5)
    assert table[3]["harmed"] == pytest.approx(harmed(gains), abs=1e-5)
    given = gather([compared / "um-a5.0-s1", compared / "local-a5.0-s0"])
    assert [run["name"] for run in given["runs"]] == ["um", "local"]


def test_what_is_not_finished_counts_in_no_row_and_what_is_not_on_record_is_no_figure(compared: Path, tmp_path: Path):
    names = ("um-a0.5-s0", "um-a0.5-s1", "local-a0.5-s0", "local-a0.5-s1")
    runs = [Path(shutil.copytree(compared / name, tmp_path / name)) for name in names]
    (runs[1] / "summary.json").unlink()
    (runs[2] / "metrics.jsonl").unlink()
    um, local = gather(runs)["comparison"]
    assert (um["seeds"], local["seeds"]) == (1, 2)
    assert um["megabytes"] == pytest.approx(8 * 4 * 106_130 * 25 / 1e6, abs=1e-3)
    assert (local["megabytes"], local["seconds"]) == (None, None)


def test_the_colour_tells_the_method_the_style_the_alpha_and_seeds_look_alike(compared: Path):
    looks = {run["name"]: run["look"] for run in gather([compared])["runs"]}
    assert looks["um a5 s0"] == looks["um a5 s2"] == [0, 0]
    assert (looks["um a0.5 s0"], looks["mix a0.5 s1"]) == ([0, 1], [2, 1])
    seeds = gather([compared / f"um-a0.5-s{seed}" for seed in range(3)])
    assert [run["look"] for run in seeds["runs"]] == [[0, 0], [1, 0], [2, 0]]
    assert [row["name"] for row in seeds["comparison"]] == ["um"]


def test_runs_that_differ_in_more_than_method_alpha_and_seed_have_no_mean(compared: Path, tmp_path: Path):
    longer = make_up(tmp_path / "longer", "um", rounds=10, alpha=0.5, seed=1)
    data = gather([compared / "um-a0.5-s0", longer])
    assert data["comparison"] is None
    assert [run["look"] for run in data["runs"]] == [[0, 0], [1, 0]]


@pytest.mark.parametrize(
    ("other", "is_one"),
    [
        ({}, True),
        ({"lr": 0.5, "momentum": 0.5, "device": "cuda", "every": 1}, True),
        *(({name: v}, False) for name, v in {"rounds": 10, "epochs": 1, "clients": 6, "width": 4}.items()),
        *(({name: v}, False) for name, v in {"model": "nets.py:net", "sample_rate": 1.0, "batch_size": 64}.items()),
        ({"label_ratio": 0.3}, False),
    ],
    ids=str,
)
def test_methods_are_compared_in_one_experiment_each_at_its_own_rates(tmp_path: Path, other: dict[str, Any], is_one: bool):
    for seed in (0, 1):
        make_up(tmp_path / f"um-{seed}", "um", seed=seed)
        make_up(tmp_path / f"mix-{seed}", "mix", seed=seed, **other)
    assert (gather([tmp_path])["comparison"] is not None) == is_one


def test_the_label_error_is_that_of_the_last_round(broken: Path):
    audit = lines(broken / "audit.jsonl")
    audit[-1] |= {"taken": 0, "wrong": 0, "by_helper": {}}
    (broken / "audit.jsonl").write_text("".join(json.dumps(line) + "\n" for line in audit))
    told = gather([broken])["runs"][0]["headline"]
    assert (told["label_error"], told["coverage"]) == (None, 0)


@pytest.mark.parametrize("paths", [[], [Path("nowhere")]])
def test_what_is_no_run_is_a_mistake(paths: list[Path]):
    with pytest.raises(KithkinError):
        gather(paths)


def test_a_torn_line_is_told_and_what_comes_before_is_shown(broken: Path):
    for name in ("metrics", "marks", "audit", "lists"):
        path = broken / f"{name}.jsonl"
        path.write_text(path.read_text()[: -len(path.read_text()) // 3])
    run = gather([broken])["runs"][0]
    assert [r for r in run["remarks"] if "breaks off" in r and "metrics.jsonl" in r]
    assert len([r for r in run["remarks"] if "breaks off" in r]) == 4
    assert run["curve"]["round"]
    assert run["cost"]["round"]
    assert run["helpers"]
    assert run["audit"]


@pytest.mark.parametrize(
    "name", ["manifest.json", "metrics.jsonl", "marks.jsonl", "audit.jsonl", "lists.jsonl", "clients.jsonl", "summary.json"]
)
def test_any_file_may_be_missing_empty_or_foreign(broken: Path, name: str):
    for content in (None, "", "[1, 2]\n", '{"round": "x"}\n', '{"round": 1, "val": 3, "helpers": 4, "asked": "x"}\n', "\x00{"):
        (broken / name).unlink(missing_ok=True)
        if content is not None:
            (broken / name).write_text(content)
        data = gather([broken])
        embedded(page(data))
        assert not [r for r in data["runs"][0]["remarks"] if "another split" in r], "the data is as it was"
        if content is not None and content[:1] not in ("", "{"):
            assert [r for r in data["runs"][0]["remarks"] if name in r]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("metrics", "round", "<b>"),
        ("metrics", "bytes_by_cause", {"upload": -1}),
        ("metrics", "seconds", float("inf")),
        ("marks", "test", [0.5]),
        ("marks", "val", [float("nan")] * 12),
        ("marks", "test", [7] * 12),
        ("audit", "wrong", 10**400),
        ("audit", "by_class", [[1, 2]]),
        ("audit", "by_class", []),
        ("audit", "by_helper", {"<b>": [1, 1]}),
        ("lists", "helpers", [[[99, 1, 0.5]]]),
        ("lists", "helpers", [[[0, 1, None]]]),
        ("clients", "labelled", "many"),
    ],
)
def test_a_line_that_no_run_writes_ends_its_record(broken: Path, tmp_path: Path, name: str, field: str, value: Any):
    path = broken / f"{name}.jsonl"
    told = lines(path)
    told[2][field] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in told))
    (run,) = gather([broken])["runs"]
    remark = f"{name}.jsonl breaks off after line 2; what comes before is shown."
    assert run["remarks"] == [remark]
    embedded(page({"kithkin": "", "harm": 0, "runs": [run]}))
    assert export(broken, "csv", tmp_path / "tables")[1] == [remark]


def test_client_names_that_are_none_are_left_out(broken: Path):
    manifest = json.loads((broken / "manifest.json").read_text())
    (broken / "manifest.json").write_text(json.dumps({**manifest, "client_names": 5}))
    (run,) = gather([broken])["runs"]
    assert run["client_names"] == []


def test_unasked_one_run_of_each_method_is_looked_at():
    runs = [
        {"method": m, "seed": s, "finished": s < 2, "config": {"seed": s}, "machine": {}}
        for m in ("um", "local")
        for s in (0, 1, 2)
    ]
    assert {(run["method"], run["seed"]) for run in runs_to_ask(runs, None)} == {("um", 0), ("local", 0)}
    assert len(runs_to_ask(runs, True)) == 4
    assert runs_to_ask(runs, False) == []


def test_an_unfinished_run_says_how_far_it_is(broken: Path):
    (broken / "summary.json").unlink()
    (broken / "clients.jsonl").unlink()
    run = gather([broken])["runs"][0]
    assert not run["finished"]
    assert run["unfinished"] == "The run is not finished: 8 of 8 rounds are on record."
    assert run["remarks"] == []
    assert run["headline"]["test"] == run["clients"]["fairness"]["mean"]
    assert run["clients"]["size"] == [sum(row) for row in run["split"]["every"]]


def test_data_that_is_gone_costs_the_split_alone(broken: Path):
    manifest = json.loads((broken / "manifest.json").read_text())
    manifest["config"]["data"] = "/nowhere/mine.npz"
    (broken / "manifest.json").write_text(json.dumps(manifest))
    run = gather([broken])["runs"][0]
    assert run["split"] is None
    assert "class" not in run["clients"]
    assert [r for r in run["remarks"] if "split is not shown" in r]


def test_names_cannot_leave_the_json(broken: Path):
    manifest = json.loads((broken / "manifest.json").read_text())
    manifest["config"]["method"] = "</script><script>alert(1)</script><!-- {{script}} \u2028 ☃"
    manifest["settings"]["x"] = float("nan")
    (broken / "manifest.json").write_text(json.dumps(manifest))
    text = page(gather([broken]))
    assert "<script>alert" not in text
    assert text.count("</script>") == 2
    assert embedded(text)["runs"][0]["method"] == manifest["config"]["method"]
    assert "http" not in re.sub(r"http-equiv|http://www.w3.org/2000/svg", "", text)


def test_a_thousand_clients_fit(tmp_path: Path):
    data = many_pictures(tmp_path / "many.npz")
    big = make_up(tmp_path / "um", clients=1000, rounds=60, every=1, data=str(data), alpha=0.8)
    helpers = write_page([big], tmp_path / "page.html", models=False)["runs"][0]["helpers"]
    assert (tmp_path / "page.html").stat().st_size < 15e6
    assert len(helpers["round"]) == 40
    assert sum(len(row) // 2 for step in helpers["lists"] for row in step) <= 1.1 * ENTRIES


def test_thinning_keeps_both_ends():
    assert thinned(500, 40)[0] == 0
    assert thinned(500, 40)[-1] == 499
    assert len(thinned(500, 40)) == 40
    assert thinned(0, 40) == []


def test_pictures_that_changed_between_two_runs_of_one_process_are_read_anew(tmp_path: Path):
    for name in ("first", "second"):
        labels = np.random.default_rng(len(name)).integers(0, 3, 200)
        images = np.broadcast_to(labels[:, None, None], (200, 8, 8)).astype(np.uint8)
        np.savez(tmp_path / "pics.npz", images=images, labels=labels)
        tiny = {"clients": 3, "rounds": 1, "epochs": 1, "width": 2, "device": "cpu"}
        kithkin.run(method="local", data=tmp_path / "pics.npz", out=tmp_path / name, alpha=5.0, **tiny)
        run = gather([tmp_path / name])["runs"][0]
        assert run["split"], run["remarks"]
    (old,) = gather([tmp_path / "first"])["runs"]
    assert old["split"] is None
    assert any("gives another one than when the run began" in remark for remark in old["remarks"])


def test_runs_on_one_data_set_read_it_once(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    module: Any = importlib.import_module("kithkin.report.gather")  # which the function of that name hides
    read: list[str] = []
    load = module.load
    monkeypatch.setattr(module, "load", lambda *a: (read.append(a[0]), load(*a))[1])
    module.without_pictures.cache_clear()
    module.dealt.cache_clear()
    gather(list(runs.values()))
    assert read == ["digits"]
