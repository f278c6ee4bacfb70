"""The page: one HTML file that needs no network. Style and script are files beside this one, put in when it is made."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from kithkin.disk import disk_errors, write_text
from kithkin.report.gather import gather


def page(data: dict[str, Any], live: str = "", reload: int = 0) -> str:
    """The page of these runs. `live`: an address to ask for news; `reload`: seconds after which a file is read again.

    Names come from other people's folders and files. They travel as JSON, in which no tag can end, and only the one script
    whose hash is given here may run.
    """
    style, script = part("page.css"), "".join(map(part, ("draw.js", "figures.js", "helpers.js", "page.js")))
    only = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{only}'; img-src data:; connect-src 'self'"
    values = {
        "policy": policy,
        "title": html.escape(title_of(data)),
        "style": style,
        "live": html.escape(live, quote=True),
        "reload": str(reload),
        "data": as_json(data),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], part("page.html"))  # in one pass: values are not searched


def part(name: str) -> str:
    return files("kithkin.report").joinpath(name).read_text(encoding="utf-8")


def as_json(data: dict[str, Any]) -> str:
    """JSON that is safe inside a script element: no `<`, and nothing but ASCII."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e")


def title_of(data: dict[str, Any]) -> str:
    """The run's name, or of several runs their methods."""
    runs = data["runs"]
    names = list(dict.fromkeys(str(run["name" if len(runs) == 1 else "method"]) for run in runs))
    return f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''} · kithkin".encode("utf-8", "replace").decode()


def write_page(
    paths: Sequence[Path], out: Path, models: bool | None = None, reload: int = 0, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Write the page of these runs, whole or not at all; gives what it shows."""
    data = gather(paths, models, say)
    text = page(data, reload=reload)
    with disk_errors(out, "Give another --out."):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, text)
    return data
