"""Run folders, read as far as they can be: whatever is missing, torn or foreign becomes a remark.

A report must come from a run that still goes on, one that was killed in the middle of a line, a folder that lost a file or got
one from elsewhere. So a line that has not the form in which a run writes it ends its record, and what comes before stands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from kithkin.errors import KithkinError
from kithkin.record import Folder

RECORDS = ("manifest.json", "metrics.jsonl", "marks.jsonl", "audit.jsonl", "lists.jsonl", "clients.jsonl", "summary.json")
FAULTS = (KeyError, TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError, OverflowError)  # of foreign records

Line = dict[str, Any]


def folders_of(paths: Sequence[Path]) -> list[Path]:
    """The runs at these paths; a folder of runs, such as that of a comparison, stands for all of them, without newcomers."""
    found: list[Path] = []
    if not paths:
        raise KithkinError("No run is named.", "Name the folder of a run, or of several.")
    for path in paths:
        refuse_newcomers(path)
        inside = [] if is_run(path) or not path.is_dir() else sorted(path.iterdir())
        below = [p for p in inside if p.is_dir() and is_run(p) and not is_newcomers(p)]
        if not below and not is_run(path):
            raise KithkinError(f"{path} is no run and holds none.", "Name the folder of a run or of a comparison.")
        found += below or [path]
    return list(dict.fromkeys(found))


def is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in RECORDS)


def is_newcomers(path: Path) -> bool:
    return "newcomer" in read_object(Folder(path).manifest, [])


def refuse_newcomers(path: Path) -> None:
    if is_newcomers(path):
        problem = f"{path} is a newcomer's: it holds a model, and no record of rounds."
        raise KithkinError(problem, "Use it with `kithkin predict`, `advise` or `export`.")


def read_object(path: Path, remarks: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        if isinstance(value, dict):
            return plain(value)
        problem = "holds no settings"
    except FileNotFoundError:
        problem = "is missing"
    except (OSError, ValueError, RecursionError):
        problem = "cannot be read"
    remarks.append(f"{path.name} {problem}; what it says is left out.")
    return {}


def read_lines(path: Path, remarks: list[str], quiet: bool = False) -> list[Line]:
    """The good lines of a record, with a remark where it breaks off; `quiet`: it need not be there."""
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
        lines = list(takewhile(lambda line: well_formed(path.stem, line), Folder(path.parent).read_lines(path)))
    except FileNotFoundError:
        if not quiet:
            remarks.append(f"{path.name} is missing; the figures made from it are left out.")
        return []
    except OSError as e:
        remarks.append(f"{path.name} cannot be read ({e.strerror}); the figures made from it are left out.")
        return []
    if len(lines) < len(texts):
        remarks.append(f"{path.name} breaks off after line {len(lines)}; what comes before is shown.")
    return lines


def well_formed(name: str, line: Line) -> bool:
    try:
        return FORMS[name](line)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def number(v: Any) -> bool:
    return isinstance(v, int | float) and abs(v) < 1e18  # neither NaN nor infinite


def counts(*values: Any) -> bool:
    return all(type(v) is int and 0 <= v < 1e18 for v in values)


def pairs(rows: Any) -> bool:
    """Of [so many, so many of them wrong]."""
    return all(counts(n, wrong) and wrong <= n for n, wrong in rows)


def mark(v: Any) -> bool:
    """An accuracy; None, where a client has no pictures to be judged by."""
    return v is None or 0 <= v <= 1


def is_metrics(line: Line) -> bool:
    told = [v for name, v in line.items() if name != "bytes_by_cause"]
    return counts(line["round"], *line["bytes_by_cause"].values()) and all(v is None or number(v) for v in told)


def is_marks(line: Line) -> bool:
    val, test = line["val"], line["test"]
    return counts(line["round"]) and len(val) == len(test) and all(map(mark, (*val, *test)))


def is_audit(line: Line) -> bool:
    asked, taken, wrong = (line[name] for name in ("asked", "taken", "wrong"))
    helpers: dict[str, Any] = line["by_helper"]
    classes, entropies = line["by_class"], line["by_entropy"]
    sums = counts(line["round"], asked, taken, wrong) and wrong <= taken <= asked
    whole = not asked or bool(classes) == bool(entropies)  # sites may tell the sums alone
    return sums and whole and pairs((*classes, *entropies, *helpers.values())) and all(name.isdecimal() for name in helpers)


def is_lists(line: Line) -> bool:
    K = len(line["helpers"])
    rows = (entry for row in line["helpers"] for entry in row)
    return counts(line["round"]) and all(counts(j, version) and j < K and number(relation) for j, version, relation in rows)


def is_client(line: Line) -> bool:
    return counts(line["client"], line["labelled"], line["unlabelled"]) and mark(line["test_at_best_val"])


FORMS: dict[str, Callable[[Line], bool]] = {
    "metrics": is_metrics,
    "marks": is_marks,
    "audit": is_audit,
    "lists": is_lists,
    "clients": is_client,
}


def plain(value: Any) -> Any:
    """As JSON allows it: a manifest that others wrote may hold NaN, or numbers without end."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value if isinstance(value, str) or number(value) else None


def rounded(values: Any, digits: int = 4) -> Any:
    """Numbers to sensible digits, nested lists too; what is no number becomes None, as in JSON."""
    if isinstance(values, list | tuple):
        return [rounded(v, digits) for v in values]
    if values is None or not math.isfinite(values):
        return None
    return round(float(values), digits) if digits else round(values)


def known(values: Sequence[float | None]) -> list[float]:
    return [v for v in values if v is not None]
