"""One error family: what is wrong, and what to do about it. The command line prints both and ends with code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KithkinError(ValueError):
    """A mistake that the user can mend. `remedy` is one sentence that says how."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[KithkinError], tuple[str, str]]:
        """So that it passes between processes."""
        return type(self), (self.problem, self.remedy)


def unknown(kind: str, name: str, known: Iterable[str]) -> KithkinError:
    """An unknown name, with the nearest known one.

    >>> print(unknown("method", "umm", ["um", "local"]))
    Unknown method 'umm'. Did you mean 'um'? Known: local, um.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    guess = f"Did you mean '{near[0]}'? " if near else ""
    return KithkinError(f"Unknown {kind} '{name}'.", f"{guess}Known: {', '.join(names)}.")
