"""A run's flags, as words of the command line or keyword arguments of Python, and what they mean."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, fields, make_dataclass, replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints
from unittest.mock import patch

import tyro

from kithkin.config import SAID, Alpha, RunConfig, bad, check_kinds
from kithkin.errors import KithkinError, unknown
from kithkin.own import is_own, short

OUT = ("out", Annotated[Path | None, tyro.conf.arg(help="Folder for the run; left out, one below runs/."), SAID], None)
QUIET = ("quiet", Annotated[bool, tyro.conf.arg(help="Show nothing while running.")], False)
REPORT = (
    "report",
    Annotated[bool, tyro.conf.arg(help="Write report.html into the folder; refreshed while running.")],
    False,
)
BOARD = ("tensorboard", Annotated[bool, tyro.conf.arg(help="Write TensorBoard's event files into the folder.")], False)
FLAT = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)


def settle(flags: dict[str, Any]) -> tuple[RunConfig, Any]:
    """Plain flags as a run's config and its method's settings."""
    from kithkin.data import resolved
    from kithkin.methods import entry_of, suited

    flags = {name: _plain(name, value) for name, value in flags.items()}
    common = {f.name for f in fields(RunConfig)}
    config = RunConfig(**{k: v for k, v in flags.items() if k in common}).checked()
    usual = entry_of(config.method).settings
    own = {f.name for f in fields(usual)}
    for name in flags:
        if name not in common | own:
            raise unknown(f"setting of {config.method}", name, common | own)
    asked = {k: v for k, v in flags.items() if k in own}
    check_kinds(mine := replace(usual, **asked))
    refuse_idle(config.model, mine, flags.__contains__)
    return config, replace(suited(usual, resolved(config).clients, asked.get("helpers")), **asked)


def settle_each(methods: Sequence[str], flags: dict[str, Any]) -> Callable[[str], tuple[RunConfig, Any]]:
    """Flags of many methods' runs, for each of them: a method's setting goes to those that take it."""
    from kithkin.methods import entry_of, idle, sees_all_labels

    common = {f.name for f in fields(RunConfig)}
    asked = {name: value for name, value in flags.items() if name not in common}

    def settings_of(method: str) -> set[str]:
        """Those that it takes here: a method that is given all labels keeps them, and FixMatch's are for FixMatch."""
        usual = entry_of(method).settings
        names = {f.name for f in fields(usual)} - ({"objective"} if sees_all_labels(usual) else set())
        here = replace(usual, **{name: asked[name] for name in {"objective"} & names & asked.keys()})
        return names - idle(here)

    for name in asked:
        takers = [method for method in methods if name in settings_of(method)]
        if not takers:
            problem = f"None of {', '.join(methods)} takes --{name.replace('_', '-')} here."
            raise KithkinError(problem, "Leave it out, or compare a method that does.")
        if name == "prox" and "pfedme" in takers and len(takers) > 1:
            problem = f"--prox is lambda to pfedme and mu to {', '.join(m for m in takers if m != 'pfedme')}."
            raise KithkinError(problem, "Compare pfedme with it in another --out.")

    def of(method: str) -> tuple[RunConfig, Any]:
        theirs = settings_of(method)
        return settle({**{k: v for k, v in flags.items() if k in common | theirs}, "method": method})

    return of


def refuse_idle(model: str, settings: Any, asked: Callable[[str], object]) -> None:
    """What was asked for and would change nothing."""
    from kithkin.methods import idle

    idlers = {"width": "ResNet-9"} if is_own(model) else {}
    for name, whose in (idlers | dict.fromkeys(sorted(idle(settings)), "FixMatch")).items():
        if asked(name):
            raise KithkinError(f"--{name.replace('_', '-')} is {whose}'s, and does nothing here.", "Leave it out.")


def one_or_several(values: Any) -> list[Any]:
    """Values as a list, also of one that stands alone; numbers of NumPy as plain ones.

    >>> one_or_several("um"), one_or_several((0, 1)), one_or_several(0.5)
    (['um'], [0, 1], [0.5])
    """
    alone = isinstance(values, str) or not isinstance(values, Iterable)
    return [_plain("", value) for value in ([values] if alone else values)]


