"""Figures for print: many runs can be told apart, nothing covers the data, and nothing is cut off."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from invented import make_up
from matplotlib.figure import Figure

import kithkin
from kithkin.comparison import HARM
from kithkin.palette import COLOURS, INK, LINE, MUTED
from kithkin.report import gather
from kithkin.report.figures import STYLE, figures_of, looks_of
from kithkin.report.side_by_side import set_apart

LONG = [f"a class with a rather long name {c}" for c in range(10)]


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with mpl.rc_context(STYLE):
        yield


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two methods at two alphas with two seeds each."""
    home = tmp_path_factory.mktemp("many")
    for method in ("um", "local"):
        for alpha in (0.5, 5):
            for seed in (0, 1):
                make_up(home / f"{method}-{alpha}-{seed}", method, alpha=alpha, seed=seed)
    return gather([home])["runs"]


def drawn(runs: list[dict[str, Any]]) -> dict[str, Figure]:
    figures = dict(figures_of(runs))
    for figure in figures.values():
        figure.draw_without_rendering()
    return figures


def words_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_print_has_the_pages_colours():
    page = (Path(kithkin.__file__).parent / "report/page.css").read_text("utf-8")
    light = page[: page.index("color-scheme: light")]
    assert re.findall(r"--c\d+: (#\w+)", light) == list(COLOURS)
    assert re.findall(r"--(?:ink|muted|line): (#\w+)", light) == [INK, MUTED, LINE]


def test_colour_blind_eyes_tell_the_first_eight_colours_apart_in_light_and_dark():
    """As protanopes and deuteranopes see them (Machado et al. 2009), at a distance in CIELAB at which neighbours differ."""
    page = (Path(kithkin.__file__).parent / "report/page.css").read_text("utf-8")
    light, dark = (re.findall(r"--c[0-7]: #(\w+)", scheme) for scheme in page.split("@media screen", 1))
    protan = [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
    deutan = [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    white = np.array([[0.434, 0.376, 0.190], [0.213, 0.715, 0.072], [0.018, 0.109, 0.873]])  # to XYZ, in shares of white's
    for scheme, sight in product((light, dark), (np.eye(3), protan, deutan)):
        seen = np.array([list(bytes.fromhex(colour)) for colour in scheme]) / 255
        seen = np.where(seen > 0.04045, ((seen + 0.055) / 1.055) ** 2.4, seen / 12.92) @ np.transpose(sight)
        x, y, z = np.cbrt(seen.clip(0.001, 1) @ white.T).T
        lab = np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], 1)
        assert min(math.dist(a, b) for a, b in combinations(lab, 2)) > 9


def test_colour_tells_the_method_dash_and_marker_the_alpha_and_seeds_are_alike(many: list[dict[str, Any]]):
    looks = dict(
        zip([(run["method"], run["config"]["alpha"], run["config"]["seed"]) for run in many], looks_of(many), strict=True)
    )
    um, local, later = looks["um", 0.5, 0], looks["local", 0.5, 0], looks["um", 5, 0]
    assert um == looks["um", 0.5, 1]
    assert um.name == "um a0.5, 2 seeds"
    assert (um.colour == later.colour, um.dash == later.dash, um.marker == later.marker) == (True, False, False)
    assert (um.colour == local.colour, um.dash == local.dash, um.marker == local.marker) == (False, True, True)


def test_thirty_methods_are_told_apart(many: list[dict[str, Any]]):
    thirty = [{**many[0], "method": f"m{i}", "name": f"m{i}"} for i in range(30)]
    set_apart(thirty, compared=True)
    assert len({(look.colour, look.dash) for look in looks_of(thirty)}) == 30


def test_no_key_covers_a_panel_and_nothing_is_cut_off(many: list[dict[str, Any]]):
    runs = copy.deepcopy(many)
    for run in runs:
        run["split"]["classes"] = LONG
        run["name"] += " in a folder whose name is as long as names of folders are"
    runs[0] |= {"confusion": [[5] * 10] * 10, "features": {"model_of": 1, "x": [0, 1], "y": [2, 3], "class": [0, 9]}}
    for name, figure in drawn(runs).items():
        paper, used = figure.bbox_inches, figure.get_tightbbox()
        assert paper.x0 <= used.x0 < used.x1 <= paper.x1, name
        assert paper.y0 <= used.y0 < used.y1 <= paper.y1, name
        keys = [key.get_window_extent() for key in figure.legends]
        assert not any(key.overlaps(axes.get_window_extent()) for key in keys for axes in figure.axes), name
        if "-" not in name:
            assert len(keys) == 1, name
        elif name.startswith(("split", "audit")):
            titles = [figure.get_suptitle(), *(axes.get_title(loc="left") for axes in figure.axes)]
            assert any(runs[int(name.split("-")[1])]["name"] in " ".join(title.split()) for title in titles), name


def test_the_ring_keeps_its_size_whatever_the_classes_are_called(many: list[dict[str, Any]]):
    um = next(run for run in many if run["helpers"])
    sizes = [
        drawn([{**um, "split": {**um["split"], "classes": names}}])["helpers"].axes[0].bbox.width
        for names in ("0123456789", LONG)
    ]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.02)


def test_no_error_and_a_round_between_gaps_are_seen(many: list[dict[str, Any]]):
    um = copy.deepcopy(next(run for run in many if run["audit"]))
    um["audit"]["error"] = [None, 0, None, None, 0.5, 0, 0, None]
    left, right = drawn([um])["labels"].axes
    assert left.get_xlim() == right.get_xlim()
    assert all(low < 0 and high > 1 for low, high in (left.get_ylim(), right.get_ylim()))
    assert left.lines[0].get_markevery() == [1]
    assert right.lines[0].get_marker() == "None"


def test_one_round_alone_has_one_tick_and_areas_with_a_width(tmp_path: Path):
    figures = drawn(gather([make_up(tmp_path / "um", rounds=1, every=1)])["runs"])
    for name in ("accuracy", "bytes"):
        (axes,) = figures[name].axes
        low, high = axes.get_xlim()
        assert [t for t in axes.get_xticks() if low <= t <= high] == [1]
        assert all(np.ptp(area.get_paths()[0].vertices[:, 0]) > 0 for area in axes.collections)
        assert axes.collections


def test_the_line_below_which_a_client_is_harmed_is_drawn(many: list[dict[str, Any]]):
    (axes,) = drawn(many)["gains"].axes
    assert [-100 * HARM] * 2 in [list(line.get_ydata()) for line in axes.lines]
    assert axes.get_legend_handles_labels()[1][-1] == "−3 points: harmed below"


def test_where_no_label_was_given_the_panels_say_so(many: list[dict[str, Any]]):
    um = copy.deepcopy(next(run for run in many if run["audit"]))
    for step in um["audit"]["steps"]:
        step["by_helper"] = {}
    assert words_of(drawn([um])["audit"])[-1] == "each label came from several models"
    um["audit"]["error"] = [None] * len(um["audit"]["error"])
    for step in um["audit"]["steps"]:
        step["by_class"] = [[0, 0]] * 10
    figures = drawn([um])
    assert words_of(figures["labels"]) == ["no label was given"]
    assert [word for word in words_of(figures["audit"]) if word] == ["no label was given"] * 2
