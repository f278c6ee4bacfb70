"""The command line. Every mistake that a user can mend ends with one line, a remedy and exit code 2."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import field, make_dataclass
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature, unwrap
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import kithkin
from kithkin import own
from kithkin.config import SAID, Alpha, Engine, Pool, RunConfig, some
from kithkin.errors import KithkinError, unknown
from kithkin.flags import (
    BOARD,
    FLAT,
    OUT,
    QUIET,
    REPORT,
    OfAll,
    given,
    of_single_methods,
    parse,
    settle,
    shown,
    understood,
    usual,
)
from kithkin.processes import Ended, ending_softly

DEMO = {"data": "digits", "clients": 10, "rounds": 10, "width": 8, "batch_size": 32, "lr": 0.01}
DEMO |= {"eval_every": 2, "device": "cpu"}


def _run(argv: Sequence[str]) -> None:
    """Train a federation and write its run folder."""
    from kithkin.methods import entry_of
    from kithkin.record import run
    from kithkin.record.run import home_of

    name = given(argv, "--method") or RunConfig.method
    about = f"Method {name}: {entry_of(name).summary}. With --method NAME --help the settings of that method."
    about = f"{_run.__doc__}\n\n{textwrap.fill(about, shutil.get_terminal_size().columns - 1)}"
    args, settings = parse("kithkin run", about, name, argv, [OUT, QUIET, REPORT, BOARD])
    display, finish = shown(args.quiet, args.out or home_of(args.run), args.report, args.tensorboard)
    result = run(args.run, settings, args.out, display)
    finish()
    _tell(result, args.quiet)


def _explain(argv: Sequence[str]) -> None:
    """Show what a method shares on a network, tensor by tensor, and what travels each round."""
    from kithkin.explain import explain

    if not argv or argv[0].startswith("-"):
        print(f"usage: kithkin explain METHOD [flags of kithkin run]\n\n{_explain.__doc__}")
        print("\nfor example: kithkin explain fedper --data digits --personal-layers 2")
        if argv[:1] not in (["-h"], ["--help"]):
            raise KithkinError("No method is named.", "It comes first; `kithkin methods` lists them.")
        return
    args, settings = parse(f"kithkin explain {argv[0]}", _explain.__doc__ or "", argv[0], argv[1:], [])
    explain(args.run, settings)


def _compare(argv: Sequence[str]) -> None:
    """Run many methods, alphas and seeds, one folder each, and put them in one table."""
    from kithkin.display import display_for

    Own, common = of_single_methods(argv), usual(argv)
    Args = make_dataclass(
        "Compare",
        [
            ("methods", Annotated[tuple[str, ...], tyro.conf.arg(help="Methods to compare; `kithkin methods` lists them.")]),
            (
                "alphas",
                Annotated[tuple[Alpha, ...], tyro.conf.arg(help="How alike the clients are; rows for each.")],
                (some(common.alpha),),
            ),
            ("seeds", Annotated[tuple[int, ...], tyro.conf.arg(help="One run each.")], (0,)),
            ("lrs", Annotated[tuple[float, ...], tyro.conf.arg(help="Learning rates; each method gets its best."), SAID], ()),
            ("out", Annotated[Path, tyro.conf.arg(help="Folder for all runs and the table.")], Path("runs/compare")),
            (
                "jobs",
                Annotated[int | None, tyro.conf.arg(help="Runs at a time; left out, one a core, or one on a GPU."), SAID],
                None,
            ),
            QUIET,
            ("run", OfAll, field(default=OfAll(**vars(common)))),
            ("own", Own, field(default=Own())),
        ],
        frozen=True,
    )
    args: Any = understood(Args, argv, "kithkin compare", description=_compare.__doc__, config=FLAT)
    flags = {k: v for k, v in vars(args.own).items() if v is not None}  # those that were given: some exclude each other
    flags |= {k: v for k, v in vars(args.run).items() if v != getattr(common, k) or given(argv, f"--{k}")}
    try:
        kithkin.compare(
            args.methods, args.alphas, args.seeds, args.out, lrs=args.lrs, jobs=args.jobs, quiet=args.quiet, **flags
        )
    except KeyboardInterrupt:
        display_for(args.quiet).say("What was done is saved: the same command goes on with it.")
        raise


def _demo(out: Path | None = None) -> None:
    """Train a small federation on the embedded digits with five methods at two heterogeneities, and compare them.

    Args:
        out: Keep the runs and the table in this folder.
    """
    import tempfile

    from kithkin.comparison import cells_of, run_all

    print("Ten clients share 1,797 digits; each has its own mix of classes and its own share of labels. Nobody sends data.")
    print("alpha 5: clients are much alike. alpha 0.5: very different. Five methods, about a minute on two cores.\n")
    with tempfile.TemporaryDirectory() as folder:
        where = out or Path(folder)
        methods = ("um-plus", "um", "fixavg-ft", "fixavg", "local")
        cells = cells_of(methods, (5.0, 0.5), (0,), where, lambda method: settle({**DEMO, "method": method}))
        run_all(cells, where, None, quiet=False, kept=out is not None)


def _resume(
    folder: Path,
    quiet: bool = False,
    report: bool = False,
    tensorboard: bool = False,
    device: str | None = None,
    compute: Engine | None = None,
    pool: Pool | None = None,
) -> None:
    """Go on with a run that was broken off.

    Args:
        folder: The run's folder, as given to --out.
        quiet: Show nothing while running.
        report: Write report.html into the folder; refreshed while running.
        tensorboard: Write TensorBoard's event files into the folder.
        device: auto, cpu, cuda or cuda:N; left out, as it began.
        compute: How training runs from here on; left out, as it began.
        pool: Where models lie between visits from here on; left out, as it began.
    """
    from kithkin.record import resume

    display, finish = shown(quiet, folder, report, tensorboard)
    simulated = (folder / "sites").is_dir()  # by Flower
    where = {"device": device, "compute": compute, "pool": pool}
    result = (_of_network("simulate").resume if simulated else resume)(folder, display, where=where)
    finish()
    _tell(result, quiet)


def _methods(argv: Sequence[str]) -> None:
    """List the methods."""
    from kithkin.methods import METHODS

    understood(lambda: None, argv, "kithkin methods", description=_methods.__doc__)
    table = Table("method", "what it is")
    for name, entry in METHODS.items():
        table.add_row(name, entry.summary)
    Console().print(table)


def _data(argv: Sequence[str]) -> None:
    """List, get, import, check and show data sets, and how training views them."""
    from kithkin.data import commands

    known: dict[str, Callable[..., None]] = {
        "list": commands.list_sets,
        "get": commands.get,
        "import": commands.import_,
        "check": commands.check,
        "show": commands.show,
        "views": commands.views,
    }
    _dispatch("kithkin data", {name: _tyro(f"kithkin data {name}", f) for name, f in known.items()}, argv)


def _command(about: str, room: str, name: str) -> Callable[[Sequence[str]], None]:
    """A command of a room that is imported only where the command is asked for; until then `about` says what it is."""

    def command(argv: Sequence[str]) -> None:
        _tyro(f"kithkin {name}", getattr(import_module(f"kithkin.{room}"), name.replace("-", "_")))(argv)

    command.__doc__ = about
    return command


def _paper(argv: Sequence[str]) -> None:
    """Regenerate the paper's tables and figures, ours beside theirs."""
    from kithkin.paper import commands
    from kithkin.paper.recipes import RECIPES

    known: dict[str, Callable[[Sequence[str]], None]] = {
        "list": _tyro("kithkin paper list", commands.list_recipes),
        "report": _tyro("kithkin paper report", commands.report),
    }
    known |= {name: _tyro(f"kithkin paper {name}", commands.regenerating(name)) for name in (commands.ALL, *RECIPES)}
    _dispatch("kithkin paper", known, argv)