def _plain(name: str, value: Any) -> Any:
    """A value as the command line would have it: numbers of NumPy and paths of data are such in Python."""
    import numpy as np

    if name in ("method", "model") and not isinstance(value, str | None):
        remedy = f"Name it, so that the run's folder tells where it is found again: {name}='file.py:NAME' or 'module:NAME'."
        raise KithkinError(f"The {name} is given as {type(value).__name__}, not by name.", remedy)
    if name == "data" and isinstance(value, Path):
        return str(value)
    if name == "data" and not isinstance(value, str | int | float | None):
        remedy = "Save its pictures as npz or in a folder, and name that (docs/own-data.md)."
        raise KithkinError(f"The data is given as {type(value).__name__}, not by name.", remedy)
    return value.item() if isinstance(value, np.generic) else value


def shown(quiet: bool, folder: Path, report: bool, tensorboard: bool) -> tuple[Any, Callable[[], None]]:
    """A run's display, and what is to be done when it is over."""
    from kithkin.display import display_for

    display = display_for(quiet)
    if not (report or tensorboard):
        return display, lambda: None
    from kithkin.report.live import Showing

    showing = Showing(display, folder, report, tensorboard)
    return showing, showing.finish


def parse(prog: str, about: str, name: str, argv: Sequence[str], more: Sequence[tuple[str, Any, Any]]) -> tuple[Any, Any]:
    """All flags of a run with this method: parsed, and the method's settings apart."""
    from kithkin.methods import entry_of, suited

    common = usual(argv, method=name)
    clients, helpers = (int(v) if v and v.isdecimal() else None for v in (given(argv, "--clients"), given(argv, "--helpers")))
    settings = suited(entry_of(name).settings, clients or common.clients, helpers)
    group = re.sub(r"\W|^(?=\d)", "_", short(name))  # an identifier, also of 2nd.py:NAME
    default = field(default=common)
    Args = make_dataclass(
        "Args", [("run", RunConfig, default), (group, type(settings), field(default=settings)), *more], frozen=True
    )
    asking = f"{prog} --method {name}" if given(argv, "--method") else prog
    args: Any = understood(Args, argv, prog, asking, description=about, config=FLAT)
    if args.run.method != name:
        raise KithkinError(f"--method is {args.run.method} beside {name}.", "Name one method.")
    own = getattr(args, group)
    refuse_idle(args.run.model, own, lambda setting: given(argv, f"--{setting.replace('_', '-')}"))
    return args, own


WIDE = {"COLUMNS": "9999", "TERM": "dumb"}  # a screen on which no line of a box is broken or coloured
FRAME = str.maketrans(dict.fromkeys("╭╮╰╯│─", " "))


def understood(kind: Any, argv: Sequence[str], prog: str, asking: str = "", **how: Any) -> Any:
    """What words mean by tyro, whose box around what they do not is told in a line; `asking` --help says what is taken."""
    told = StringIO()
    screen = {} if {"-h", "--help"} & {*argv} else WIDE
    try:
        with patch.dict(os.environ, screen), redirect_stderr(told):
            return tyro.cli(kind, args=argv, prog=prog, **how)
    except SystemExit as e:
        if not e.code:
            raise
    box, remedy = told.getvalue(), f"`{asking or prog} --help` says what is taken."
    try:
        mistake = _misunderstood(box, argv, remedy)
    except (ValueError, IndexError):  # a box of another make
        mistake = KithkinError(" ".join(box.translate(FRAME).split()) or "The words are not understood.", remedy)
    raise mistake


