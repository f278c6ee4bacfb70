"""The commands of `kithkin data`: list, get, import, check, show, views."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from kithkin.config import Alpha, RunConfig, bad, some
from kithkin.data.dataset import called
from kithkin.data.fetching import download, take
from kithkin.data.official import DIGITS, SOURCES, Source, find, source_of
from kithkin.data.reading import Checked, visit
from kithkin.data.sources import SOME, load, resolved
from kithkin.data.split import Split, split_of
from kithkin.errors import KithkinError
from kithkin.own import expanded
from kithkin.rng import generator


def list_sets(folder: Path | None = None) -> None:
    """List the data sets: what they hold, and where they lie or how to get them.

    Args:
        folder: Where the data sets lie; left out, $KITHKIN_DATA or the platform's cache folder.
    """
    table = Table(
        Column("name", no_wrap=True), Column("pictures", justify="right"), "size", Column("classes", justify="right"), "where"
    )
    table.add_row(DIGITS, "1,797", "8x8 grey", "10", "built in (scikit-learn)")
    for source in SOURCES.values():
        channels, height, width = source.shape
        size = f"{height}x{width} {'grey' if channels == 1 else 'colour'}"
        found, missing = find(source, folder)
        places = dict.fromkeys(str(path.parent) for path in found.values())
        where = Text(f"kithkin data get {source.name}" if missing else ", ".join(places), overflow="fold")
        table.add_row(source.name, f"{source.count:,}", size, str(len(source.classes)), where)
    Console().print(table)
    _say(f"small-NAME, for any of the latter: {SOME:,} of its pictures at half their size, for machines without a GPU.")


def get(name: str, folder: Path | None = None) -> None:
    """Download a data set from its official address, unless it is here and right already.

    Args:
        name: The data set.
        folder: Where the data sets lie; left out, $KITHKIN_DATA or the platform's cache folder.
    """
    if name == DIGITS:
        return _say("digits is built in: there is nothing to get.")
    source = source_of(name)
    if _right(source, folder):
        return _say(f"{name} is here already, every file verified.")
    download(source, folder)
    check(name, folder)


def import_(name: str, path: Path, folder: Path | None = None) -> None:
    """Take a data set over from a folder, an archive or a file with the official files in it.

    Args:
        name: The data set.
        path: What holds the files.
        folder: Where the data sets lie; left out, $KITHKIN_DATA or the platform's cache folder.
    """
    if name == DIGITS:
        return _say("digits is built in: there is nothing to import.")
    take(source_of(name), expanded(path), folder)
    check(name, folder)


def check(name: str, folder: Path | None = None) -> None:
    """Read every file of a data set to its end and compare it with the official one.

    Args:
        name: The data set.
        folder: Where the data sets lie; left out, $KITHKIN_DATA or the platform's cache folder.
    """
    if name == DIGITS:
        return _say(f"digits is built in: {len(load(DIGITS).labels):,} pictures. OK")

    def tell(checked: Checked) -> None:
        checked.finish()
        _say(f"OK  {checked.file.name}  {checked.path}")

    visit(source_of(name), folder, tell)


def _right(source: Source, folder: Path | None) -> bool:
    try:
        visit(source, folder, Checked.finish)
    except KithkinError:
        return False
    return True


def _say(text: str) -> None:
    Console().print(Text(text), soft_wrap=True)


def show(
    data: str = DIGITS,
    clients: int | None = None,
    alpha: Alpha | None = None,
    seed: int = 0,
    label_ratio: float | None = None,
    out: Path | None = None,
    folder: Path | None = None,
) -> None:
    """Draw what each client gets, and print a summary of the split.

    Args:
        data: Data set by name, or the path of your own.
        clients: K, how many clients share the data; left out, as many as a run on it has.
        alpha: How alike clients are (Dirichlet). Small: very different; 10: nearly alike. Left out: 0.5, or given by the data.
        seed: The seed of the run whose split it is.
        label_ratio: Labelled share of every client's training pictures; left out, each client draws its own.
        out: Picture to write (.png, .pdf, .svg); left out, one named after the settings, in this folder.
        folder: Where the data sets lie; left out, $KITHKIN_DATA or the platform's cache folder.
    """
    from kithkin.data.picture import draw  # here, because matplotlib is slow to import

    dataset = load(data, folder)
    config = resolved(RunConfig(data=data, clients=clients, alpha=alpha, label_ratio=label_ratio).checked())
    split = split_of(dataset, some(config.clients), config.alpha, seed, label_ratio)
    ratio = "" if label_ratio is None else f"-label{label_ratio:g}"
    how, stem = ("as given", "") if config.alpha == "given" else (f"alpha {config.alpha:g}", f"-alpha{config.alpha:g}")
    out = _picture(out or Path(f"split-{dataset.name}-k{config.clients}{stem}-seed{seed}{ratio}.png"))
    title = f"{dataset.name}: {config.clients} clients, {how}, seed {seed}"
    title += "" if label_ratio is None else f", label ratio {label_ratio:g}"
    with _writing(out):
        draw(split, dataset.labels, dataset.classes, title, out, dataset.clients if config.alpha == "given" else ())
    _summarise(split, dataset.labels, title)
    if config.alpha == "given":
        _say(f"They are {', '.join(called(k, dataset.clients) for k in range(len(split.shares)))}.")
    _say(f"Picture: {out}")


def views(
    data: str = DIGITS,
    pictures: int = 6,
    flip: Literal["auto", "yes", "no"] = "auto",
    seed: int = 0,
    out: Path | None = None,
    folder: Path | None = None,
) -> None:
    """Draw some pictures as they are, and as training shows them: weakly and strongly augmented.

    Args:
        data: Data set by name, or the path of your own.
        pictures: How many, of as many classes as there are.
        flip: Whether they may be mirrored, as in a run.
        seed: Another seed draws other pictures and views.
        out: Picture to write (.png); left out, one named after the data, in this folder.
        folder: Where the data sets lie; left out, $KITHKIN_DATA or the platform's cache folder.
    """
    from kithkin.data.augment import sheet  # here, because torch is slow to import

    if not 1 <= pictures <= 100:
        raise bad("pictures", pictures, "must lie from 1 to 100")
    dataset = load(data, folder)
    if dataset.images.shape[2] == 1:
        raise KithkinError(f"{data} has signals, and augmentations are for pictures.", "Give another --data.")
    order = generator(seed, "views").permutation(len(dataset.labels))
    firsts = np.unique(dataset.labels[order], return_index=True)[1]  # of every class one
    chosen = [*order[firsts], *np.delete(order, firsts)][:pictures]
    out = _picture(out or Path(f"views-{dataset.name}.png"))
    paper = sheet(dataset.images[chosen], seed, RunConfig(flip=flip).flips(dataset.flip))
    with _writing(out):
        paper.save(out)
    _say(f"Picture: {out}")


def _picture(out: Path) -> Path:
    out = expanded(out)
    return out if out.suffix else out.with_suffix(".png")


@contextmanager
def _writing(out: Path) -> Generator[None, None, None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a suffix that is no picture format
        remedy = "Give another --out: a .png, in a folder that is there and has room."
        raise KithkinError(f"Cannot write the picture {out} ({error}).", remedy) from error


def _summarise(split: Split, labels: np.ndarray, title: str) -> None:
    figures = (Column(head, justify="right") for head in ("min", "median", "max"))
    table = Table("per client", *figures, title=Text(title), title_justify="left")
    shares = split.shares
    for what, values, form in (
        ("training pictures", [len(share.train) for share in shares], ",.0f"),
        ("labelled of them", [len(share.labelled) for share in shares], ",.0f"),
        ("label ratio", [share.label_ratio for share in shares], ".2f"),
        ("classes in training", [len(np.unique(labels[share.train])) for share in shares], ".0f"),
        ("validation pictures", [len(share.val) for share in shares], ",.0f"),
        ("test pictures", [len(share.test) for share in shares], ",.0f"),
    ):
        table.add_row(what, *(format(value, form) for value in (min(values), np.median(values), max(values))))
    Console().print(table)
    _say(f"{len(shares)} clients, split {split.digest()}")
