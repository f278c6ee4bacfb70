"""Every command that the README or the docs show is run, or its author says why not; then at least its flags are parsed."""

from __future__ import annotations

import functools
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tyro
from blocks import PAGES, ROOT, Block, blocks, shows_a_command

from kithkin.cli import main
from kithkin.manual import flags_in, help_of

SHOWN = [block for page in PAGES for block in blocks(page) if shows_a_command(block)]
RUN = [page for page in PAGES if any(block.runs for block in SHOWN if block.page == page)]


def where(block: Block) -> str:
    return f"{block.page.relative_to(ROOT)}:{block.line}"


@pytest.mark.parametrize("block", SHOWN, ids=where)
def test_no_command_escapes_without_a_reason(block: Block):
    assert block.runs or block.reason, (
        f"{where(block)}: put <!-- run -->, <!-- run: FLAGS --> or <!-- not run: REASON --> above it"
    )


def test_most_commands_are_run():
    assert len(RUN) >= 6
    assert sum(block.runs for block in SHOWN) > sum(bool(block.reason) for block in SHOWN)


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KITHKIN_DATA", str(tmp_path / "data"))
    shutil.copytree(ROOT / "examples", "examples")
    for block in (b for b in SHOWN if b.page == page and b.runs):
        if block.kind == "python":
            exec(compile(block.text, where(block), "exec"), {"__name__": "shown"})
            continue
        for line in block.commands():
            words = shlex.split(line)
            if words[0] == "kithkin":
                more = taken(words[1:], shlex.split(block.more))
                assert not code_of([*words[1:], *more]), f"{where(block)}: {line}"
            else:
                words[0] = sys.executable if words[0] == "python" else words[0]
                subprocess.run(words, check=True, timeout=900)


def taken(words: list[str], flags: list[str]) -> list[str]:
    """Those of the small flags that the command has: `local` has no helpers."""
    asked = words[: 2 if words[0] in ("data", "paper", "explain") else 1]
    if "--method" in words:
        asked += ["--method", words[words.index("--method") + 1]]
    known = {flag.name for flag in flags_in(help_of(asked))} if flags else set[str]()
    pairs = zip(flags[::2], flags[1::2], strict=True)
    return [word for pair in pairs if pair[0] in known for word in pair]


def code_of(words: list[str]) -> Any:
    try:
        main(words)
    except SystemExit as end:
        return end.code
    return 0


@pytest.mark.parametrize("block", [b for b in SHOWN if b.reason], ids=where)
def test_what_is_not_run_is_at_least_parsed(block: Block, monkeypatch: pytest.MonkeyPatch):
    class ParsedError(Exception):
        pass

    real = tyro.cli

    def parse_only(what: Any, **kwargs: Any) -> None:
        real(what if isinstance(what, type) else hollow(what), **kwargs)
        raise ParsedError

    monkeypatch.setattr(tyro, "cli", parse_only)
    for words in block.kithkins():
        if "--help" not in words:
            with pytest.raises(ParsedError):
                main(words)


def hollow(function: Any) -> Any:
    """A command that takes the same flags and does nothing."""

    @functools.wraps(function)
    def nothing(*_: Any, **__: Any) -> None: ...

    return nothing


def test_a_block_is_read_as_it_is_meant(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n<!-- run: --rounds 1 -->\n```bash\nkithkin run --data digits \\\n    --alpha 5   # a word\n# nothing\n```\n"
        "\n```console\n$ kithkin methods\n```\n<!-- not run: too long -->\n```bash\nmake demo\nkithkin demo\n```\n"
        "```text\nkithkin\n```\n"
    )
    first, second, third, fourth = blocks(page)
    assert (first.runs, first.more, first.line) == (True, "--rounds 1", 3)
    assert first.kithkins() == [["run", "--data", "digits", "--alpha", "5"]]
    assert (second.runs, second.reason, second.kithkins()) == (False, "", [["methods"]])
    assert (third.reason, third.commands()) == ("too long", ["make demo", "kithkin demo"])
    assert [shows_a_command(b) for b in (first, second, third, fourth)] == [True, True, True, False]
