"""kithkin: personalised federated semi-supervised learning.

>>> import kithkin
>>> kithkin.run(method="um", data="digits", clients=20, rounds=30)  # doctest: +SKIP
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
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


def load(out: str | Path, *, device: str = "auto") -> LoadedRun:
    """A finished run, ready to answer: `load(RUN).client(3).predict(pictures)`."""
    from kithkin.own import look_again
    from kithkin.use import load as load_run

    look_again()
    return load_run(out, device)
