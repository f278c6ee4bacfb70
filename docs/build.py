"""What of the site is made, not written: the commands' page from the commands' own help, the palette from the report's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from kithkin.manual import Command, Flag, commands, flags_in, help_of
from kithkin.methods import METHODS
from kithkin.palette import schemes

ROOT = Path(__file__).parents[1]
MARK = "<!-- commands -->"


def on_files(files: Any, config: Any) -> Any:
    """The report's colours and type scale, for both of the theme's schemes."""
    light, dark = schemes()
    text = f":root, [data-md-color-scheme=default] {{{light}}}\n[data-md-color-scheme=slate] {{{dark}}}\n"
    text = re.sub(r"(--t\d: )(\.?[\d.]+)rem", lambda m: f"{m[1]}{float(m[2]) * 16:g}px", text)  # the theme's rem is 20 pixels
    files.append(File.generated(config, "palette.css", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    markdown = markdown.replace(MARK, manual()) if MARK in markdown else markdown
    return re.sub(r"<!-- include (\S+) -->", lambda found: shown(found[1]), spaced(markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Figures and flags are not broken apart in narrow columns: not "3e-3", not "0.97 ± 0.01", not "--no-save-models"."""
    html = re.sub(r"<(td[^>]*|code)>(?=[^<]{1,9}</td>|[^<\s]{1,25}</code>)", r"<\1 data-short>", html)
    return html.replace(" ± ", "&nbsp;±&nbsp;")


def shown(file: str) -> str:
    """A file of the repository, as it stands there."""
    return f'```python title="{file}"\n{(ROOT / file).read_text(encoding="utf-8")}```'


def spaced(markdown: str) -> str:
    """A blank line before every list and table: where GitHub does without, the site's Markdown does not."""
    lines: list[str] = []
    fenced = False
    for line in markdown.splitlines():
        before = lines[-1] if lines else ""
        fenced ^= line.startswith("```")
        kind = r"(- |\d+\. |\|)"
        if not fenced and re.match(kind, line) and before.strip() and not re.match(rf"{kind}|  ", before):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def manual() -> str:
    """Every command, with every flag."""
    known = {c.words: c for c in commands()}
    parts: list[str] = []
    for words, command in known.items():
        if not words or words[:1] == ("paper",):
            continue
        parts.append(section(command))
        if words == ("run",):
            parts.append(settings_of_methods())
    return "\n\n".join([*parts, paper(known)])


def section(command: Command) -> str:
    level = "##" if len(command.words) == 1 else "###"
    name = " ".join(("kithkin", *command.words))
    about = command.about if command.words != ("run",) else command.about.partition("\n")[0]
    if command.below:
        return f"{level} {name}\n\n{about}"
    shared = command.words in (("compare",), ("explain",))
    flags = [f for f in command.flags if not (shared and f.group in ("run options", "um options"))]
    more = "Beside these, every flag of [kithkin run](#kithkin-run) that says what a run is." if shared else ""
    return "\n\n".join(filter(None, [f"{level} {name}", about, f"```text\n{command.usage}\n```", table(flags), more]))


def settings_of_methods() -> str:
    """Each method's own flags; methods with the same ones together."""
    groups: dict[str, list[str]] = {}
    for name in METHODS:
        own = [f for f in flags_in(help_of(["run", "--method", name])) if f.group not in ("options", "run options")]
        groups.setdefault(table(own), []).append(name)
    lines = ["### Flags of single methods"]
    for text, names in groups.items():
        lines.append(", ".join(f"**{name}**" for name in names) + "\n\n" + text)
    return "\n\n".join(lines)


def paper(known: dict[tuple[str, ...], Command]) -> str:
    """Tables and figures all take the same flags: told once."""
    group = known["paper",]
    recipes = [name for name in group.below if name not in ("list", "report")]
    parts = [section(group), section(known["paper", "list"]), section(known["paper", "report"]), "### kithkin paper NAME"]
    rows = "".join(f"| {name} | {known['paper', name].about.partition(chr(10))[0]} |\n" for name in recipes)
    parts.append(f"| NAME | |\n|---|---|\n{rows}")
    first = known["paper", recipes[0]]
    return "\n\n".join([*parts, first.about.partition("\n")[2].strip(), table(first.flags)])


def table(flags: Any) -> str:
    if not flags:
        return ""
    rows = "".join(f"| {name(f)} | {cell(f.about)} | {default(f)} |\n" for f in flags)
    return f"| flag | | default |\n|---|---|---|\n{rows}"


def name(flag: Flag) -> str:
    value = re.sub(r"^(\S+) \1 \.\.\.$", r"\1 ...", re.sub(r"[\[\]{}]", "", flag.value).replace(",", "|"))
    value = value.replace("|", " or ")
    return f"`{flag.name}`" + (f" {value}" if value else "") if flag.name else value


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def default(flag: Flag) -> str:
    return "" if flag.default in ("False", "") or not flag.value else f"`{flag.default}`"