def _site(argv: Sequence[str]) -> None:
    """Take part in a federation over the network with your own data."""
    joining = _of_network("joining")
    known = {"init": joining.site_init, "join": joining.site_join}
    _dispatch("kithkin site", {name: _tyro(f"kithkin site {name}", f) for name, f in known.items()}, argv)


def _serve(argv: Sequence[str]) -> None:
    """Be the server of a federation over the network."""
    _tyro("kithkin serve", _of_network("commands").serve)(argv)


def _federation(argv: Sequence[str]) -> None:
    """Set up, start, watch and stop a federation over the network."""
    commands = _of_network("commands")
    known = {name: _tyro(f"kithkin federation {name}", getattr(commands, name)) for name in ("init", "start", "status", "stop")}
    known |= {"run": _federation_run, "demo": _tyro("kithkin federation demo", _of_network("demo").demo)}
    _dispatch("kithkin federation", known, argv)


def _federation_run(argv: Sequence[str]) -> None:
    """Do a run on this machine as a federation over the network would, in Flower's simulation, or without it."""
    from kithkin.methods import entry_of
    from kithkin.record import run
    from kithkin.record.run import home_of

    name = given(argv, "--method") or RunConfig.method
    about = f"{_federation_run.__doc__} Both give the same metrics.\n\nMethod {name}: {entry_of(name).summary}."
    courier = (
        "courier",
        Annotated[Literal["flower-sim", "local"], tyro.conf.arg(help="Who brings the messages.")],
        "flower-sim",
    )
    wire = ("wire", Annotated[Literal["fp32", "fp16", "bf16"], tyro.conf.arg(help="How a number travels.")], "fp32")
    args, settings = parse("kithkin federation run", about, name, argv, [OUT, QUIET, courier, wire])
    display, _ = shown(args.quiet, args.out or home_of(args.run), False, False)
    if args.courier == "local":
        result = run(args.run, settings, args.out, display)
    else:
        simulate = _of_network("simulate").simulate
        result = simulate(args.run, settings, args.out or home_of(args.run), display, args.wire)
    _tell(result, args.quiet)


