"""The fenced blocks of the README and the docs that show commands, and what their authors say about running them.

A comment above a block decides: `<!-- run -->` runs it as it stands; `<!-- run: FLAGS -->` adds flags to every kithkin command
in it that has them, so that it takes a second; `<!-- not run: REASON -->` says why not (its flags are still parsed).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?:<!-- *(?P<mark>[^\n]*?) *-->\n)?```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    kind: str  # bash, console, python ...
    text: str
    runs: bool
    more: str  # flags that make it small
    reason: str  # why it is not run

    def commands(self) -> list[str]:
        """Its lines, without prompts, comments and the breaks of long ones."""
        text = self.text.replace("\\\n", " ")
        lines = (re.sub(r"^\$ ", "", line).strip() for line in text.splitlines())
        return [re.sub(r"\s+# .*$", "", line) for line in lines if line and not line.startswith("#")]

    def kithkins(self) -> list[list[str]]:
        """The words of its kithkin commands."""
        return [shlex.split(line)[1:] for line in self.commands() if line.startswith("kithkin ")]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        mark = found["mark"] or ""
        runs, reason = re.fullmatch(r"run(?:: *(.*))?", mark), re.fullmatch(r"not run: *(.+)", mark)
        line = text[: found.start("text")].count("\n")
        more, why = (runs[1] or "") if runs else "", reason[1] if reason else ""
        yield Block(page, line, found["kind"], found["text"], bool(runs), more, why)


def shows_a_command(block: Block) -> bool:
    if block.kind in ("python", "py"):
        return "import kithkin" in block.text or block.runs
    return block.kind in ("bash", "console", "sh", "shell", "") and bool(re.search(r"^\$? ?kithkin ", block.text, re.MULTILINE))
