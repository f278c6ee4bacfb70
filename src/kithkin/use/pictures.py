"""Pictures that a user names: files, folders of them, npz files. What is no picture of the run's kind is named and left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from kithkin.data.own import fits, open_picture, read_images
from kithkin.errors import KithkinError


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures that were read, each with its name, and a sentence about each that was not."""

    names: list[str]
    images: np.ndarray  # uint8 [N, C, H, W]
    skipped: list[str]


def read_pictures(paths: Iterable[Path], picture: tuple[int, ...]) -> Pictures:
    """All pictures [C, H, W] at these paths; a folder stands for all files in it and below."""
    names: list[str] = []
    images: list[np.ndarray] = []
    skipped: list[str] = []
    console = Console(stderr=True)
    for file in track(list(files_at(paths)), "reading", console=console, transient=True, disable=not console.is_terminal):
        try:
            if not file.exists():
                raise KithkinError(f"There is no {file}.", "Check the path.")
            if file.suffix.lower() == ".npz":
                found = read_images(file)
                fits(file, found, picture)
                names += [f"{file}[{i}]" for i in range(len(found))]
                images += list(found)
            else:
                images.append(open_picture(file, picture))
                names.append(str(file))
        except KithkinError as e:
            skipped.append(e.problem)
    return Pictures(names, np.stack(images) if images else np.empty((0, *picture), np.uint8), skipped)


def files_at(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            below = (p for p in path.rglob("*") if p.is_file() and not hidden(p.relative_to(path)))
            yield from sorted(below)
        else:
            yield path


def hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
