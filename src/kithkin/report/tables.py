"""A run's record as plain tables: CSV for everybody, Parquet for those who have pyarrow."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from kithkin.disk import disk_errors, write_whole
from kithkin.errors import KithkinError
from kithkin.record import Folder
from kithkin.report.live import flat
from kithkin.report.records import is_run, read_lines, refuse_newcomers

Form = Literal["csv", "parquet"]
Rows = list[dict[str, Any]]


def tables_of(path: Path, remarks: list[str]) -> dict[str, Rows]:
    """rounds (a row a round), marks (a row a round and client), labels, helpers (a row a list entry), clients."""
    if not is_run(path):
        raise KithkinError(f"{path} is no run.", "Name the folder of a single run; a comparison has one for each.")
    refuse_newcomers(path)
    folder = Folder(path)

    def rows(name: str, of: Any) -> Rows:
        return [row for line in read_lines(getattr(folder, name), remarks) for row in of(line)]

    found = {
        "rounds": rows("metrics", lambda m: [{"round": m["round"], **{k: v for k, v in m.items() if v is None}, **flat(m)}]),
        "marks": rows("marks", marks_of),
        "labels": rows("audit", lambda a: [{name: a[name] for name in ("round", "asked", "taken", "wrong")}]),
        "helpers": rows("lists", helpers_of),
        "clients": rows("clients", lambda c: [{k: v for k, v in c.items() if k != "helpers"}]),
    }
    return {name: table for name, table in found.items() if table}


def marks_of(line: dict[str, Any]) -> Iterable[dict[str, Any]]:
    pairs = zip(line["val"], line["test"], strict=True)
    return ({"round": line["round"], "client": k, "val": val, "test": test} for k, (val, test) in enumerate(pairs))


def helpers_of(line: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return (
        {"round": line["round"], "client": k, "helper": helper, "version": version, "relation": relation}
        for k, row in enumerate(line["helpers"])
        for helper, version, relation in row
    )


def export(path: Path, form: Form, out: Path) -> tuple[list[Path], list[str]]:
    """Write every table that has rows; gives the files, and what is missing."""
    save = {"csv": save_csv, "parquet": save_parquet}[form]
    if form == "parquet":
        parquet()
    remarks: list[str] = []
    written: list[Path] = []
    tables = tables_of(path, remarks)
    if not tables:
        remedy = "Come back after its first round; a federation's record is with its server."
        raise KithkinError(f"{path} has nothing on record that a table could hold.", remedy)
    with disk_errors(out, "Give another --out."):
        out.mkdir(parents=True, exist_ok=True)
        for name, rows in tables.items():
            columns = list(dict.fromkeys(column for row in rows for column in row))
            written.append(out / f"{name}.{form}")
            write_whole(written[-1], lambda draft, rows=rows, columns=columns: save(draft, rows, columns))
    return written, remarks


def save_csv(path: Path, rows: Rows, columns: list[str]) -> None:
    with path.open("w", newline="", encoding="utf-8", errors="replace") as f:
        writer = csv.DictWriter(f, columns)
        writer.writeheader()
        writer.writerows(rows)


def save_parquet(path: Path, rows: Rows, columns: list[str]) -> None:
    pa, pq = parquet()
    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in columns}), path)


def parquet() -> tuple[Any, Any]:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise KithkinError("pyarrow is not installed.", "`pip install 'kithkin[parquet]'`, or take --format csv.") from None
    return pyarrow, pyarrow.parquet
