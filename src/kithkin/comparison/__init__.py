"""Many runs in one table: cells that are run or read, a learning rate for each method, and who is ahead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kithkin.comparison.cells import Cell, cells_of, default_jobs, do_all, fingerprint, told
from kithkin.comparison.rates import at_rates
from kithkin.comparison.table import HARM, Row, gains_over, harmed, luck, print_table, rows, worst_decile, write_table
from kithkin.config import bad
from kithkin.errors import KithkinError
from kithkin.federation import DivergedError


def run_all(
    cells: Sequence[Cell], out: Path, jobs: int | None, quiet: bool, lrs: Sequence[float] = (), kept: bool = True
) -> list[Row]:
    """Do all cells, each method at the best of these learning rates if there are any, and write their table."""
    jobs = default_jobs(cells[0].config.device) if jobs is None else jobs
    if not isinstance(jobs, int) or jobs < 1:
        raise bad("jobs", jobs, "must be 1 or more")
    fingerprint.cache_clear()  # the data may have changed since another comparison of this process
    cells, note = at_rates(cells, lrs, out, jobs, quiet) if lrs else (cells, "")
    results, broken = do_all(cells, jobs, quiet)
    if not results:
        raise broken[0][1]
    table, note = rows(results), "\n".join(filter(None, (note, luck(results))))
    write_table(out, table, results, note)
    if not quiet:
        print_table(table, out if kept else None, note)
        if others := {path.parent for path in out.glob("*/manifest.json")} - {cell.folder for cell in cells}:
            print(f"Runs in {out} that are not in the table, as they were not named: {len(others)}.")
    if broken:
        problem = f"{len(broken)} of {len(cells)} runs broke off, and are not in the table. {told(broken)}"
        but = ", but not what diverged" if any(isinstance(e, DivergedError) for _, e in broken) else ""
        raise KithkinError(problem, f"The same command tries these again{but}.")
    return table


__all__ = ["HARM", "Cell", "Row", "cells_of", "gains_over", "harmed", "rows", "run_all", "worst_decile"]
