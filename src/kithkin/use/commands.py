"""The commands `predict`, `advise`, `export` and `newcomer`."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kithkin.config import bad
from kithkin.data.own import in_words
from kithkin.disk import disk_errors, write_text, write_whole
from kithkin.errors import KithkinError
from kithkin.record.folder import Folder
from kithkin.use.exporting import Format
from kithkin.use.exporting import export as write_file
from kithkin.use.joining import join, read_newcomer, write_newcomer
from kithkin.use.loading import load
from kithkin.use.pictures import Pictures, read_pictures

SOME_SKIPPED = 3  # exit code: done, but some of the pictures could not be taken


def predict(
    run: Path,
    pictures: tuple[Path, ...],
    client: str | None = None,
    vote: bool = False,
    passes: int | None = None,
    format: Literal["table", "csv", "json"] = "table",
    out: Path | None = None,
    device: str = "auto",
) -> None:
    """Say what a client's model makes of pictures: class, probability, and how unsure it is.

    A file that is no picture, or has another size than the run's, or colours where those are grey, is named and left out; the
    exit code is then 3.

    Args:
        run: Folder of a finished run, or of a newcomer.
        pictures: Picture files, folders of them, or npz files with an array `images`.
        client: Whose model answers, by number or name; may be left out where there is one alone.
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
    if not paths:
        raise KithkinError("No picture is named.", "Name files or folders of pictures, or npz files with `images`.")
    found = read_pictures(paths, picture)
    for sentence in found.skipped:
        print(f"skipped: {sentence}", file=sys.stderr)
    if not found.names:
        raise KithkinError("No picture is left to look at.", f"Give {in_words(picture)}, as the run was trained on.")
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
            write_text(out, text)
        print(out)


def as_csv(rows: list[dict[str, Any]]) -> str:
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def advise(
    run: Path,
    pictures: tyro.conf.Positional[tuple[Path, ...]] = (),
    client: str | None = None,
    budget: int = 20,
    out: Path | None = None,
    device: str = "auto",
) -> None:
    """Say which pictures to label next: those that the client's model is unsure of and that are unlike each other.

    A file that is no picture, or has another size than the run's, or colours where those are grey, is named and left out; the
    exit code is then 3.

    Args:
        run: Folder of a finished run, or of a newcomer.
        pictures: Unlabelled pictures to choose from: files, folders, npz files; left out, those that the client has in the run.
        client: Whose model, by number or name; may be left out where there is one alone.
        budget: How many pictures can be labelled.
        out: Folder for labels-wanted.csv and labels-wanted.png; left out, advice-NUMBER in this folder.
        device: auto, cpu, cuda or cuda:N.
    """
    from kithkin.use import advising  # here, because matplotlib is slow to import

    loaded = load(run, device)
    who = loaded.client(client)
    skipped = False
    if pictures:
        found = taken(pictures, loaded.picture)
        names, images, skipped = found.names, found.images, bool(found.skipped)
    else:
        names, images = advising.own_pictures(who)
    advice = advising.advise(who, names, images, budget)
    rows = [
        {"rank": i, "picture": name} | row
        for i, (name, row) in enumerate(zip(advice.names, advice.answers.rows(), strict=True), start=1)
    ]
    folder = out or Path(f"advice-{who.number}")
    table, sheet = folder / "labels-wanted.csv", folder / "labels-wanted.png"
    title = f"client {who} of {run.resolve().name}: {len(rows)} of {len(names)} pictures to label next"
    with disk_errors(folder, "Give another --out."):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(table, as_csv(rows))
        write_whole(sheet, lambda draft: advising.contact_sheet(advice, title, draft))
    print(f"{title}\n{table}\n{sheet}")
    if skipped:
        sys.exit(SOME_SKIPPED)


def export(run: Path, client: str | None = None, format: Format = "safetensors", out: Path | None = None) -> None:
    """Write a client's model into one file, with preprocessing, class names and picture shape inside, and check its answers.

    Args:
        run: Folder of a finished run, or of a newcomer.
        client: Whose model, by number or name; may be left out where there is one alone.
        format: safetensors (tensors), torch-export (for torch.export.load) or onnx (for onnxruntime).
        out: The file; left out, client-NUMBER with the format's ending, in this folder.
    """
    who = load(run, "cpu").client(client)
    out = out or Path(f"client-{who.number}.{'pt2' if format == 'torch-export' else format}")
    far = write_file(who, format, out)
    print(f"{out}  {out.stat().st_size / 1e6:,.2f} MB, on random pictures within {far:.1e} of the model")


def newcomer(
    run: Path,
    data: str = "",
    label_ratio: float | None = None,
    rounds: int = 3,
    epochs: int | None = None,
    lr: float | None = None,
    out: Path | None = None,
    device: str = "auto",
) -> None:
    """Let a client that was not there at training choose helpers from a run's pool, be labelled by them, and train.

    Args:
        run: Folder of a finished run.
        data: The newcomer's pictures: an npz, or a folder with one sub-folder a class; `unlabelled` holds those without one.
        label_ratio: Share of its training pictures whose labels it knows; left out, all that it has.
        rounds: How often it is labelled and trained (um-plus: once, for as many epochs).
        epochs: Passes over its data in a round; left out, as many as in the run.
        lr: Learning rate; left out, that of the run.
        out: Folder for its model, which `predict`, `advise` and `export` take as they take a run.
        device: auto, cpu, cuda or cuda:N.
    """
    if not data:
        raise KithkinError("The newcomer has no pictures.", "Give --data with an npz file or a folder.")
    if rounds < 1:
        raise bad("rounds", rounds, "must be 1 or more")
    loaded = load(run, device)
    folder = Folder(out or Path("runs") / f"{Path(data).stem}-joins-{run.resolve().name}")
    dataset = read_newcomer(loaded, data)
    folder.create()
    console = Console(stderr=True)
    with console.status("choosing helpers and training") as status:
        joined = join(
            loaded, dataset, label_ratio, rounds, epochs, lr, lambda done, jobs: status.update(f"{done} of {jobs} models done")
        )
    write_newcomer(folder, loaded, data, joined)
    share = joined.share
    print(
        f"{len(share.labelled)} labelled and {len(share.unlabelled)} unlabelled pictures to train on, {len(share.test)} to test"
    )
    listed = [h for h in joined.state.helpers.best_first() if h.client != joined.client.number]
    print("helpers", ", ".join(f"{h.client} ({h.relation:.2f})" for h in listed))
    if joined.gain is not None:
        print(f"test accuracy {joined.marks[1]:.3f}; trained alone {joined.marks_alone[1]:.3f}: gain {joined.gain:+.3f}")
    else:
        print("No accuracy is told: too few labelled pictures to hold some back.")
    if joined.harmed:
        print("Kept is the model trained alone: it does better on the validation pictures.")
    print(folder.path)
