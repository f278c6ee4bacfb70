"""Recipes: the cells that the paper's tables need, and tables and figures that say what they have and what they lack."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import PLAN, put
from PIL import Image

from kithkin.config import DEFAULTS
from kithkin.data.official import SMALL
from kithkin.paper.cells import Cell, Grid, as_text, gather, head_of
from kithkin.paper.drawing import Picture, as_html, heads_beside, png, table
from kithkin.paper.plan import ALL, SUPERVISED, TUNED, Plan
from kithkin.paper.recipes import RECIPES, page
from kithkin.paper.tables import GRID, SMALL_GRID, WORST, contenders, leaders, rates_of, settled, still_contended, tried

PAPER = Plan("paper", "paper", 1)
FIGURES = ["curves", "fairness", "search-rounds", "label-error", "features", "list-length", "confusion", "relation"]


def text_of(name: str, results: Path, plan: Plan = PLAN) -> str:
    cells = RECIPES[name].plan(plan)
    return "\n\n".join(block for block in page(name, gather(cells, results), plan) if isinstance(block, str))


def row(text: str, head: str) -> list[str]:
    """The first line of a table that begins with this word."""
    return next([c.strip() for c in line.split("|")[2:-1]] for line in text.splitlines() if line.startswith(f"| {head} |"))


def some(name: str, chosen: Callable[[Cell], bool], plan: Plan = PLAN) -> Cell:
    return next(c for c in RECIPES[name].plan(plan) if chosen(c))


def test_the_names_are_those_that_were_promised():
    tables = ["fashion-mnist", "cifar-10", "components", "refresh-period", "sample-rate", "pathmnist", "organamnist", "costs"]
    assert set(RECIPES) == {*tables, *FIGURES, "parts", "tuning"}


def test_the_best_that_does_not_know_all_labels_is_bold_and_said_to_be_ahead(tmp_path: Path):
    cells = [c for c in RECIPES["fashion-mnist"].plan(PLAN) if c.column == 0.5]
    for method, test, final in (("um", 0.7, 0.7), ("fedavg-sl", 0.9, 0.9), ("fixavg", 0.8, 0.6), ("local", 0.6, 0.65)):
        put(next(c for c in cells if c.row == method), tmp_path, test=test, final=(final, 0.9))
    text = text_of("fashion-mnist", tmp_path)
    assert row(text, "fixavg")[0] == "**80.0 (n 1)**"
    assert (row(text, "um")[0], row(text, "fedavg-sl")[0]) == ("70.0 (n 1)", "90.0 (n 1)")
    assert "(bold: the best of those that do not know all labels):" in text
    assert "| um-plus |" not in text  # neither ours nor the paper's is known of it
    grid = gather(RECIPES["fashion-mnist"].plan(PLAN), tmp_path)
    assert leaders(grid, 0.5) == "**fixavg&nbsp;80.0** (50% harmed), um&nbsp;70.0, local&nbsp;60.0"
    assert leaders(grid, 5.0) == ""


def test_methods_are_ranked_over_the_seeds_that_all_of_them_have(tmp_path: Path):
    """A third seed with an easy split lifts um above fixavg, which was not run with it."""
    tests = {("um", 0): 0.6, ("um", 1): 0.6, ("um", 2): 0.9, ("fixavg", 0): 0.65, ("fixavg", 1): 0.65, ("fedper", 1): 0.5}
    plan = replace(PLAN, seeds=3)
    cells = {(c.row, c.config.seed): c for c in RECIPES["fashion-mnist"].plan(plan) if c.column == 0.5}
    for place, test in tests.items():
        put(cells[place], tmp_path, test=test)
    grid = gather(RECIPES["fashion-mnist"].plan(plan), tmp_path)
    assert leaders(grid, 0.5) == "**fixavg&nbsp;65.0**, um&nbsp;60.0, fedper&nbsp;50.0"
    assert row(text_of("fashion-mnist", tmp_path, plan), "um")[0] == "70.0 ± 17.3 (n 3)", "a place has all of its seeds"
    put(cells["local", 2], tmp_path, test=0.4)
    grid = gather(RECIPES["fashion-mnist"].plan(plan), tmp_path)
    assert leaders(grid, 0.5) == "**um&nbsp;70.0** (0% harmed), fixavg&nbsp;65.0, fedper&nbsp;50.0", "no seed is everybody's"


def test_columns_of_ours_the_papers_and_the_difference_belong_together_on_the_page():
    alike, other = (
        table([head, *heads_beside("α = 1"), *more], [["um"] * (4 + len(more))]) for head, more in (("", []), ("ν", ["GB"]))
    )
    page_ = as_html(f"# Title\n\n{alike}\n\n{other}\n\n| a |\n| --- |\n| 7.0 (n 2) |", {})
    assert [line for line in page_.splitlines() if line.startswith("<table")] == [
        '<table class="beside">',
        "<table>",
        "<table>",
    ]
    assert "7.0 <small>(n 2)</small>" in page_


def test_the_papers_setting_is_the_papers():
    for cell in RECIPES["fashion-mnist"].plan(PAPER):
        c = cell.config
        assert (c.clients, c.sample_rate, c.rounds, c.epochs, c.batch_size) == (100, 0.1, 200, 5, 64)
        assert (c.lr, c.momentum, c.width, c.data) == (1e-4, 0.9, 64, "fashion-mnist")
    um = some("fashion-mnist", lambda c: c.row == "um", PAPER).settings
    assert (um.helpers, um.candidates, um.search_rounds, um.refresh_every) == (5, 2, 30, 10)
    medical = RECIPES["pathmnist"].plan(PAPER)[0].config
    assert (medical.clients, medical.sample_rate, medical.rounds) == (20, 1.0, 200)


def test_short_cuts_rounds_and_says_so_on_every_page(tmp_path: Path):
    assert {c.config.rounds for c in RECIPES["cifar-10"].plan(PLAN)} == {60}
    assert {c.config.rounds for c in RECIPES["organamnist"].plan(PLAN)} == {30}
    assert {c.config.rounds for c in RECIPES["pathmnist"].plan(PLAN)} == {10}
    assert all("short: 60 rounds instead of 200" in text_of(name, tmp_path) for name in RECIPES if name != "tuning")


def test_small_is_for_small_sets_with_rates_of_its_own_and_is_not_held_against_the_papers_figures(tmp_path: Path):
    small = Plan("small")
    for name in RECIPES:
        cells = RECIPES[name].plan(small)
        assert {c.config.data for c in cells} <= set(SMALL), name
        assert {c.config.width for c in cells} == {8}, name
        assert cells == RECIPES[name].plan(replace(small, rate="tuned")), name
        text = text_of(name, tmp_path, small)
        assert "small: 5,000 pictures of each set" in text, name
        assert "| paper |" not in text, name
        assert "64 channels" not in text, name
    one = RECIPES["organamnist"].plan(small)[0].config
    assert (one.clients, one.rounds, one.sample_rate) == (20, 20, 1.0)
    for plan, says in ((small, False), (PLAN, True)):
        put(some("fashion-mnist", lambda c: c.row == "um", plan), tmp_path)
        assert ("points below the paper's on average" in text_of("fashion-mnist", tmp_path, plan)) is says


def test_twenty_seeds_and_the_first_of_all_before_the_second_of_any():
    cells = RECIPES["fashion-mnist"].plan(Plan("paper", "paper", 20))
    assert len(cells) == 20 * 4 * len(ALL)
    seeds = [c.config.seed for c in cells]
    assert seeds == sorted(seeds)
    assert [c.column for c in cells[: 2 * len(ALL)]] == [0.5] * len(ALL) + [5.0] * len(ALL)
    assert cells[0].row == "um"


def test_every_method_is_tuned_on_the_same_rates_with_a_seed_that_no_table_has():
    cells = RECIPES["tuning"].plan(Plan("paper", "paper", 20))
    assert cells == RECIPES["tuning"].plan(Plan("short", "tuned", 1))
    small = RECIPES["tuning"].plan(Plan("small", "paper", 20))
    assert len({c.file for c in small}) == len(small), "one seed is all there is"
    for method in ALL:
        mine = [c for c in cells if c.row == ("cifar-10", method)]
        assert sorted(c.config.lr for c in mine) == [3e-4, 1e-3, 3e-3, 1e-2]
    for c in cells:
        assert (c.config.rounds, c.config.sample_rate, c.config.alpha, c.config.seed) == (60, 0.1, 0.5, 100)
    assert all(c.config.seed < 20 for c in RECIPES["cifar-10"].plan(Plan("paper", "tuned", 20)))


def test_the_best_rate_is_named_once_its_neighbours_are_known_to_be_worse(tmp_path: Path):
    cells = {c.column: c for c in RECIPES["tuning"].plan(PLAN) if c.row == ("fashion-mnist", "um")}
    for lr, val in {3e-3: 0.5, 1e-3: 0.75, 1e-2: 0.25}.items():
        put(cells[lr], tmp_path, test=val)
    assert "| fashion-mnist | um |  | 75.0 | 50.0 | 25.0 | not settled |" in text_of("tuning", tmp_path)
    put(cells[3e-4], tmp_path, test=0.6)
    assert "| fashion-mnist | um | 60.0 | 75.0 | 50.0 | 25.0 | 0.001 |" in text_of("tuning", tmp_path)
    put(cells[3e-4], tmp_path, test=0.8)
    assert "| fashion-mnist | um | 80.0 | 75.0 | 50.0 | 25.0 | 0.0003 (the grid's edge) |" in text_of("tuning", tmp_path)


def test_a_rate_at_which_training_diverges_is_worse_than_any(tmp_path: Path):
    cells = {c.column: c for c in RECIPES["tuning"].plan(PLAN) if c.row == ("fashion-mnist", "um")}
    put(cells[3e-3], tmp_path, test=0.5)
    put(cells[1e-3], tmp_path, test=0.25)
    (tmp_path / cells[1e-2].file).write_text(as_text(head_of(cells[1e-2]) | {"diverged": "It did."}))
    text = text_of("tuning", tmp_path)
    assert "| fashion-mnist | um |  | 25.0 | 50.0 | diverges | 0.003 |" in text
    assert "Diverged: fashion-mnist, um at learning rate = 0.01." in text


def test_a_rate_that_need_not_be_tried_is_shown_where_it_was():
    records = {3e-3: 0.9, 1e-2: 0.5, 1e-3: 0.6, 3e-4: 0.1}
    found: Any = {("um", lr): [{"summary": {"best_val": val}}] for lr, val in records.items()}
    grid = Grid({("um", lr): [] for lr in GRID}, found)
    assert still_contended(grid, GRID).columns == list(GRID)
    del found["um", 3e-4]
    assert still_contended(grid, GRID).columns == [3e-3, 1e-3, 1e-2]


@given(st.sampled_from([GRID, SMALL_GRID]), st.lists(st.sampled_from([WORST, 0.1, 0.2]), min_size=6, max_size=6))
def test_from_the_middle_outwards_one_go_settles_any_grid(rates: tuple[float, ...], accuracies: list[float]):
    known: dict[float, float] = {}
    for lr, accuracy in zip(rates, accuracies, strict=False):
        if lr in contenders(known, rates):
            known[lr] = accuracy
    best = settled(known, rates)
    assert (best is None) == (max(accuracies[: len(rates)]) == WORST)
    assert best is None or known[best] == max(known.values())


def test_tuned_rates_are_those_that_the_committed_grid_settled():
    for asked, tables in ((PLAN, Plan("paper", "tuned")), (Plan("small"), Plan("small"))):
        grid = gather(RECIPES["tuning"].plan(asked), Path(__file__).parents[2] / "results")
        rates = rates_of(asked)
        found = {row: settled(known, rates) for row in grid.rows if (known := tried(grid, row))}
        choices = {row: best for row, best in found.items() if best}
        assert len(choices) >= 12
        for (data, method), best in choices.items():
            (cell,) = tables.cells("", "", data, method, 0.5)
            assert cell.config.lr == best, (tables, data, method)


def test_harmed_are_those_who_end_more_than_three_points_below_local_of_the_same_seed(tmp_path: Path):
    plan = replace(PLAN, seeds=2)
    ends = {("local", 0): (0.5, 0.5, 0.5, 0.5), ("um", 0): (0.48, 0.46, 0.5, 0.9), ("um", 1): (0.1, 0.1, 0.1, 0.1)}
    for cell in RECIPES["fairness"].plan(plan):
        (data, method), c = cell.row, cell.config
        if data == "cifar-10" and c.alpha == 5 and (method, c.seed) in ends:
            put(cell, tmp_path, final=ends[method, c.seed])
    text = text_of("fairness", tmp_path, plan)
    assert "α = 1" not in text, "nothing was run there"
    assert row(text, "cifar-10 um") == ["0.0200 ± 0.0000 (n 2)", "28.0 ± 25.5 (n 2)", "25.0 (n 1)"]
    assert row(text, "cifar-10 local") == ["0.0200 (n 1)", "50.0 (n 1)", ""]
    assert "| fashion-mnist um |" not in text, "nothing was run of it"


def test_every_part_of_um_plus_is_taken_away_by_itself(tmp_path: Path):
    cells = [c for c in RECIPES["parts"].plan(PLAN) if c.column == "cifar-10"]
    whole = asdict(cells[0].settings)
    changed = {c.row: {k for k, v in asdict(c.settings).items() if v != whole[k]} for c in cells}
    assert changed.pop("no helpers") == {"helpers", "candidates"}
    assert changed.pop("um-plus") == set()
    assert all(len(names) <= 1 for names in changed.values())
    put(cells[2], tmp_path, test=0.75)
    assert row(text_of("parts", tmp_path), "no helpers")[4:] == ["75.0 (n 1)", "0.0300 (n 1)", "25.0 (n 1)", "50.0 (n 1)"]


def test_the_tuned_rate_is_the_data_sets_usual_one_unless_a_methods_own_is_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TUNED, "fashion-mnist", {"fixavg": {"lr": 0.125}})
    tuned = Plan("paper", "tuned", 1)
    at = {c.row: c for c in RECIPES["fashion-mnist"].plan(tuned)}
    assert at["um"].config.lr == DEFAULTS["fashion-mnist"]["lr"]
    assert at["fixavg"].config.lr == 0.125
    assert {c.config.lr for c in RECIPES["fashion-mnist"].plan(PAPER)} == {1e-4}


def test_a_flag_beside_the_rate_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TUNED, "fashion-mnist", {"um": {"lr": 0.125}, "um-plus": {"views": "weak", "tune_epochs": 0}})
    told = "tuned learning rates (um-plus on fashion-mnist with views weak, tune epochs 0)."
    assert told in text_of("fashion-mnist", tmp_path, Plan("short", "tuned", 1))
    assert "um-plus on" not in text_of("fashion-mnist", tmp_path, PLAN)


def test_cells_that_several_recipes_want_are_one():
    def files(name: str, plan: Plan = PAPER) -> set[str]:
        return {c.file for c in RECIPES[name].plan(plan)}

    assert files("fashion-mnist") < files("curves")
    for name in ("components", "refresh-period", "sample-rate", "search-rounds", "list-length", "relation", "costs"):
        assert len(files(name) & files("fashion-mnist")) >= 1, name


def test_a_table_has_mean_deviation_number_the_papers_and_the_difference(tmp_path: Path):
    plan = replace(PLAN, seeds=2)
    for cell in RECIPES["fashion-mnist"].plan(plan):
        if (cell.row, cell.column) in (("um", 0.5), ("local", 5.0)):
            put(cell, tmp_path, test=0.75 if cell.config.seed else 0.85)
    text = text_of("fashion-mnist", tmp_path, plan)
    assert row(text, "um") == ["80.0 ± 7.1 (n 2)", "79.00", "+1.0", *["", "80.93", ""], *["", "81.16", ""], *["", "81.49", ""]]
    assert row(text, "local")[6:9] == ["80.0 ± 7.1 (n 2)", "", ""]
    assert row(text, "fixavg") == ["", "75.94", "", "", "76.78", "", "", "78.68", "", "", "79.59", ""]
    assert "90.0 ± 7.1 (n 2)" in text  # the largest of any round
    assert f"2 of {4 * len(ALL)} cells, 4 runs, by kithkin 0.0.1 on an abacus" in text
    assert f"Lacks {4 * len(ALL) - 2} of {4 * len(ALL)} cells" in text
    assert "another n" not in text
    assert "1.0 points above the paper's on average (1 above, 0 below); farthest: um at α = 0.5 (+1.0)" in text
    put(some("fashion-mnist", lambda c: (c.row, c.column) == ("fixavg", 0.5), plan), tmp_path, test=0.5)
    text = text_of("fashion-mnist", tmp_path, plan)  # (80 - 79 + 50 - 75.94) / 2 = -12.47
    assert "12.5 points below the paper's on average (1 above, 1 below); farthest: fixavg at α = 0.5 (-25.9)" in text
    assert "places with another n are means over other splits" in text


def test_an_empty_table_is_blank_and_says_so(tmp_path: Path):
    text = text_of("components", tmp_path)
    assert row(text, "cifar-10, alpha 10") == ["", "47.95", "", "", "50.47", "", "", "54.03", ""]
    assert "0 of 24 cells, 0 runs." in text
    assert "on average" not in text


def test_costs_are_shares_of_the_most_expensive(tmp_path: Path):
    columns = [(c.row, c.column) for c in RECIPES["refresh-period"].plan(PLAN)]
    assert columns[:5] == [("um", nu) for nu in (10, 1, 5, 15, 20)], "first what other tables need"
    assert columns[5:] == [("um-plus", nu) for nu in (10, 1, 5, 15, 20)]
    for cell in RECIPES["refresh-period"].plan(PLAN):
        if cell.row == "um" and cell.column in (1, 20):
            put(cell, tmp_path, moved=4_000_000 if cell.column == 1 else 1_000_000)
    text = text_of("refresh-period", tmp_path)
    assert "Test accuracy at the round of best mean validation accuracy; cost: bytes moved" in text
    assert row(text, "um | 20")[5:] == ["25.0 (n 1)", "12.00", "+13.0"]
    assert row(text, "um | 5")[5:] == ["", "26.00", ""]
    assert "| um-plus |" not in text, "nothing was run with it"


def test_the_sweeps_take_um_plus_beside_um(tmp_path: Path):
    for name in ("refresh-period", "sample-rate", "search-rounds", "list-length"):
        cells = RECIPES[name].plan(PLAN)
        assert {c.config.method for c in cells} == {"um", "um-plus"}
        varied = {(c.config.method, c.config.data, c.config.alpha, c.column) for c in cells}
        assert len(varied) == len({c.key for c in cells}) == len(cells), name
    for cell in RECIPES["refresh-period"].plan(PLAN):
        if cell.row == "um-plus" and cell.column in (1, 20):
            put(cell, tmp_path, test=0.9, moved=8_000_000 if cell.column == 1 else 2_000_000)
    text = text_of("refresh-period", tmp_path)
    assert row(text, "um-plus | 20") == ["20", "90.0 (n 1)", "", "", "100.0 (n 1)", "25.0 (n 1)", "", ""], "of its own bytes"
    assert row(text, "um | 20") == ["20", "", "73.21", "", "", "", "12.00", ""]


def test_figures_of_sweeps_tell_both_methods_apart(tmp_path: Path):
    for name in ("search-rounds", "list-length"):
        for cell in RECIPES[name].plan(PLAN):
            put(cell, tmp_path, test=0.9 if cell.config.method == "um-plus" else 0.7)
    (search,), (length,) = pictures("search-rounds", tmp_path), pictures("list-length", tmp_path)
    for axes in search.figure.axes[:2]:
        assert {line.get_label(): set(line.get_ydata()) for line in axes.lines} == {"um": {70.0}, "um-plus": {90.0}}
    for axes in length.figure.axes:
        assert {(line.get_label().split(",")[0], line.get_linestyle()) for line in axes.lines} == {
            ("um", "-"),
            ("um-plus", "--"),
        }
        assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == len(axes.lines) == 8
    assert row(text_of("list-length", tmp_path), "cifar-10 | um-plus | 5")[2:] == ["90.0 (n 1)"] * 5


def test_without_its_measure_a_cost_is_blank(tmp_path: Path):
    put(some("sample-rate", lambda c: c.column == 0.1), tmp_path)
    assert row(text_of("sample-rate", tmp_path), "um | 0.1")[1:] == [
        "50.0 (n 1)",
        "79.00",
        "-29.0",
        "60.0 (n 1)",
        "",
        "10.70",
        "",
    ]


def test_formulas_stand_beside_bytes(tmp_path: Path):
    put(some("costs", lambda c: c.row == "cifar-10"), tmp_path, moved=12_346_000_000_000)
    text = text_of("costs", tmp_path)
    assert row(text, "cifar-10")[:7] == ["8", "2", "6", "75.0", "12,300", "6,170", "6,170"]
    assert set(row(text, "pathmnist")) == {""}


def test_confusion_tells_the_worst_class_and_who_is_better(tmp_path: Path):
    um, mix = (some("confusion", lambda c, m=m: (c.row, c.column) == ("pathmnist", m)) for m in ("um", "mix"))
    put(um, tmp_path, confusion=[[3, 1], [0, 4]])
    put(mix, tmp_path, confusion=[[4, 0], [2, 2]])
    lines = [line for line in text_of("confusion", tmp_path).splitlines() if line.startswith("| pathmnist")]
    assert lines == ["| pathmnist | um | 75.0 | 87.5 | 1 of 2 |", "| pathmnist | mix | 50.0 | 75.0 |  |"]


def test_every_recipe_tells_what_differs():
    assert all(len(recipe.words) > 60 for recipe in RECIPES.values())


def pictures(name: str, results: Path) -> list[Picture]:
    blocks = page(name, gather(RECIPES[name].plan(PLAN), results), PLAN)
    return [block for block in blocks if isinstance(block, Picture)]


def inked(picture: Picture) -> int:
    """How many of its pixels are not white."""
    image = Image.open(io.BytesIO(png(picture.figure))).convert("L")
    return sum(image.histogram()[:250])


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_shows_what_there_is_and_says_what_it_lacks(name: str, tmp_path: Path):
    cells = RECIPES[name].plan(PLAN)
    empty = pictures(name, tmp_path)
    assert empty
    assert all(p.caption.count("Lacks") == 1 for p in empty)
    assert "Lacks" not in text_of(name, tmp_path)
    for cell in cells:
        put(cell, tmp_path)
    full = pictures(name, tmp_path)
    assert all("Lacks" not in p.caption for p in full)
    marks = [sum(len(a.lines) + len(a.collections) + len(a.images) for a in p.figure.axes) for p in full]
    assert all(marks)
    assert all(inked(p) > 1000 for p in full)
    before = [sum(len(a.lines) + len(a.collections) + len(a.images) for a in p.figure.axes if a.get_title()) for p in empty]
    assert all(b < m for b, m in zip(before, marks, strict=True))


def test_a_figure_names_what_it_lacks_of_its_own_data_set(tmp_path: Path):
    for cell in RECIPES["curves"].plan(PLAN):
        if cell.config.data == "fashion-mnist" or (cell.config.method, cell.config.alpha) not in {("um", 1), ("local", 5)}:
            put(cell, tmp_path)
    fashion, cifar = pictures("curves", tmp_path)
    assert "Lacks" not in fashion.caption
    assert cifar.caption.endswith(f"Lacks 2 of {4 * len(ALL)} cells: local at α = 5; um at α = 1.")
    assert "Lacks 8 of 10 cells: um at ν = 1; um at ν = 5; um at ν = 15" in text_of("refresh-period", tmp_path)


def test_curves_of_all_alphas_have_one_height_and_the_words_on_their_lines_are_true(tmp_path: Path):
    for cell in RECIPES["curves"].plan(PLAN):
        put(cell, tmp_path)
    fashion, _ = pictures("curves", tmp_path)
    assert len({axes.get_ylim() for axes in fashion.figure.axes}) == 1
    assert [axes.get_ylabel() for axes in fashion.figure.axes] == ["validation accuracy", "", "", ""]
    of = {line.get_label(): (line.get_linewidth() > 2, line.get_linestyle()) for line in fashion.figure.axes[0].lines}
    assert {name for name, (thick, _) in of.items() if thick} == {"um", "um-plus"}, "helpers"
    assert {name for name, (_, dash) in of.items() if dash == ":"} == set(SUPERVISED)
    assert {name for name, (_, dash) in of.items() if dash == "--"} == {"fixavg-ft", "fedper", "lg-fedavg", "pfedme", "local"}
    assert all(word in fashion.caption for word in ("Thick: clients learn from helpers", "Dashed", "dotted with all labels"))


def test_a_line_of_fairness_breaks_where_an_alpha_was_not_run(tmp_path: Path):
    for cell in RECIPES["fairness"].plan(PLAN):
        if cell.row == ("cifar-10", "um" if cell.column != 1 else "local"):
            put(cell, tmp_path)
    (picture,) = pictures("fairness", tmp_path)
    png(picture.figure)
    empty, ran = picture.figure.axes
    (line,) = (line for line in ran.lines if line.get_label() == "um")
    assert np.isnan(line.get_ydata()).tolist() == [False, True, False, False]
    assert len(empty.get_yticks()) > 1, "it has the axis of both"
    assert {text.get_fontsize() for text in empty.get_yticklabels(which="both")} == {8.0}


def test_a_share_of_what_was_not_run_says_so(tmp_path: Path):
    put(some("search-rounds", lambda c: c.row == ("cifar-10", "um") and c.column == 30), tmp_path)
    (picture,) = pictures("search-rounds", tmp_path)
    png(picture.figure)
    said = [[text.get_text() for text in axes.texts] for axes in picture.figure.axes]
    assert said == [["not run yet"], [], ["not run yet"], ["a share of that with F = 60,\nwhich was not run yet"]]


def test_numbers_in_a_confusion_matrix_can_be_read(tmp_path: Path):
    put(RECIPES["confusion"].plan(PLAN)[0], tmp_path)
    (picture,) = pictures("confusion", tmp_path)
    assert min(text.get_fontsize() for text in picture.figure.axes[0].texts) >= 7


def test_figures_of_two_settings_have_names_of_their_own(tmp_path: Path):
    plans = [Plan(s, r, 1) for s in ("short", "paper") for r in ("paper", "tuned")]
    names: list[Any] = [
        block.name for plan in plans for block in page("relation", gather([], tmp_path), plan) if isinstance(block, Picture)
    ]
    assert len(set(names)) == 4


@pytest.mark.parametrize(
    ("name", "panels"), [("curves", 1), ("features", 1), ("confusion", 1), ("label-error", 1), ("relation", 3)]
)
def test_a_figure_has_no_panel_for_what_was_not_run(name: str, panels: int, tmp_path: Path):
    before = pictures(name, tmp_path)
    put(RECIPES[name].plan(PLAN)[0], tmp_path)
    fewest = min(len(p.figure.axes) for p in pictures(name, tmp_path))
    assert fewest == panels < min(len(p.figure.axes) for p in before)


def test_one_curve_alone_has_no_panel_beside_those_that_compare(tmp_path: Path):
    cells = {(c.row, c.column): c for c in RECIPES["curves"].plan(PLAN)}
    for method, alpha in (("um", 0.5), ("local", 0.5), ("um", 5.0)):
        put(cells[("fashion-mnist", method), alpha], tmp_path)
    fashion, _ = pictures("curves", tmp_path)
    assert [axes.get_title() for axes in fashion.figure.axes] == ["α = 0.5"]


def test_a_sweep_has_a_tick_for_every_value_and_says_where_nothing_was_run(tmp_path: Path):
    put(some("list-length", lambda c: c.row == ("fashion-mnist", "um", 0.5) and c.column == 5), tmp_path)
    (picture,) = pictures("list-length", tmp_path)
    png(picture.figure)
    ran, empty = picture.figure.axes
    assert [[t.get_text() for t in axes.get_xticklabels()] for axes in (ran, empty)] == [["3", "5", "7", "10", "15"]] * 2
    assert ran.lines[0].get_ydata().tolist() == pytest.approx([math.nan, 50.0, *[math.nan] * 3], nan_ok=True)
    assert [[t.get_text() for t in axes.texts] for axes in (ran, empty)] == [[], ["not run yet"]]
    low, high = ran.get_ylim()
    assert (low + high) / 2 == pytest.approx(50.0)
    assert high - low >= 2
