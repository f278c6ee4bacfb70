"""The page in a real browser: everything is drawn, can be reached and used, stays text, and is up to date."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from invented import make_up, many_pictures, write_lines

from kithkin.disk import write_text
from kithkin.report import gather, page, write_page
from kithkin.report.serve import server_for

pytestmark = pytest.mark.xdist_group("browser")
FIGURES = {
    *("curve", "scatter", "gains", "spread", "strips", "graph", "person", "churn", "audit", "coverage"),
    *("reliability", "by-class", "by-helper", "bytes", "worth", "confusion", "features", "split"),
}


@pytest.fixture
def view(chromium: Any) -> Iterator[Any]:
    """Opens a page; an error, a request to anywhere else, or a console message that is not `expected` fails the test."""
    faults: list[str] = []
    contexts: list[Any] = []

    def open_(address: str | Path, width: int = 1366, scheme: str = "light", expected: str = "nothing") -> Any:
        viewport = {"width": width, "height": 844}
        context = chromium.new_context(viewport=viewport, color_scheme=scheme, has_touch=width < 500)
        contexts.append(context)
        context.set_default_timeout(180_000)  # on a machine that does much else
        tab = context.new_page()
        tab.on(
            "console", lambda message: None if expected in message.text else faults.append(f"{message.type}: {message.text}")
        )
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("dialog", lambda dialog: (faults.append("dialog"), dialog.dismiss()))
        url = address.as_uri() if isinstance(address, Path) else address
        tab.on("request", lambda r: None if r.url.startswith((url, "data:")) else faults.append(f"request {r.url}"))
        tab.goto(url)
        tab.wait_for_selector("html[data-ready]")
        return tab

    yield open_
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture(scope="module")
def both(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a um run beside a local one, with looks made up: these runs kept no models."""
    data = gather([runs["um"], runs["local"]])
    data["runs"][0] |= {
        "confusion": [[9 if a == b else 1 for b in range(10)] for a in range(10)],
        "features": {"model_of": 1, "x": [0, 1, 2], "y": [2, 0, 1], "class": [0, 1, 9], "client": [0, 1, 2]},
    }
    out = tmp_path_factory.mktemp("page") / "both.html"
    out.write_text(page(data), encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def comparison(compared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "comparison.html"
    write_page([compared], out, models=False)
    return out


def written(folder: Path, *runs: Path) -> Path:
    write_page(runs, folder / "page.html", models=False)
    return folder / "page.html"


def figures(tab: Any) -> dict[str, str]:
    return tab.evaluate("Object.fromEntries([...document.querySelectorAll('[data-figure]')].map(f => [f.id, f.dataset.drawn]))")


@pytest.mark.parametrize(("width", "scheme"), [(1366, "light"), (390, "dark")])
def test_every_figure_is_drawn_and_told_in_words(view: Any, both: Path, width: int, scheme: str):
    tab = view(both, width, scheme)
    assert set(figures(tab)) == FIGURES
    tab.select_option("#client", "3")
    assert set(figures(tab).values()) == {"yes"}
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    ids = tab.eval_on_selector_all("[id]", "all => all.map(x => x.id)")
    assert len(ids) == len({*ids})
    for label in tab.eval_on_selector_all("[data-figure] svg[role=img]", "all => all.map(x => x.getAttribute('aria-label'))"):
        assert len(label) > 20
        assert "undefined" not in label + tab.inner_text("main")
        assert "NaN" not in label


def test_of_confusions_is_said_that_they_are_of_the_last_round(view: Any, both: Path):
    assert "model of the last round, not of the best validation round" in view(both).inner_text("#confusion")


def test_the_slider_moves_through_the_rounds_by_keyboard(view: Any, both: Path):
    tab = view(both)
    assert tab.inner_text("output[for=step]") == "round 8"
    edges = "document.querySelector('#graph path.edge').getAttribute('d')"
    before = tab.evaluate(edges)
    tab.focus("#step")
    tab.keyboard.press("ArrowLeft")
    assert tab.inner_text("output[for=step]") == "round 6"
    assert tab.evaluate(edges) != before
    assert tab.evaluate("getComputedStyle(document.querySelector('#step')).outlineStyle") != "none"


def test_a_client_is_chosen_by_name_and_by_its_dot(view: Any, both: Path, runs: dict[str, Path]):
    tab = view(both)
    last = json.loads((runs["um"] / "lists.jsonl").read_text().splitlines()[-1])["helpers"]
    tab.select_option("#client", "5")
    assert tab.inner_text("#chosen") == "Client 5"
    shown = tab.eval_on_selector_all("#person tbody td:first-child", "all => all.map(x => parseInt(x.textContent))")
    assert shown == [h[0] for h in last[5]]
    assert tab.locator("#graph .node.chosen").count() == 1
    assert tab.locator("#scatter .chosen").count() == 2  # the same client in both runs
    tab.locator("#graph .node").nth(2).scroll_into_view_if_needed()
    box = tab.locator("#graph .node").nth(2).bounding_box()
    tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert tab.inner_text("#chosen") == "Client 2"
    assert "client 2" in tab.inner_text("#tip")
    tab.keyboard.press("Escape")
    assert tab.locator("#chosen").count() == 0


def test_runs_can_be_hidden_and_chosen(view: Any, both: Path):
    tab = view(both)
    assert tab.locator("#curve .key li").count() == 2
    tab.get_by_role("button", name="local").click()
    assert tab.locator("#curve .key li").count() == 1
    tab.select_option("#run", label="local")
    assert figures(tab)["graph"] == "remark"
    assert "keeps no helper lists" in tab.inner_text("#graph")
    tab.get_by_role("button", name="um").click()
    told = tab.locator(".none").all_inner_texts()
    assert told.count("All runs are switched off at the top.") == 8  # of all figures that are about all runs


def test_the_rounds_of_the_audit_and_the_axes_can_be_chosen(view: Any, both: Path):
    tab = view(both)
    whole = tab.get_attribute("#by-class svg", "aria-label")
    tab.focus("#stretch")
    tab.keyboard.press("End")
    assert tab.inner_text("output[for=stretch]") == "round 8"
    assert tab.get_attribute("#by-class svg", "aria-label") != whole
    tab.select_option("#up", "gain")
    assert "gain over local" in tab.text_content("#scatter .plot")
    tab.check("#greedy")
    assert "formula (27)" in tab.inner_text("#bytes .keys")
    tab.click("#theme")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"


def test_rounds_have_whole_ticks_and_a_best_value_has_a_second_beside_it(view: Any, both: Path):
    tab = view(both)
    assert tab.evaluate("niceTicks(1, 10, 4, true)") == [5, 10]
    assert tab.evaluate("niceTicks(1, 3, 9, true)") == [1, 2, 3]
    assert tab.evaluate("niceTicks(1, 8, 2, true)") == [2, 4, 6, 8]  # by fives there would be one
    assert tab.evaluate("niceTicks(0, 1, 4)") == [0, 0.25, 0.5, 0.75, 1]
    heads = tab.eval_on_selector_all("#headline thead th", "all => all.map(x => x.textContent)")
    best = tab.eval_on_selector_all("#headline td.best", "all => all.map(x => x.cellIndex)")
    assert {heads[i] for i in best} == {"test accuracy", "best of any round", "worst 10%", "variance"}


def test_no_run_is_the_best_beside_runs_on_other_data(view: Any, runs: dict[str, Path], tmp_path: Path):
    other = make_up(tmp_path / "other", data=str(many_pictures(tmp_path / "many.npz", 600)))
    tab = view(written(tmp_path, runs["um"], other))
    assert tab.locator("#headline tbody tr").count() == 2
    assert tab.locator("#headline td.best").count() == tab.locator("#answer").count() == 0
    assert "the best on its data." in tab.inner_text("#headline .note")


def test_it_says_where_harm_may_be_luck(view: Any, both: Path):
    tab = view(both)
    few = tab.evaluate("Math.min(...DATA.runs.map(run => run.clients.tested))")
    told = f"Half of the clients have {few:g} test pictures or fewer: that a few are harmed may be luck."
    assert told in tab.inner_text("#gains figcaption")
    assert tab.evaluate("DATA.runs.forEach(run => run.clients.tested = 33), luck()")
    assert tab.evaluate("DATA.runs.forEach(run => run.clients.tested = 34), luck()") == ""


def test_the_answer_tells_of_gains_and_harm_and_doubts_what_seeds_may_do(view: Any, both: Path):
    rows = """[{ name: "b", like: current(), test: .8, test_sd: .06, gain: -.2, harmed: .5 },
        { name: "a", like: current(), test: .9, test_sd: .05, gain: -.05, harmed: .25 }]"""
    tab = view(both)
    assert tab.evaluate(f"answer({rows}).textContent") == (
        "a is the most accurate, 90.0%, 10.0 points ahead of b, less than seeds differ."
        " Its clients lose 5.0 points against training alone; 25% of them are harmed."
    )
    better = rows.replace("-.05", ".05").replace(".25", "0").replace(".06", "null")
    assert tab.evaluate(f"answer({better}).textContent") == (
        "a is the most accurate, 90.0%, 10.0 points ahead of b."
        " Its clients gain 5.0 points against training alone; none is harmed."
    )
    alike = better.replace(".8,", ".9002,")
    assert tab.evaluate(f"answer({alike}).textContent").startswith("b is the most accurate, 90.0%, as is a. Its clients")
    tab.evaluate("current().finished = false")
    assert tab.evaluate(f"answer({better}).textContent").startswith("a is the most accurate so far, 90.0%, 10.0 points")


def test_a_run_without_validation_pictures_says_so(view: Any, runs: dict[str, Path], tmp_path: Path):
    assert "at the best validation round" in view(written(tmp_path, runs["um"])).inner_text("#headline")
    folder = Path(shutil.copytree(runs["um"], tmp_path / "um"))
    marks = [json.loads(line) for line in (folder / "marks.jsonl").read_text().splitlines()]
    write_lines(folder / "marks.jsonl", [line | {"val": [None] * len(line["val"])} for line in marks])
    assert "at the last round: nobody has validation pictures" in view(written(tmp_path, folder)).inner_text("#headline")


def test_what_many_runs_lack_is_said_once(view: Any, compared: Path, tmp_path: Path):
    home = Path(shutil.copytree(compared, tmp_path / "compared"))
    for path in home.glob("um-*/lists.jsonl"):
        path.unlink()
    told = view(written(tmp_path, home)).locator("#remarks li").all_inner_texts()
    names = "um a5 s0 · um a5 s1 · um a5 s2 · um a0.5 s0 and 2 more"
    assert told == [f"{names}: lists.jsonl is missing; the figures made from it are left out."]


def test_numbers_are_there_as_a_table(view: Any, both: Path):
    tab = view(both)
    tab.click("#bytes summary")
    tab.locator("#bytes tbody tr").first.wait_for()
    assert tab.locator("#bytes tbody tr").count() == 8
    tab.hover("#curve .plot")
    assert "um:" in tab.inner_text("#tip")
    tab.hover("#coverage .plot")
    assert re.search(r"^round \d\num: \d+\.\d%$", tab.inner_text("#tip"))


def test_a_comparison_begins_with_a_row_a_method_and_alpha(view: Any, comparison: Path):
    tab = view(comparison)
    assert tab.inner_text("h1") == "3 methods · 2 alphas · 3 seeds"
    for told, alpha in zip(tab.locator("#answer li").all_inner_texts(), (5, 0.5), strict=True):
        first, second, _ = sorted(
            (row["test"], row["name"].split()[0])
            for row in tab.evaluate("DATA.comparison")
            if row["name"].endswith(f" a{alpha:g}")
        )[::-1]
        assert told.startswith(f"At alpha {alpha:g}: {first[1]} is the most accurate, {first[0]:.1%}, ")
        assert f" points ahead of {second[1]}" in told
    rows = tab.locator("#headline > .table tbody tr")
    assert [row.split("\t")[0] for row in rows.all_inner_texts()][:4] == ["um a5", "local a5", "mix a5", "um a0.5"]
    assert {row.split("\t")[5] for row in rows.all_inner_texts()} == {
        f"{row['variance']:.4f}" for row in tab.evaluate("DATA.comparison")
    }
    assert tab.locator("#curve .key li").all_inner_texts()[0] == "um a5, 3 seeds"
    assert " ± " in rows.first.inner_text()
    best = "all => all.filter(x => x.cellIndex === 1).map(x => x.parentNode.rowIndex > 3)"
    assert tab.eval_on_selector_all("#headline > .table td.best", best) == [False, True]
    tab.click("#headline summary")
    assert tab.locator("#headline details tbody tr").count() == 18
    assert not tab.is_visible("#strips table")
    heads = tab.locator("#headline thead").first.inner_text().split("\t")
    assert heads[:4] == [
        "method",
        "test accuracy",
        "gain over local",
        "harmed",
    ]  # what a phone shows without scrolling, or nearly


def test_a_group_of_runs_looks_the_same_everywhere_and_like_no_other(view: Any, comparison: Path):
    tab = view(comparison)
    glyphs = "all => all.map(x => x.outerHTML)"
    chips, rows, dots, lines = (
        tab.eval_on_selector_all(f"{where} .glyph", glyphs)
        for where in (".chips", "#headline > .table", "#scatter .key", "#curve .key")
    )
    assert chips == rows == dots
    assert len(set(chips)) == len(set(lines)) == 6
    drawn = "all => new Set(all.map(x => x.getAttribute('stroke') + x.getAttribute('stroke-dasharray'))).size"
    assert tab.eval_on_selector_all("#curve .plot path[stroke-linejoin]", drawn) == 6
    tab.get_by_role("button", name="um a0.5").click()
    assert tab.locator("#curve .plot path[stroke-linejoin]").count() == 15


def test_a_dot_chooses_its_run_too(view: Any, comparison: Path):
    tab = view(comparison)
    assert tab.inner_text("#graph h3") == "Helper graph · um a5 s0"
    x, y = tab.evaluate("""() => {
        const [, x, y] = document.querySelectorAll("#scatter .plot path")[2].getAttribute("d").match(/M([\\d.]+),([\\d.]+)/);
        const svg = document.querySelector("#scatter .plot svg");
        svg.scrollIntoView({ block: "center", behavior: "instant" });
        const box = svg.getBoundingClientRect();
        return [box.left + +x + 4, box.top + +y];
    }""")
    tab.mouse.click(x, y)
    run, client = re.findall(r"(.*), client (\d+)", tab.inner_text("#tip"))[0]
    assert run != "um a5 s0"
    for card in ("person", "graph", "churn", "reliability", "by-class", "by-helper", "bytes", "split"):
        assert tab.inner_text(f"#{card} h3").endswith(f" · {run}")
    assert tab.inner_text("#chosen") == f"Client {client}"
    assert tab.locator("#scatter .chosen").count() == 3  # the same client in the three methods on that split
    tab.select_option("#run", label="um a0.5 s0")
    assert tab.locator("#chosen").count() == 0


def test_of_many_lines_the_best_and_the_nearest_are_told(view: Any, comparison: Path):
    tab = view(comparison)
    ends = tab.evaluate("bounds(DATA.runs.map(run => run.curve.mean.at(-1))).map(v => pct(v))")
    size = tab.locator("#curve .plot").bounding_box()
    for height in (30, size["height"] - 50):
        tab.hover("#curve .plot", position={"x": size["width"] - 20, "y": height})
        told = tab.inner_text("#tip")
        assert all(end in told for end in ends)
        assert told.endswith("… and 6 more")


def test_a_tap_tells_and_a_tap_elsewhere_ends_it(view: Any, both: Path):
    tab = view(both, 390)
    tab.tap("#curve .plot svg")
    assert "um:" in tab.inner_text("#tip")
    tab.tap("#fairness h2")
    assert not tab.is_visible("#tip")


def test_a_point_between_gaps_is_seen(view: Any, both: Path):
    tab = view(both)
    drawn = """ys => {
        const p = { svg: canvas(9, 9), X: x => x, Y: y => y };
        line(p, ys.map((_, i) => i), ys, "red");
        return [...p.svg.children].map(x => (x.getAttribute("class") || "line") + x.getAttribute("d"));
    }"""
    assert tab.evaluate(drawn, [0, 1]) == ["lineM0.0,0.0L1.0,1.0"]
    dots, rest = tab.evaluate(drawn, [0, None, 1, 1])
    assert dots.startswith("dotsM-3.0,0.0a3,3")  # a disc of radius 3 about the first
    assert rest.endswith("M2.0,1.0L3.0,1.0")
    assert [path[:4] for path in tab.evaluate(drawn, [None, 1, None])] == ["dots"]


def test_two_who_help_each_other_have_two_lines(view: Any, both: Path):
    tab = view(both)
    tab.evaluate("listOf(current()).forEach((row, k, all) => { all[k] = { 0: [7, 900], 7: [0, 900] }[k] || []; })")
    tab.select_option("#client", "0")
    inward, outward = (tab.get_attribute(f"#graph path.edge.{role}", "d") for role in ("in", "out"))
    ends = r"M(\S+)Q(\S+) (\S+)"
    (a, bend, b), (c, other, d) = re.findall(ends, inward)[0], re.findall(ends, outward)[0]
    assert (a, b) == (d, c)
    (x, y), (u, v) = (map(float, at.split(",")) for at in (bend, other))
    assert (x - u) ** 2 + (y - v) ** 2 > 15**2


def test_one_round_alone_stands_in_the_middle_and_its_bytes_are_seen(view: Any, tmp_path: Path):
    write_page([make_up(tmp_path / "um", rounds=1, every=1)], tmp_path / "page.html", models=False)
    tab = view(tmp_path / "page.html", 390)
    ticks = "all => all.map(x => x.textContent)"
    assert tab.eval_on_selector_all("#bytes text[text-anchor=middle]", ticks) == ["1"]
    plot, stack = tab.locator("#bytes .plot svg").bounding_box(), tab.locator("#bytes path[opacity='0.82']")
    assert stack.count() == 2
    for box in (stack.nth(i).bounding_box() for i in range(2)):
        assert box["width"] > 30
        assert box["height"] > 5
        assert abs(box["x"] + box["width"] / 2 - plot["x"] - plot["width"] / 2) < 40


def test_rounds_show_the_first_and_the_last(view: Any, runs: dict[str, Path], tmp_path: Path):
    write_page([runs["um"]], tmp_path / "page.html", models=False)
    tab = view(tmp_path / "page.html", 390)
    ticks = tab.eval_on_selector_all("#audit text[text-anchor=middle]", "all => all.map(x => +x.textContent)")
    assert {1, 8} < set(ticks)


def test_axes_and_tips_say_what_a_bare_number_is(view: Any, both: Path):
    tab = view(both)
    assert tab.locator("#split path[fill='var(--pale)']").count() == 2  # the key is as pale as the bubbles, in the dark too
    assert {"class", "client"} < set(tab.eval_on_selector_all("#split text", "all => all.map(x => x.textContent)"))
    tab.hover("#graph .node >> nth=2", force=True)
    assert re.search(r"^client 2, mostly class \d\n", tab.inner_text("#tip"))
    tab.hover("#by-class .plot svg")
    assert re.search(r"^class \d\n", tab.inner_text("#tip"))
    assert tab.evaluate("classTold({ split: { classes: ['7 of hearts'] } }, 0)") == "7 of hearts"


def test_columns_out_of_sight_throw_a_shadow_and_the_first_stays(view: Any, comparison: Path):
    tab = view(comparison, 390)
    table, first = tab.locator("#headline > .table"), tab.locator("#headline > .table tbody th").first
    before = first.bounding_box()["x"]
    table.evaluate("x => x.scrollLeft = 200")
    assert table.evaluate("x => x.scrollLeft") == 200
    assert first.bounding_box()["x"] == before
    assert first.bounding_box()["width"] < 390 * 0.5
    assert "gradient" in table.evaluate("x => getComputedStyle(x).backgroundImage")


@pytest.mark.parametrize("width", [390, 768, 1024])
def test_the_link_of_the_section_on_screen_is_in_sight(view: Any, both: Path, width: int):
    tab = view(both, width)
    tab.evaluate("document.getElementById('settings').scrollIntoView({ behavior: 'instant' })")
    tab.wait_for_selector("#nav a[aria-current=true][href='#settings']")
    link, nav = tab.locator("#nav a[aria-current=true]").bounding_box(), tab.locator("#nav").bounding_box()
    assert nav["x"] <= link["x"]
    assert link["x"] + link["width"] <= nav["x"] + nav["width"]
    assert tab.evaluate("document.getElementById('nav').scrollWidth") <= nav["width"] + 1 or width == 390


def test_settings_are_those_that_were_used(view: Any, both: Path, runs: dict[str, Path], tmp_path: Path):
    write_page([runs["um"]], tmp_path / "page.html", models=False)
    for page_ in (both, tmp_path / "page.html"):
        told = re.sub(r"\s+", " ", view(page_).inner_text("#settings"))
        assert "precision fp32" in told
        assert "label ratio each client's own" in told
    tab = view(both)
    assert "method" in tab.inner_text(".settings")
    assert "batch size" not in tab.inner_text(".settings")  # what is the same in both has no column for each
    assert "batch size" in tab.inner_text(".same")


def test_a_hundred_clients_stand_in_rows_of_one_length_and_what_is_below_throws_a_shadow(view: Any, tmp_path: Path):
    many = make_up(tmp_path / "many", clients=100, data=str(many_pictures(tmp_path / "many.npz")))
    tab = view(written(tmp_path, many))
    heights = tab.eval_on_selector_all("#split text.client", "all => all.map(x => x.getAttribute('y'))")
    assert [heights.count(y) for y in dict.fromkeys(heights)] == [50, 50]
    assert "gradient" in tab.evaluate("getComputedStyle(document.querySelector('#split .scroll')).backgroundImage")


def test_upright_lines_stand_at_the_ticks(view: Any, both: Path):
    tab = view(both)
    at = tab.evaluate("""["line.rule", "text[text-anchor=middle]"].map(found =>
        [...document.querySelectorAll(`#strips .plot ${found}`)].map(x => +(x.getAttribute("x1") ?? x.getAttribute("x"))))""")
    assert at[0] == pytest.approx(at[1])
    assert len(at[0]) > 2
    assert tab.locator("#strips [stroke-linecap=round]").count() == 0  # a round end would pass 100%


def test_paper_is_light_and_nothing_is_cut(view: Any, comparison: Path):
    tab = view(comparison, scheme="dark")
    tab.emulate_media(media="print")
    tab.set_viewport_size({"width": 688, "height": 1000})  # of A4 within its margins
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--card')").strip() == "#FFFFFF"
    assert tab.evaluate("getComputedStyle(document.querySelector('.key')).printColorAdjust") == "exact"
    height = "all => Math.max(...all.map(x => x.getBoundingClientRect().height))"
    assert tab.eval_on_selector_all("#curve svg, #spread svg, #bytes svg", height) < 8.6 / 2.54 * 96  # two on a page
    cut = "x.scrollWidth > x.clientWidth + 1 || x.scrollHeight > x.clientHeight + 1"
    boxes = "main, .card, .plot, .scroll, .table:not(details *)"
    assert tab.eval_on_selector_all(boxes, f"all => all.filter(x => {cut}).map(x => x.className + x.id)") == []
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


LONG = "a clinic with a rather long name, building"


def test_names_are_shown_and_keep_to_their_place(view: Any, runs: dict[str, Path], tmp_path: Path):
    data = gather([runs["um"]])
    (run,) = data["runs"]
    run["client_names"] = [f"{LONG} {k}" for k in range(12)]
    run["split"]["classes"] = [f"{LONG} {c}" for c in range(10)]
    run["config"]["alpha"] = "given"
    run["client_names"][1] = "aclinic" * 20
    run["features"] = {"model_of": 1, "x": [0, 1, 2], "y": [2, 0, 1], "class": [0, 1, 9], "client": [0, 1, 2]}
    (tmp_path / "page.html").write_text(page(data), encoding="utf-8")
    tab = view(tmp_path / "page.html", 390)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "captions break a word that is too long"
    assert "12 clients, as given" in tab.inner_text(".lead")
    assert all("mostly" in tab.inner_text(f"#{figure} .key") for figure in ("graph", "by-helper"))
    for figure in ("graph", "split"):
        assert tab.text_content(f"#{figure} .client >> nth=3").startswith("3 a c")
    names = tab.eval_on_selector_all("#by-class text.strong", "all => all.map(x => x.textContent)")
    assert len(set(names)) == 10
    outside = """all => all.filter(x => {
        const box = x.getBoundingClientRect(), card = x.closest("figure").getBoundingClientRect();
        return box.left < card.left || box.right > card.right;
    }).map(x => x.textContent)"""
    assert tab.eval_on_selector_all("#graph text, #by-class text", outside) == []
    tab.select_option("#client", "3")
    assert tab.eval_on_selector("#person .table", "x => x.scrollWidth <= x.clientWidth")
    tab.evaluate("current().helpers.lists[state.step] = current().clients.test.map((_, k) => k ? [] : [3, 900]); select(3)")
    assert "1 client\n" in tab.inner_text("#person .facts") + "\n"
    assert "Label error in the last round" in tab.inner_text("#headline")


HOSTILE = "</script><img src=x onerror=window.pwned=1>\"'`${1}{{data}}\u2028☃"


def test_hostile_names_stay_text(view: Any, runs: dict[str, Path], tmp_path: Path):
    folder = Path(shutil.copytree(runs["um"], tmp_path / "<b>bold<b> & 'co'"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["config"]["method"] = manifest["settings"][HOSTILE] = manifest["machine"]["device"] = HOSTILE
    (folder / "manifest.json").write_text(json.dumps(manifest))
    audit = (folder / "audit.jsonl").read_text().splitlines()
    audit[3] = audit[3].replace('"by_helper": {', f'"by_helper": {{{json.dumps(HOSTILE)}: [1, 1], ')
    (folder / "audit.jsonl").write_text("\n".join(audit))
    data = gather([folder, runs["local"]])
    data["runs"][0]["split"]["classes"] = [f"{HOSTILE}{c}" for c in range(10)]
    (tmp_path / "page.html").write_text(page(data), encoding="utf-8")
    tab = view(tmp_path / "page.html")
    tab.select_option("#client", "3")
    tab.hover("#graph .node >> nth=2", force=True)
    assert HOSTILE in tab.text_content("#tip")
    assert tab.evaluate("window.pwned") is None
    assert tab.locator("img, main b, main script").count() == 0
    assert HOSTILE in tab.text_content("h1")
    assert tab.title().startswith(HOSTILE.replace("\u2028", " ")[:20])
    assert "audit.jsonl breaks off after line 3" in tab.text_content("#remarks")


def test_a_truncated_run_gives_a_page_with_a_remark(view: Any, runs: dict[str, Path], tmp_path: Path):
    folder = Path(shutil.copytree(runs["um"], tmp_path / "um"))
    whole = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(whole[: len(whole) // 2])
    (folder / "lists.jsonl").unlink()
    (folder / "summary.json").unlink()
    write_page([folder], tmp_path / "page.html")
    tab = view(tmp_path / "page.html")
    remarks = tab.inner_text("#remarks")
    assert "metrics.jsonl breaks off after line" in remarks
    assert "lists.jsonl is missing" in remarks
    assert "not finished" in remarks
    assert re.fullmatch(r"Not finished: round \d of 8", tab.inner_text("#state"))
    assert tab.evaluate("getComputedStyle(document.querySelector('#state'), '::before').animationName") == "none"
    assert figures(tab)["curve"] == figures(tab)["bytes"] == "yes"
    assert "graph" not in figures(tab)


def test_the_page_of_a_federation_over_the_network(view: Any, spread: Path, tmp_path: Path):
    write_page([spread], tmp_path / "page.html")
    tab = view(tmp_path / "page.html")
    drawn = figures(tab)
    assert drawn["audit"] == drawn["curve"] == drawn["graph"] == "yes"
    assert "tell the sums alone" in tab.inner_text("#by-class")
    assert not tab.locator("#stretch").count()
    tab.select_option("#client", label="1 (<b>south</b>)")
    assert tab.inner_text("#chosen") == "Client 1 (<b>south</b>)"
    tab.select_option("#client", label="7")
    assert tab.inner_text("#chosen") == "Client 7"
    tab.click("#graph summary")
    assert "0 (north)" in tab.inner_text("#graph table")


def test_a_page_that_reads_itself_again_keeps_the_choice(view: Any, runs: dict[str, Path], tmp_path: Path):
    (tmp_path / "page.html").write_text(page(gather([runs["um"]]), reload=2), encoding="utf-8")
    tab = view(tmp_path / "page.html")
    tab.select_option("#client", "7")
    with tab.expect_navigation():  # then it stays: a slow machine might never see it ready else
        write_text(tmp_path / "page.html", page(gather([runs["um"]]), reload=600))
    tab.wait_for_selector("html[data-ready]")
    assert tab.inner_text("#chosen") == "Client 7"
    assert tab.input_value("#client") == "7"


def test_a_page_of_long_ago_is_not_read_again_every_few_seconds(view: Any, runs: dict[str, Path], tmp_path: Path):
    """Its run was killed, and could not say so."""
    file = tmp_path / "page.html"
    file.write_text(page(gather([runs["um"]]), reload=1), encoding="utf-8")
    os.utime(file, (time.time() - 3600, time.time() - 3600))
    tab = view(file)
    tab.evaluate("window.first = true")
    tab.wait_for_timeout(3000)
    assert tab.evaluate("window.first")


def test_news_of_a_run_arrive(view: Any, runs: dict[str, Path], tmp_path: Path):
    folder = Path(shutil.copytree(runs["um"], tmp_path / "um"))
    (folder / "summary.json").unlink()
    kept = {name: (folder / f"{name}.jsonl").read_text() for name in ("metrics", "marks", "audit", "lists")}
    for name, text in kept.items():
        half = [line for line in text.splitlines() if json.loads(line)["round"] <= 4]
        (folder / f"{name}.jsonl").write_text("\n".join(half) + "\n")
    server = server_for([folder], 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        tab = view(f"http://127.0.0.1:{server.server_address[1]}/", expected="ERR_CONNECTION")
        assert tab.inner_text("#state") == "Round 4 of 8"
        assert tab.evaluate("getComputedStyle(document.querySelector('#state'), '::before').animationName") == "pulse"
        assert "not finished" not in tab.inner_text(".lead")
        tab.select_option("#client", "5")
        tab.click("#curve summary")
        for name, text in reversed(kept.items()):  # metrics last: they say how far it is
            (folder / f"{name}.jsonl").write_text(text)
        tab.get_by_text("Round 8 of 8").wait_for()
        assert tab.inner_text("#chosen") == "Client 5"
        assert tab.inner_text("output[for=step]") == "round 8"
        assert tab.locator("#curve tbody tr").count() == 4
        focused = tab.evaluate("[document.activeElement.localName, document.activeElement.closest('figure')?.id]")
        assert focused == ["summary", "curve"], "the keyboard goes on where it was"
        assert not tab.is_visible("#lost")
        server.shutdown()
        server.server_close()
        tab.locator("#lost").wait_for()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
