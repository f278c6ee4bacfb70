"""Runs side by side: their order and names, which of them belong together, how they look, and the rows of their comparison."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

from kithkin.comparison import rows
from kithkin.config import WHERE
from kithkin.record import Result
from kithkin.report.records import FAULTS, known, rounded

COLOURS = 8  # that are told apart well
EXPERIMENT = ("clients", "label_ratio", "rounds", "sample_rate", "epochs", "batch_size", "model", "width")


def in_order(paths: Sequence[Path], folders: list[Path], runs: list[dict[str, Any]]) -> tuple[list[Path], list[dict[str, Any]]]:
    """As they were given; those in the folder of a comparison as its table has them."""
    tables = [places_in(path / "table.csv") for path in paths]

    def place(pair: tuple[Path, dict[str, Any]]) -> tuple[int, int]:
        folder, run = pair
        given = next(i for i, path in enumerate(paths) if path in (folder, folder.parent))
        return given, tables[given].get((run["method"], str(run["config"].get("alpha"))), len(runs))

    pairs = sorted(zip(folders, runs, strict=True), key=place)
    return [folder for folder, _ in pairs], [run for _, run in pairs]


def places_in(table: Path) -> dict[tuple[str | None, str | None], int]:
    """Which row of a comparison's table a method has at an alpha."""
    try:
        with table.open(newline="", encoding="utf-8", errors="replace") as file:
            return {(row.get("method"), row.get("alpha")): i for i, row in enumerate(csv.DictReader(file))}
    except (OSError, csv.Error):
        return {}


def cell_of(run: dict[str, Any]) -> tuple[str, str, str]:
    """Method, alpha and seed, as names have them."""
    alpha = run["config"].get("alpha")
    dealt = "given" if alpha == "given" else f"a{alpha:g}" if isinstance(alpha, float) else f"a{alpha}"
    return run["method"], dealt, f"s{run['config'].get('seed')}"


def names_of(folders: Sequence[Path], runs: Sequence[dict[str, Any]]) -> list[str]:
    """Each run by its method if that tells them apart; else with alpha and seed; else by its folder."""
    cells = [cell_of(run) for run in runs]
    for name in (
        *([" ".join(cell[i] for i in parts) for cell in cells] for parts in ((0,), (0, 1), (0, 2), (0, 1, 2))),
        [folder.resolve().name for folder in folders],
    ):
        if len(set(name)) == len(name):
            return name
    return [str(folder) for folder in folders]


def unlike(run: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """In what two runs are different experiments, whatever their methods, which may have their own rates and momentum."""
    return [name for name in EXPERIMENT if run["config"].get(name) != other["config"].get(name)]


def is_comparison(runs: Sequence[dict[str, Any]]) -> bool:
    """Whether they differ in method, alpha and seed alone, as those of `kithkin compare`: the mean of others says nothing.

    A method may have its own learning rate and momentum, as tuned ones do, but the same for all its runs.
    """
    apart = {"method", "alpha", "seed", "data_folder", *WHERE}
    cells = [cell_of(run) for run in runs]
    told = [{name: v for name, v in {**run["config"], **run["settings"]}.items() if name not in apart} for run in runs]
    kinds = {(cell[0], str(kind)) for cell, kind in zip(cells, told, strict=True)}
    splits = {(cell[1:], run["twin"]) for cell, run in zip(cells, runs, strict=True)}
    return (
        len({run["twin"][0] for run in runs}) == 1
        and not any(unlike(run, runs[0]) for run in runs)
        and len(set(cells)) == len(cells)
        and len(kinds) == len({cell[0] for cell in cells})
        and len(splits) == len({cell[1:] for cell in cells})
    )


def set_apart(runs: Sequence[dict[str, Any]], compared: bool) -> None:
    """Give each run its group, of which the seeds look alike, and its look: a colour, and a style for dashes and shapes.

    In a comparison the colour tells the method and the style the alpha; the colour tells the alpha of a single method, and the
    seed where nothing else differs. Other runs have a look each.
    """
    names = [run["name"] for run in runs]
    methods, alphas = ([cell_of(run)[i] for run in runs] for i in (0, 1))
    differ = [column for column in (methods, alphas) if compared and len(set(column)) > 1]
    hued, styled = [*(differ or [names]), [""] * len(runs)][:2]
    hues, styles = (list(dict.fromkeys(column)) for column in (hued, styled))
    for run, hue, style in zip(runs, hued, styled, strict=True):
        turn, colour = divmod(hues.index(hue), COLOURS)
        run["group"] = group_name(run["method"], cell_of(run)[1], alphas) if differ else run["name"]
        run["look"] = [colour, styles.index(style) + len(styles) * turn]


def group_name(method: str, alpha: str, alphas: Sequence[str]) -> str:
    return f"{method} {alpha}" if len(set(alphas)) > 1 else method


def comparison_of(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The rows of `kithkin compare` over the finished runs; None where each would be one run of one alpha."""
    alphas = [cell_of(run)[1] for run in runs]
    if len({cell_of(run)[1:] for run in runs}) == 1:
        return None
    try:
        table = rows([as_result(run) for run in runs if run["finished"] and run["clients"] and run["headline"]])
    except FAULTS:  # a record that is not as it should be, of which the run tells
        return None
    return [
        {"name": group_name(row.method, str(row.alpha), alphas)}
        | {name: v if isinstance(v, str | int) else rounded(v, 7) for name, v in vars(row).items()}
        for row in table
    ]


def as_result(run: dict[str, Any]) -> Result:
    """A run for the table, with the page's own numbers: the record may be older, or lack some."""
    (method, alpha, seed), told, tests = cell_of(run), run["headline"], known(run["clients"]["test"])
    spent = {name: math.nan if told[name] is None else told[name] for name in ("megabytes", "seconds")}
    summary = {
        "method": method, "alpha": alpha, "seed": seed, "test_at_best_val": fmean(tests),
        "test_var_at_best_val": pvariance(tests), "final_pseudo_error": told["label_error"],
        "final_pseudo_coverage": told["coverage"],
        "down_bytes": 1e6 * spent["megabytes"], "up_bytes": 0, "seconds": spent["seconds"],
    }  # fmt: skip
    return Result(Path(run["folder"]), summary, [], [{"test_at_best_val": v} for v in tests])
