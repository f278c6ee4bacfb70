"""The command line. Every mistake that a user can mend ends with one line, a remedy and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import field, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kithkin.config import RunConfig
from kithkin.errors import KithkinError, unknown

Positional = tyro.conf.Positional
FLAT = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)


def settle(flags: dict[str, Any]) -> tuple[RunConfig, Any]:
    """Plain flags as a run's config and its method's settings."""
    from kithkin.methods import METHODS

    method = flags.get("method", RunConfig.method)
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    settings = METHODS[method].settings
    common, own = ({f.name for f in fields(c)} for c in (RunConfig, settings))
    for name in flags:
        if name not in common | own:
            raise unknown(f"setting of {method}", name, common | own)
    config = RunConfig(**{k: v for k, v in flags.items() if k in common})
    return config, replace(settings, **{k: v for k, v in flags.items() if k in own})


def _run(argv: Sequence[str]) -> None:
    """Train a federation and write its run folder."""
    from kithkin.display import display_for
    from kithkin.methods import METHODS
    from kithkin.record import run

    name = _given(argv, "--method") or RunConfig.method
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    entry = METHODS[name]
    Args = make_dataclass(
        "Run",
        [
            ("run", RunConfig, field(default=_usual(argv, method=name))),
            (name.replace("-", "_"), type(entry.settings), field(default=entry.settings)),
            ("out", Annotated[Path | None, tyro.conf.arg(help="Folder for the run; left out, one below runs/.")], None),
            ("quiet", Annotated[bool, tyro.conf.arg(help="Show nothing while running.")], False),
        ],
        frozen=True,
    )
    about = f"{_run.__doc__}\n\nMethod {name}: {entry.summary}. With --method NAME --help the settings of that method."
    args: Any = tyro.cli(Args, prog="kithkin run", description=about, args=argv, config=FLAT)
    result = run(args.run, getattr(args, name.replace("-", "_")), args.out, display_for(args.quiet))
    if not args.quiet:
        print_summary(result.summary, result.folder)


def _resume(argv: Sequence[str]) -> None:
    """Go on with a run that was broken off."""
    from kithkin.display import display_for
    from kithkin.record import resume

    def args(folder: Positional[Path], quiet: bool = False) -> tuple[Path, bool]:
        """Go on with a run that was broken off.

        Args:
            folder: The run's folder, as given to --out.
            quiet: Show nothing while running.
        """
        return folder, quiet

    folder, quiet = tyro.cli(args, prog="kithkin resume", args=argv, config=FLAT)
    result = resume(folder, display_for(quiet))
    if not quiet:
        print_summary(result.summary, result.folder)


def _methods(argv: Sequence[str]) -> None:
    """List the methods."""
    from kithkin.methods import METHODS

    tyro.cli(lambda: None, prog="kithkin methods", description=_methods.__doc__, args=argv)
    table = Table("method", "what it is")
    for name, entry in METHODS.items():
        table.add_row(name, entry.summary)
    Console().print(table)


def _data(argv: Sequence[str]) -> None:
    """List, get, import, check and show data sets."""
    from kithkin.data import commands

    known: dict[str, Callable[..., None]] = {
        "list": commands.list_sets,
        "get": commands.get,
        "import": commands.import_,
        "check": commands.check,
        "show": commands.show,
    }
    _dispatch("kithkin data", {name: _tyro(f"kithkin data {name}", f) for name, f in known.items()}, argv)


def _tyro(prog: str, function: Callable[..., None]) -> Callable[[Sequence[str]], None]:
    """A function as a command; its parameters without a default are positional."""

    def command(argv: Sequence[str]) -> None:
        tyro.cli(function, prog=prog, args=argv, config=(*FLAT, tyro.conf.PositionalRequiredArgs))

    command.__doc__ = function.__doc__
    return command


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "run": _run,
    "resume": _resume,
    "methods": _methods,
    "data": _data,
}


def _dispatch(prog: str, commands: dict[str, Callable[[Sequence[str]], None]], argv: Sequence[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        about = (__import__("kithkin").__doc__ or "").splitlines()[0] if prog == "kithkin" else _data.__doc__
        print(f"usage: {prog} COMMAND [flags]\n\n{about}\n\ncommands (each has --help):")
        for name, command in commands.items():
            print(f"  {name:10} {(command.__doc__ or '').splitlines()[0]}")
        return
    if argv[0] not in commands:
        raise unknown("command", argv[0], commands)
    commands[argv[0]](argv[1:])


def _usual(argv: Sequence[str], **more: Any) -> RunConfig:
    """The defaults that suit the chosen data set and preset, so that --help shows them."""
    chosen = {name: _given(argv, f"--{name}") for name in ("data", "preset")}
    return RunConfig(**{k: v for k, v in chosen.items() if v}, **more).resolved()  # pyright: ignore[reportArgumentType]


def _given(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag before parsing, since the other flags depend on it."""
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(flag + "="):
            return word[len(flag) + 1 :]
    return None


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    table = Table(show_header=False, box=None)
    moved = summary["down_bytes"] + summary["up_bytes"]
    causes = ", ".join(f"{cause} {size / 1e6:,.1f}" for cause, size in summary["bytes_by_cause"].items())
    rows = [
        ("test accuracy at best validation", f"{summary['test_at_best_val']:.4f} (round {summary['best_val_round']})"),
        ("test accuracy at the end", f"{summary['final_test_mean']:.4f}, variance {summary['final_test_var']:.4f}"),
        ("best test accuracy of any round", f"{summary['best_test']:.4f}"),
        ("MB moved", f"{moved / 1e6:,.1f} ({causes})" if causes else "0"),
        ("seconds", f"{summary['seconds']:,.1f}"),
        ("folder", escape(str(folder))),
    ]
    if summary["cost_formulas"]:
        lists = summary["cost_formulas"]["helper_lists_28"]
        greedy = summary["cost_formulas"]["greedy_27"]
        rows.insert(4, ("MB by the paper's formulas", f"{lists / 1e6:,.1f} helper lists (28), {greedy / 1e6:,.1f} greedy (27)"))
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table)


def main(argv: Sequence[str] | None = None) -> None:
    try:
        _dispatch("kithkin", COMMANDS, sys.argv[1:] if argv is None else argv)
    except KithkinError as e:
        Console(stderr=True, soft_wrap=True).print(
            f"[bold red]error:[/] {escape(e.problem)} {escape(e.remedy)}", highlight=False
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
