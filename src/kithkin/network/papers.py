"""A site's papers (site.toml) and addresses. Nothing here needs torch: `kithkin site join` only looks after programs."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from kithkin.config import check_kinds
from kithkin.disk import write_text
from kithkin.errors import KithkinError


@dataclass(frozen=True)
class Papers:
    """site.toml: where a site's data lies, and how it is dealt."""

    name: str
    data: str
    unlabelled: str = ""  # more pictures, which have no label
    label_ratio: float = 1.0  # share of the training pictures whose label is used
    seed: int = 0  # of the site's own split
    device: str = "auto"
    number: int | None = None  # only where no key tells sites apart
    server: str = ""
    ca: str = ""


def read_papers(folder: Path) -> Papers:
    path = folder / "site.toml"
    try:
        papers = Papers(**read_toml(path))
    except TypeError as e:
        raise KithkinError(f"{path} is not as it should be ({e}).", "Make the site anew with `kithkin site init`.") from None
    try:
        check_kinds(papers)
    except KithkinError as e:
        raise KithkinError(f"In {path}, {e.problem}", "Mend that line.") from None
    return papers


def write_papers(folder: Path, papers: Papers) -> None:
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in asdict(papers).items() if value is not None]
    write_text(folder / "site.toml", "".join(lines))


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise KithkinError(f"There is no file {path}.", "Check the path.") from None
    except (OSError, ValueError) as e:
        raise KithkinError(f"{path} cannot be read: {e}.", "Mend it; docs/deploy.md shows a whole file.") from None


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or set(host) & set("\"'\\ \t"):
        raise KithkinError(f"'{address}' is no address.", "Give HOST:PORT.")
    return host.strip("[]"), int(port)


def on_this_machine(address: str) -> bool:
    host, _ = host_and_port(address)
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
