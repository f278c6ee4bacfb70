"""Bytes by cause, and the paper's cost formulas beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kithkin.methods.base import Parcel

UP = ("upload", "warm-up")
NUMBER = 4  # bytes of a float32


@dataclass(frozen=True)
class Ledger:
    """Bytes moved so far, by cause: of the numbers that a parcel's receiver needs, and of no others."""

    moved: dict[str, int] = field(default_factory=dict[str, int])

    def count(self, parcels: Iterable[Parcel], number: int = NUMBER) -> Ledger:
        """With these parcels, at so many bytes a number."""
        ledger = self
        for parcel in parcels:
            ledger = ledger.add({parcel.cause: parcel.size * number})
        return ledger

    def add(self, bill: Mapping[str, int]) -> Ledger:
        """With these bytes by cause."""
        return Ledger(self.moved | {cause: self.moved.get(cause, 0) + size for cause, size in bill.items()})

    @property
    def up(self) -> int:
        """From clients to the server."""
        return sum(self.moved.get(cause, 0) for cause in UP)

    @property
    def down(self) -> int:
        """From the server to clients."""
        return sum(self.moved.values()) - self.up


def paper_costs(K: int, M: int, R: int, F: int, nu: int, tau: float, n: int, size: int) -> dict[str, float]:
    """The paper's costs in bytes: greedy search (27), helper lists (28), and what these save (29).

    >>> costs = paper_costs(K=100, M=5, R=2, F=30, nu=10, tau=0.1, n=200, size=1)
    >>> {name: cost / 400 for name, cost in costs.items()}
    {'greedy_27': 2000.0, 'helper_lists_28': 180.0, 'saved_29': 1820.0}
    """
    w = size * NUMBER
    greedy = tau * K**2 * w * n
    lists = K * M * w * n / nu + F * R * K * w + tau * K * w * n
    return {"greedy_27": greedy, "helper_lists_28": lists, "saved_29": greedy - lists}
