"""`kithkin paper`: every table and figure by one command, at the smallest scale, and the mistakes that can be made."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up import PLAN, put, record

from kithkin.cli import main
from kithkin.paper import cells
from kithkin.paper.commands import regenerating
from kithkin.paper.plan import ALL, Plan
from kithkin.paper.recipes import RECIPES
from kithkin.record import looks


@pytest.fixture
def kith(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[Any, str, str]:
        code: Any = 0
        try:
            main(["paper", *words])
        except SystemExit as e:
            code = e.code or 0
        return code, *capsys.readouterr()

    return call


def test_all_of_them_run_and_draw_at_the_smallest_scale(kith: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looks, "POINTS", 60)
    code, out, err = kith("all", "--scale", "smoke")
    assert code == 0, err
    assert out.split() == [f"results/drawn/{name}-smoke.md" for name in RECIPES]
    for name in RECIPES:
        drawn = (tmp_path / "results/drawn" / f"{name}-smoke.md").read_text()
        ((found, wanted, runs),) = re.findall(r"(\d+) of (\d+) cells, (\d+) runs", drawn)
        assert found == wanted == runs
        assert int(wanted) == len(RECIPES[name].plan(Plan("smoke"))) or (name == "tuning" and 6 <= int(wanted) < 8)
        assert "smoke: digits stand in" in drawn
        for address in [line.split("](")[1].rstrip(")") for line in drawn.splitlines() if line.startswith("![")]:
            assert (tmp_path / "results/drawn" / address).stat().st_size > 1000

    monkeypatch.setattr(cells, "do", None)  # whoever runs anything now fails
    for name in RECIPES:
        code, out, err = kith(name, "--scale", "smoke", "--quiet")
        assert (code, out, err) == (0, "", "0 runs done.\n")
    code, out, _ = kith("report", "--scale", "smoke")
    assert code == 0
    report, page = ((tmp_path / f"results/report.{kind}").read_text() for kind in ("md", "html"))
    assert all(f"## {recipe.title}" in report for recipe in RECIPES.values())
    assert f"{len(list((tmp_path / 'results/digits').glob('*.json')))} finished runs" in report
    assert "Nothing was run yet" not in report
    assert report.index("## Who is ahead") < report.index("| [fashion-mnist, smoke](#fashion-mnist-smoke) | **") < 900
    assert all(f'<h2 id="{name}-smoke">' in page and f'href="#{name}-smoke"' in page for name in RECIPES)
    assert page.count('tabindex="0"><img style="min-width:') == page.count("data:image/png;base64,")
    assert page.count("data:image/png;base64,") == report.count("![") == len(list((tmp_path / "results/figures").iterdir()))
    assert 'src="figures' not in page
    assert "<title>The paper's tables and figures, ours beside theirs · kithkin</title>" in page
    assert "prefers-color-scheme: dark" in page
    assert "#5E5500" in page  # the report's palette


def test_the_list_tells_names_places_and_counts(kith: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("sample-rate", "tuning"):
        put(RECIPES[name].plan(PLAN)[0], tmp_path / "results")
    for columns in (80, 150):
        monkeypatch.setenv("COLUMNS", str(columns))
        code, out, _ = kith("list")
        assert code == 0
        assert "…" not in out
        lines = {name: line for line in out.splitlines() for name in RECIPES if line.startswith(f" {name} ")}
        assert lines.keys() == RECIPES.keys()
        rows = {name: re.split(r"  +", line.strip()) for name, line in lines.items()}
        assert rows["sample-rate"][1:5] == ["Table V", "0 of 10", "1 + 0 of 10", "0 + 0 of 200"]
        assert rows["tuning"][2:5] == ["0 of 312", "1 of 155", "the same"]  # one rate is no neighbour of the one that is there
        assert [row[-1] == RECIPES[name].title for name, row in rows.items()] == [columns == 150] * len(rows)


def test_a_report_of_what_is_there_counts_it_and_names_what_is_not(kith: Any, tmp_path: Path):
    first, second = RECIPES["sample-rate"].plan(PLAN)[:2]
    put(first, tmp_path / "results")
    put(second, tmp_path / "results").write_text('{"format": 1, "ki')
    code, _, err = kith("report", "--out", "here/all.md")
    assert code == 0
    assert f"results/{second.file} is no finished cell" in err
    report = (tmp_path / "here/all.md").read_text()
    assert "|  | short | there |\n" in report
    assert "(`sample-rate`) | [1 of 10](#sample-rate-short) | Table V |" in report
    assert "*short*: with fewer rounds." in report
    assert "*small*" not in report
    assert '(Table V), short <a id="sample-rate-short"></a>' in report
    places = 4 * len(ALL)
    assert f"(`fashion-mnist`) | [1 of {places}](#fashion-mnist-short) | Table I |" in report
    assert "1 finished runs in all" in report
    assert "Who is ahead" not in report  # one is not ahead of any other
    (nothing,) = (line for line in report.splitlines() if line.startswith("Nothing was run yet for "))
    assert "`kithkin paper pathmnist`" in nothing
    assert "fashion-mnist" not in nothing
    assert (tmp_path / "here/all.html").exists()


def test_every_seed_that_is_there_is_drawn_unless_so_many_are_asked_for(kith: Any, tmp_path: Path):
    for cell in RECIPES["sample-rate"].plan(replace(PLAN, seeds=3)):
        if cell.column == 0.5:
            put(cell, tmp_path / "results", test=0.7 + 0.1 * cell.config.seed)
    assert kith("report")[0] == 0
    assert "80.0 ± 10.0 (n 3)" in (tmp_path / "results/report.md").read_text()
    drawing = ("sample-rate", "--scale", "short", "--budget", "0")
    assert "80.0 ± 10.0 (n 3)" in kith(*drawing)[1]
    assert "75.0 ± 7.1 (n 2)" in kith(*drawing, "--seeds", "2")[1]


def test_a_report_of_nothing_says_so(kith: Any, tmp_path: Path):
    (tmp_path / "results").mkdir()
    assert kith("report")[0] == 0
    assert "0 finished runs" in (tmp_path / "results/report.md").read_text()


def test_no_budget_only_draws(kith: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cells, "do", None)
    code, out, _ = kith("costs", "--scale", "short", "--budget", "0", "--out", "x")
    assert (code, "(27) to (29)" in out) == (0, True)
    assert (tmp_path / "x/costs-short.md").read_text() in out


def test_methods_and_alphas_choose_what_runs(kith: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    monkeypatch.setattr("kithkin.paper.commands.fill", lambda wanted, *_: asked.extend(wanted) or cells.Filled())
    words = (
        "--scale",
        "short",
        "--lr",
        "tuned",
        "--seeds",
        "2",
        "--methods",
        "um",
        "local",
        "--alphas",
        "5",
        "--device",
        "cpu",
    )
    assert kith("fashion-mnist", *words)[0] == 0
    assert [(c.config.method, c.config.alpha, c.config.seed) for c in asked] == [
        *(("um", 5.0, 0), ("local", 5.0, 0), ("um", 5.0, 1), ("local", 5.0, 1)),
    ]
    assert {(c.config.device, c.config.lr) for c in asked} == {("cpu", 1e-3)}  # tuned.toml's
    assert asked[0].looks == {"features"}  # the t-SNE wants this run too
    assert (tmp_path / "results/drawn/fashion-mnist-short-tuned.md").exists()


def test_learning_rates_that_cannot_be_best_any_more_are_not_tried(kith: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    accuracy = {("um", 3e-3): 0.5, ("um", 1e-3): 0.4, ("um", 1e-2): 0.6}
    accuracy |= {("local", 3e-3): 0.5, ("local", 1e-3): 0.6, ("local", 3e-4): 0.7}
    asked: list[tuple[str, float]] = []

    def ran(cell: Any, *_: Any) -> Any:
        asked.append((cell.config.method, cell.config.lr))
        assert cell.config.data == "fashion-mnist"
        return record(cell, accuracy[asked[-1]])

    monkeypatch.setattr(cells, "do", ran)
    for data in ("cifar-10", "organamnist"):
        for cell in RECIPES["tuning"].plan(PLAN):
            if cell.row in ((data, "um"), (data, "local")):
                put(cell, tmp_path / "results")
    code, out, _ = kith("tuning", "--methods", "um", "local", "--device", "cpu")
    assert code == 0
    assert asked == [("local", 3e-3), ("um", 3e-3), ("local", 1e-3), ("um", 1e-3), ("um", 1e-2), ("local", 3e-4)]
    assert "| fashion-mnist | um |  | 40.0 | 50.0 | 60.0 | 0.01 (the grid's edge) |" in out
    assert "| fashion-mnist | local | 70.0 | 60.0 | 50.0 |  | 0.0003 (the grid's edge) |" in out


def test_runs_that_broke_off_are_named_after_the_drawing(kith: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kithkin.paper.commands.fill", lambda *_: cells.Filled(broken=["um on x: it diverged."]))
    code, _, err = kith("costs", "--quiet")
    assert code == 2
    assert "um on x: it diverged." in err
    assert (tmp_path / "results/drawn/costs.md").exists()


MISTAKES = [
    ("nonsense", "Unknown command 'nonsense'.", "Known: "),
    ("fashion-mnits", "Unknown command 'fashion-mnits'.", "Did you mean 'fashion-mnist'?"),
    ("costs --seeds 0", "--seeds is 0", "Give another --seeds"),
    ("costs --budget -1", "--budget is -1", "Give another --budget"),
    ("fashion-mnist --methods umm", "Unknown method 'umm'", "Did you mean 'um'?"),
    ("fashion-mnist --alphas 3", "Unknown alpha of this table '3'", "Known: 0.5, 1, 10, 5"),
    ("costs --scale smoke --device banana", "no device 'banana'", "--device auto"),
    ("costs --scale smoke --results file", "Cannot write file", "another --results"),
    ("report", "There is no folder results.", "Give the --results of finished runs."),
    ("report --results misspelt", "There is no folder misspelt.", "Give the --results of finished runs."),
    ("list --results misspelt", "There is no folder misspelt.", "Give the --results of finished runs."),
    ("costs --budget 0 --results misspelt", "There is no folder misspelt.", "Give the --results of finished runs."),
    ("costs --budget 0 --out file/x", "Cannot write", "another --out"),
    ("report --results bad --out file/x.md", "Cannot write", "another --out"),
    ("costs --scale short --results bad", "is no finished cell", "Move it away or delete it."),
]


@pytest.mark.parametrize(("words", "problem", "remedy"), MISTAKES, ids=[words for words, _, _ in MISTAKES])
def test_a_mistake_ends_with_one_line_a_remedy_and_code_2(kith: Any, tmp_path: Path, words: str, problem: str, remedy: str):
    (tmp_path / "file").write_text("mine")
    put(RECIPES["costs"].plan(PLAN)[0], tmp_path / "bad").write_text("{}")
    code, _, err = kith(*words.split())
    assert code == 2
    assert problem in err
    assert remedy in err
    assert "Traceback" not in err
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "misspelt").exists()


def test_what_is_written_is_json_that_others_read(tmp_path: Path):
    regenerating("costs")("smoke", results=tmp_path, quiet=True)
    (path,) = (tmp_path / "digits").iterdir()
    assert json.loads(path.read_text())["config"]["data"] == "digits"
