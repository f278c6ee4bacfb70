"""One browser for all tests of the page; they are skipped, with the reason, where there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import browser as browsers
import pytest
from invented import make_up


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A um run and its local twin."""
    home = tmp_path_factory.mktemp("runs")
    return {method: make_up(home / method, method) for method in ("um", "local")}


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison: three methods, two alphas, three seeds."""
    home = tmp_path_factory.mktemp("compared")
    for method, alpha, seed in product(("um", "local", "mix"), (0.5, 5.0), (0, 1, 2)):
        make_up(home / f"{method}-a{alpha}-s{seed}", method, alpha=alpha, seed=seed)
    order = product((5.0, 0.5), ("um", "local", "mix"))
    (home / "table.csv").write_text("method,alpha\n" + "".join(f"{method},{alpha}\n" for alpha, method in order))
    return home


@pytest.fixture
def spread(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A run over the network: pictures and models are at the sites, who tell only how many labels were wrong."""
    folder = Path(shutil.copytree(runs["um"], tmp_path / "spread"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {"terms": {}, "split_hash": None, "machine": {"device": "network", "compute": "flower", "processes": 20}}
    manifest["config"]["data"] = "x-rays of three hospitals"
    manifest["client_names"] = ["north", "<b>south</b>", *map(str, range(2, 12))]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    audit = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    silent = {"by_class": [], "by_entropy": [], "by_helper": {}}
    (folder / "audit.jsonl").write_text("".join(json.dumps(line | silent) + "\n" for line in audit))
    return folder


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as p:
        path = browsers.system_browser() or p.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("no Chromium here: python tests/report/browser.py installs one")
        try:
            flags = ["--no-sandbox", "--disable-dev-shm-usage"]
            browser = p.chromium.launch(executable_path=path, args=flags, timeout=180_000)  # just installed, it may be slow
        except api.Error as e:
            pytest.skip(f"{path} does not start: {str(e).splitlines()[0]}")
        yield browser
        browser.close()
