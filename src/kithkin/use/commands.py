"""The commands `predict`, `advise`, `export` and `newcomer`."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kithkin.errors import KithkinError
from kithkin.record.folder import disk_errors, write_text, write_whole
from kithkin.use.exporting import Format
from kithkin.use.exporting import export as write_file
from kithkin.use.loading import load
from kithkin.use.pictures import Pictures, read_pictures

SOME_SKIPPED = 3  # exit code: done, but some of the pictures could not be taken


def predict(
    run: Path,
    pictures: tuple[Path, ...],
    client: int | None = None,
    vote: bool = False,
    passes: int | None = None,
    format: Literal["table", "csv", "json"] = "table",
    out: Path | None = None,
    device: str = "auto",
) -> None:
    """Say what a client's model makes of pictures: class, probability, and how unsure it is.

    A file that is no picture, or has another size or number of channels than the run's, is named and left out; the exit code is
    then 3.

    Args:
        run: Folder of a finished run, or of a newcomer.
        pictures: Picture files, folders of them, or npz files with an array `images`.
        client: Whose model answers; may be left out where there is one alone.
        vote: Ask the client's helpers too (um, um-plus).
        passes: Dropout passes behind the entropy; left out, as many as the run took.
        format: How the answers are written; json has the probabilities of all classes.
        out: File for them; left out, they are printed.
        device: auto, cpu, cuda or cuda:N.
    """
    loaded = load(run, device)
    who = loaded.client(client)
    found = taken(pictures, loaded.picture)
    answers = who.predict(found.images, passes, vote)
    rows = [{"picture": name} | row for name, row in zip(found.names, answers.rows(), strict=True)]
    if format == "json":
        for row, p in zip(rows, answers.probabilities, strict=True):
            row["probabilities"] = {name: round(float(v), 4) for name, v in zip(loaded.classes, p, strict=True)}
    show(rows, format, out)
    if found.skipped:
        sys.exit(SOME_SKIPPED)


def taken(paths: tuple[Path, ...], picture: tuple[int, ...]) -> Pictures:
    """The pictures at these paths; each that is left out is told."""
    found = read_pictures(paths, picture)
    for sentence in found.skipped:
        print(f"skipped: {sentence}", file=sys.stderr)
    if not found.names:
        raise KithkinError("No picture is left to look at.", f"Give pictures of {picture[1]}x{picture[2]} pixels with "
                           f"{picture[0]} channel{'s' * (picture[0] > 1)}, as the run was trained on.")  # fmt: skip
    return found


def show(rows: list[dict[str, Any]], format: str, out: Path | None) -> None:
    """Rows as a table, CSV or JSON, to a file or the terminal."""
    if format == "table":
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*(Text(str(value), overflow="fold") for value in row.values()))
        stream = io.StringIO()
        Console(file=stream, width=200).print(table) if out else Console().print(table)
        text = stream.getvalue()
    else:
        text = json.dumps(rows, indent=2) + "\n" if format == "json" else as_csv(rows)
        if not out:
            print(text, end="")
    if out:
        with disk_errors(out, "Give another --out."):
            write_whole(out, lambda draft: write_text(draft, text))
        print(out)


def as_csv(rows: list[dict[str, Any]]) -> str:
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def export(run: Path, client: int | None = None, format: Format = "safetensors", out: Path | None = None) -> None:
    """Write a client's model into one file, with preprocessing, class names and picture shape inside, and check its answers.

    Args:
        run: Folder of a finished run, or of a newcomer.
        client: Whose model; may be left out where there is one alone.
        format: safetensors (tensors), torch-export (for torch.export.load) or onnx (for onnxruntime).
        out: The file; left out, client-NUMBER with the format's ending, in this folder.
    """
    who = load(run, "cpu").client(client)
    out = out or Path(f"client-{who.number}.{'pt2' if format == 'torch-export' else format}")
    far = write_file(who, format, out)
    print(f"{out}  {out.stat().st_size / 1e6:,.2f} MB, on random pictures within {far:.1e} of the model")
