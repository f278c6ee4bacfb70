"""The commands `report`, `watch` and `export-metrics`."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape

from kithkin.config import bad
from kithkin.report.page import write_page
from kithkin.report.serve import HERE, server_for
from kithkin.report.tables import Form, export


def report(
    folders: tuple[Path, ...],
    out: Path | None = None,
    open: bool = False,
    figures: Path | None = None,
    models: Literal["auto", "always", "never"] = "auto",
) -> None:
    """Write one page, which needs no network, about one run or several side by side.

    Args:
        folders: Run folders, or a folder of runs such as that of `kithkin compare`.
        out: The page; left out, report.html in the folder if one is given, else here.
        open: Open it in the browser.
        figures: Write every figure into this folder too, as PNG and PDF for print.
        models: Ask the saved models for their confusions and latent features; auto, of one run a method, if that takes seconds.
    """
    page = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    asked = {"auto": None, "always": True, "never": False}[models]
    with Console(stderr=True).status("Reading") as status:
        data = write_page(folders, page, asked, say=lambda text: status.update(escape(text)))
    for run in data["runs"]:
        for remark in filter(None, (run["unfinished"], *run["remarks"])):
            print(f"{run['name']}: {remark}", file=sys.stderr)
    print(page)
    if figures:
        from kithkin.report.figures import write_figures  # here, because matplotlib is slow to import

        for path in write_figures(data, figures):
            print(path)
    if open:
        webbrowser.open(page.resolve().as_uri())


def watch(folders: tuple[Path, ...], port: int = 8765, open: bool = False) -> None:
    """Serve the page of runs on this machine, and keep it up to date while they go on.

    Args:
        folders: Run folders, or a folder of runs.
        port: Where to listen on 127.0.0.1; 0 takes any that is free.
        open: Open it in the browser.
    """
    if not 0 <= port < 65536:
        raise bad("port", port, "must lie in [0, 65535]")
    server = server_for(folders, port)
    address = f"http://{HERE}:{server.server_address[1]}/"
    print(f"{address}  (Ctrl-C ends it)", flush=True)
    if open:
        webbrowser.open(address)
    with server:
        server.serve_forever()


def export_metrics(folder: Path, format: Form = "csv", out: Path | None = None) -> None:
    """Write a run's record as tables: rounds, marks, labels, helpers, clients.

    Args:
        folder: The run's folder.
        format: csv, or parquet, which needs pyarrow.
        out: Folder for the tables; left out, `tables` in the run's folder.
    """
    written, remarks = export(folder, format, out or folder / "tables")
    for remark in remarks:
        print(remark, file=sys.stderr)
    for path in written:
        print(path)