def _tell(result: Any, quiet: bool) -> None:
    from kithkin.display import print_summary

    if not quiet:
        print_summary(result.summary, result.folder)


def _of_network(module: str) -> Any:
    if not find_spec("flwr"):
        raise KithkinError("Flower is not installed.", "Install it with `pip install 'kithkin[deploy]'`.")
    return import_module(f"kithkin.network.{module}")


def _tyro(prog: str, function: Callable[..., Any]) -> Callable[[Sequence[str]], Any]:
    """A function as a command; its parameters without a default are positional, and of an empty default nothing is said."""

    @wraps(function)
    def later(*args: Any, **kwargs: Any) -> Callable[[], Any]:
        return lambda: function(*args, **kwargs)

    def command(argv: Sequence[str]) -> Any:
        plain = unwrap(function)
        hints = get_type_hints(plain, include_extras=True)
        empty = (None, "", (), Parameter.empty)
        unsaid = [name for name, parameter in signature(plain).parameters.items() if parameter.default in empty]
        plain.__annotations__ = hints | {name: Annotated[hints[name], SAID] for name in unsaid}
        return understood(later, argv, prog, config=(*FLAT, tyro.conf.PositionalRequiredArgs))()

    command.__doc__ = function.__doc__
    return command


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "run": _run,
    "resume": _tyro("kithkin resume", _resume),
    "compare": _compare,
    "report": _command("Write one page about one run, or several side by side.", "report.commands", "report"),
    "watch": _command("Serve that page on this machine, up to date while runs go on.", "report.commands", "watch"),
    "export-metrics": _command("Write a run's record as CSV or Parquet tables.", "report.commands", "export-metrics"),
    "predict": _command("Say what a client's model makes of pictures, and how sure it is.", "use.commands", "predict"),
    "advise": _command("Say which pictures a client should label next.", "use.commands", "advise"),
    "export": _command("Write a client's model into one file that needs no kithkin.", "use.commands", "export"),
    "newcomer": _command(
        "Let a new client join a finished run: helpers from its pool, a model of its own.", "use.commands", "newcomer"
    ),
    "explain": _explain,
    "demo": _tyro("kithkin demo", _demo),
    "methods": _methods,
    "data": _data,
    "paper": _paper,
    "doctor": _command("Look at this machine: versions, device, data, what is missing and how to get it.", "doctor", "doctor"),
    "completion": _command(
        "Print a script that completes kithkin's commands, flags and names in a shell.", "completion", "completion"
    ),
    "site": _site,
    "serve": _serve,
    "federation": _federation,
}


def _dispatch(prog: str, commands: dict[str, Callable[[Sequence[str]], None]], argv: Sequence[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        about = (kithkin.__doc__ or "").splitlines()[0] if prog == "kithkin" else COMMANDS[prog.split()[1]].__doc__
        print(f"usage: {prog} COMMAND [flags]\n\n{about}\n\ncommands (each has --help):")
        width = max(10, *map(len, commands))
        screen = shutil.get_terminal_size((sys.maxsize, 0)).columns  # as wide as it takes, where nobody sees it
        for name, command in commands.items():
            told = f"  {name:{width}} {(command.__doc__ or '').splitlines()[0]}"
            print(textwrap.fill(told, screen, subsequent_indent=" " * (width + 3)))
        return
    if argv[0] == "--version" and prog == "kithkin":
        return print(f"kithkin {kithkin.__version__}")
    if argv[0] not in commands:
        raise unknown("command", argv[0], commands)
    commands[argv[0]](argv[1:])


LONG = ("run", "resume", "compare", "demo", "paper")  # what they have done is saved when they are stopped


def main(argv: Sequence[str] | None = None) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may be no text
    own.look_again()
    try:
        words = [own.at_home(word) for word in (sys.argv[1:] if argv is None else argv)]
        with ending_softly() if words[:1] and words[0] in LONG else nullcontext():
            _dispatch("kithkin", COMMANDS, words)
    except KeyboardInterrupt as e:
        sys.exit(e.code if isinstance(e, Ended) else 130)
    except BrokenPipeError:  # whoever read our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as e:
        known = _known(e)
        if not known:
            raise
        told = f"[bold red]error:[/] {escape(known.problem)} {escape(known.remedy)}"
        Console(stderr=True, soft_wrap=True).print(told, highlight=False)
        sys.exit(2)


def _known(e: Exception) -> KithkinError | None:
    """The mistake that an error is; also the system's refusals and faults of the user's own code, where nobody knew better."""
    if isinstance(e, KithkinError):
        return e
    if isinstance(e, MemoryError) or "allocate memory" in str(e):
        return KithkinError("There is not enough memory.", "Give a smaller --width or --batch-size, or fewer --clients.")
    if isinstance(e, OSError) and (e.filename or e.errno == errno.ENOSPC):  # no permission, a name too long, a full disk
        return KithkinError(f"{e.filename or 'The output'}: {e.strerror}.", "Mend that, or name another place.")
    blamed = own.blamed(e)
    return blamed if isinstance(blamed, KithkinError) else None


if __name__ == "__main__":
    main()