def _misunderstood(box: str, argv: Sequence[str], remedy: str) -> KithkinError:
    """A box of tyro's: a title, what is wrong, and, further in, flags with what they are for; of blanks, where that must do."""
    title, problem, *_ = [line for each in box.splitlines() if (line := each.strip("╭╮│─ ")).strip("-")]
    named = re.findall(r"^[│ ] {5}(\S.*?)[│ ]*$", box, re.MULTILINE)
    if title == "Unrecognized options":
        near = " or ".join(sorted(name.split()[0] for name in named))
        words = problem.partition(": ")[2].replace(", ", " ")
        return KithkinError(f"Not understood: {words}.", f"Did you mean {near}? {remedy}" if near else remedy)
    if title == "Required options":
        about = re.findall(r"^[│ ] {9}(\S.*?) \(required\)", box, re.MULTILINE)
        return KithkinError(f"{named[0].split()[0]} is missing.", about[0] if about else remedy)
    if title == "Value error":
        flag, _, value = named[0].partition(" ")
        kinds = re.sub(r"[][{}]", "", value.partition(" [")[0]).lower().replace("|", " or ")
        return bad(flag.removeprefix("--"), f"'{' '.join(_given_all(argv, flag))}'", f"must be {kinds}")
    if title == "Missing argument":
        _, flag, *_ = problem.split("'")
        return KithkinError(f"{flag} has no value.", f"Give one. {remedy}")
    choice = re.fullmatch(r"invalid choice '(.*)' for argument '(.*?)'\. Expected one of \((.*?),?\)\.", problem)
    if choice:
        word, flag, choices = choice.groups()
        return unknown(flag, word, [known.strip("'") for known in choices.split(", ")])
    return KithkinError(problem, remedy)


@dataclass(frozen=True)
class OfAll(RunConfig):
    """Every run. The defaults are those that suit the data set."""

    method: tyro.conf.Suppress[str] = RunConfig.method
    alpha: tyro.conf.Suppress[Alpha | None] = RunConfig.alpha
    seed: tyro.conf.Suppress[int] = RunConfig.seed


def of_single_methods(argv: Sequence[str]) -> type:
    """A class with the settings of every method, also of the user's own among --methods; each may be left out."""
    from kithkin.methods import METHODS, entry_of

    own: dict[str, tuple[Any, dict[str, Any]]] = {}
    for name in [*METHODS, *filter(is_own, _given_all(argv, "--methods"))]:
        settings = entry_of(name).settings
        for setting, kind in get_type_hints(type(settings)).items():
            known, values = own.get(setting, (kind, {}))
            own[setting] = (_either(known, kind), {**values, short(name): getattr(settings, setting)})
    own_fields = [
        (setting, Annotated[kind | None, tyro.conf.arg(help=f"For {', '.join(v)}.", help_behavior_hint=_default_of(v))], None)
        for setting, (kind, v) in own.items()
    ]
    about = "Settings of single methods go to those that have them; `kithkin run --method NAME --help` says what they mean."
    return make_dataclass("Own", own_fields, frozen=True, namespace={"__doc__": about})


def _default_of(values: dict[str, Any]) -> str:
    """What --help says of a setting of several methods, where it is left out.

    >>> _default_of({"um": 5, "um-plus": 5}), _default_of({"um": 5, "mine": 6}), _default_of({"lg-fedavg": None})
    ('(default: 5)', "(default: the method's own)", '')
    """
    first, *others = values.values()
    if any(value != first for value in others):
        return "(default: the method's own)"
    return "" if first is None else f"(default: {first})"


def usual(argv: Sequence[str], **more: Any) -> RunConfig:
    """The defaults that suit the chosen data set and preset, so that --help shows them."""
    from kithkin.data import resolved

    chosen = {name: given(argv, f"--{name}") for name in ("data", "preset")}
    return resolved(RunConfig(**{k: v for k, v in chosen.items() if v}, **more).checked())  # pyright: ignore[reportArgumentType]


def given(argv: Sequence[str], flag: str) -> str | None:
    """The last value of a flag, before parsing: the other flags depend on it."""
    values = [value for word, value in pairwise(_apart(argv, flag)) if word == flag]
    return values[-1] if values else None


def _given_all(argv: Sequence[str], flag: str) -> list[str]:
    """All words after a flag that takes several, before parsing."""
    words = _apart(argv, flag)
    after = words[words.index(flag) + 1 :] if flag in words else []
    return after[: next((i for i, word in enumerate(after) if word.startswith("-")), len(after))]


def _apart(argv: Sequence[str], flag: str) -> list[str]:
    """The words, with --flag=value as two."""
    return [part for word in argv for part in (word.split("=", 1) if word.startswith(f"{flag}=") else [word])]


def _either(one: Any, other: Any) -> Any:
    """A type for a flag that takes what any of its methods takes."""
    if get_origin(one) is get_origin(other) is Literal:
        return Literal[*dict.fromkeys((*get_args(one), *get_args(other)))]
    return one | other
