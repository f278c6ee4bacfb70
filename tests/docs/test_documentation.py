"""The site is built without a warning, has every command with every flag, needs no network, and wears the report's palette."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from blocks import ROOT

from kithkin.config import DEFAULTS
from kithkin.manual import commands, flags_in, help_of
from kithkin.methods import METHODS

pytestmark = pytest.mark.xdist_group("site")  # it is built once


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def text_of(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_every_command_and_flag_is_on_its_page(site: Path):
    text = text_of(site / "commands" / "index.html")
    recipes = set(next(c.below for c in commands() if c.words == ("paper",))) - {"list", "report"}
    for command in commands():
        if command.words[:1] != ("paper",) or command.words[-1] not in recipes:
            assert " ".join(("kithkin", *command.words)) in text
        assert [flag.name for flag in command.flags if flag.name not in text] == []
    assert all(name in text for name in recipes)
    for method in METHODS:
        assert [flag.name for flag in flags_in(help_of(["run", "--method", method])) if flag.name not in text] == []


@pytest.mark.parametrize(
    ("page", "example"),
    [("write-a-method", "momentum.py"), ("own-model", "small_vit.py"), ("own-model", "signal_net.py")],
)
def test_the_examples_stand_on_their_pages(site: Path, page: str, example: str):
    text = text_of(site / page / "index.html")
    lines = (ROOT / "examples" / example).read_text("utf-8").splitlines()
    assert [line for line in lines if line.strip() and line.strip() not in text] == []


def test_nothing_comes_from_elsewhere(site: Path):
    for page in site.rglob("*.html"):
        fetched = re.findall(r"<(?:script|img|iframe)[^>]*?src=\"?(https?:[^\" >]+)", page.read_text("utf-8"))
        fetched += re.findall(r"<link[^>]*rel=\"?stylesheet[^>]*href=\"?(https?:[^\" >]+)", page.read_text("utf-8"))
        assert fetched == []


def test_lists_and_tables_are_rendered_as_such(site: Path):
    for page in (site / "own-model" / "index.html", site / "um-plus" / "index.html", site / "defaults" / "index.html"):
        article = page.read_text("utf-8").partition("<article")[2].partition("</article")[0]
        prose = re.sub(r"<pre.*?</pre>|<table.*?</table>", "", article, flags=re.DOTALL)
        assert "<table>" in article
        assert not re.search(r"\|\s*---", prose)
        assert not re.search(r"(^|<p>)- \S", prose, re.MULTILINE)


def test_the_palette_is_the_reports(site: Path):
    report = (ROOT / "src/kithkin/report/page.css").read_text("utf-8")
    palette = (site / "palette.css").read_text("utf-8")
    for name in ("--accent", "--paper", "--ink", "--c0", "--c1"):
        assert re.findall(rf"{name}: (#\w+)", palette) == re.findall(rf"{name}: (#\w+)", report)
    assert "--t3: 15px" in palette


def test_the_table_of_defaults_is_true():
    told: dict[str, list[str]] = {}
    for line in (Path(__file__).parents[2] / "docs" / "defaults.md").read_text(encoding="utf-8").splitlines():
        names, *values = [cell.strip() for cell in line.strip("|").split("|")]
        told |= dict.fromkeys(names.split(", "), values) if line.startswith("| ") and len(values) == 6 else {}
    keys = ("clients", "rounds", "sample_rate", "batch_size", "lr", "width")
    for data, table in DEFAULTS.items():
        mine = {"*": "your own"}.get(data, data)
        assert [float(value.split(",")[0]) for value in told[mine]] == [table[key] for key in keys], data
