"""Claim: the page of a run with 1000 clients and 500 rounds is under 15 MB and opens in under 3 seconds in Chromium.

The record is made up, in the form that a run writes, over a real split of 60,000 pictures: every client has a list of
about five at every round. Prints the seconds that the page takes to make, its size, and the seconds until it is drawn (n = 3).

    python bench/report.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report"))

from browser import system_browser
from invented import make_up, many_pictures
from playwright.sync_api import sync_playwright

from kithkin.report import write_page


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        data = many_pictures(Path(home) / "many.npz")
        run = make_up(Path(home) / "um", clients=1000, rounds=500, every=1, data=str(data), alpha=0.8)
        page = Path(home) / "page.html"
        began = time.perf_counter()
        write_page([run], page, models=False)
        print(f"made in {time.perf_counter() - began:.1f} s, {page.stat().st_size / 1e6:.1f} MB")
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=system_browser(), args=["--no-sandbox"])
            for _ in range(3):
                tab = browser.new_page(viewport={"width": 1366, "height": 800})
                began = time.perf_counter()
                tab.goto(page.as_uri())
                tab.wait_for_selector("html[data-ready]")
                tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
                print(f"open in {time.perf_counter() - began:.2f} s")
                tab.close()
            browser.close()


if __name__ == "__main__":
    main()
