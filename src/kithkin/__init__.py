"""kithkin: personalised federated semi-supervised learning.

>>> import kithkin
>>> kithkin.run(method="um", data="digits", clients=20, rounds=30)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kithkin.comparison import Row
    from kithkin.config import Alpha
    from kithkin.record import Result
    from kithkin.use import LoadedRun


def run(
    out: str | Path | None = None, *, quiet: bool = True, report: bool = False, tensorboard: bool = False, **flags: Any
) -> Result:
    """Do a run, with the command line's flags as keyword arguments (`sample_rate=0.5`), and give its result."""
    from kithkin.flags import settle, shown
    from kithkin.own import expanded, look_again
    from kithkin.record import run as whole_run
    from kithkin.record.run import home_of

    look_again()
    config, settings = settle(flags)
    folder = expanded(out) if out else home_of(config)
    display, finish = shown(quiet, folder, report, tensorboard)
    result = whole_run(config, settings, folder, display)
    finish()
    return result


def resume(
    out: str | Path,
    *,
    quiet: bool = True,
    report: bool = False,
    tensorboard: bool = False,
    device: str | None = None,
    compute: str | None = None,
    pool: str | None = None,
) -> Result:
    """Go on with a run that was broken off, where it began or elsewhere; a finished one is only read back."""
    from kithkin.flags import shown
    from kithkin.own import expanded, look_again
    from kithkin.record import resume as whole_resume

    look_again()
    folder = expanded(out)
    display, finish = shown(quiet, folder, report, tensorboard)
    result = whole_resume(folder, display, where={"device": device, "compute": compute, "pool": pool})
    finish()
    return result


def compare(
    methods: str | Sequence[str],
    alphas: Alpha | Sequence[Alpha] | None = None,
    seeds: int | Sequence[int] = 0,
    out: str | Path = "runs/compare",
    *,
    lrs: Sequence[float] = (),
    jobs: int | None = 1,
    quiet: bool = True,
    **flags: Any,
) -> list[Row]:
    """Run every method at every alpha with every seed, a folder each, and give the rows of their table; finished runs are read.

    With `lrs` each method takes the best of these learning rates. A script that gives more than one of `jobs` has to do its
    work below `if __name__ == "__main__":`, since Python starts it anew in every process.
    """
    from kithkin.comparison import cells_of, run_all
    from kithkin.data import resolved
    from kithkin.errors import KithkinError
    from kithkin.flags import one_or_several, settle_each
    from kithkin.own import expanded, look_again

    look_again()
    for name in {"method", "alpha", "seed"} & flags.keys():
        raise KithkinError(f"{name} is given to a comparison.", f"Give {name}s, one or several.")
    names, folder, rates = one_or_several(methods), expanded(out), one_or_several(lrs)
    if "lr" in flags and rates:
        raise KithkinError("There are --lr and --lrs.", "Give --lr for one rate, or --lrs for a choice.")
    settle_one = settle_each(names, flags)
    usual: list[Any] = [resolved(settle_one(name)[0]).alpha for name in names[:1]]
    cells = cells_of(names, usual if alphas is None else one_or_several(alphas), one_or_several(seeds), folder, settle_one)
    return run_all(cells, folder, jobs, quiet, rates)


def load(out: str | Path, *, device: str = "auto") -> LoadedRun:
    """A finished run, ready to answer: `load(RUN).client(3).predict(pictures)`."""
    from kithkin.own import look_again
    from kithkin.use import load as load_run

    look_again()
    return load_run(out, device)
