"""One round, from one state of the world to the next. A round that is broken off leaves the old world untouched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from kithkin import rng
from kithkin.errors import KithkinError
from kithkin.federation.courier import Courier, diverged, expect
from kithkin.federation.ledger import Ledger
from kithkin.methods.base import Brief, Client, Labels, Method


@dataclass(frozen=True, eq=False)
class World:
    """Everything that changes in a run: what a checkpoint holds."""

    round: int
    server: Any
    states: tuple[Any, ...]
    ledger: Ledger


def open_world(method: Method, clients: Sequence[Client], w0: Tensor) -> World:
    """The world before its first round: round 1, or 0 where the method begins with a warm-up."""
    states = tuple(method.greet(client, w0) for client in clients)
    return World(-1 if method.opening_round else 0, method.open(len(clients), w0), states, Ledger())


def cohort(seed: int, round: int, clients: int | Sequence[int], rate: float) -> set[int]:
    """The clients that train in a round, drawn from so many, or from these."""
    among = range(clients) if isinstance(clients, int) else clients
    drawn = rng.generator(seed, "cohort", round).choice(len(among), cohort_size(len(among), rate), replace=False)
    return {among[int(i)] for i in drawn}


def cohort_size(clients: int, rate: float) -> int:
    """tau * K, rounded with halves up, at least one. Of tau as it is written: 0.29 * 50 is less than 14.5 in floats."""
    return max(1, math.floor(Fraction(str(rate)) * clients + Fraction(1, 2)))


def play(method: Method, courier: Courier, world: World, trained: set[int]) -> tuple[World, dict[int, Labels]]:
    """The next round; also the pseudo labels that were used in it, for the record alone.

    Whoever does not reply is left out: the round is that of the others.
    """
    t = world.round + 1
    every = [method.brief(world.server, k, t, k in trained) for k in range(len(world.states))]
    briefs: dict[int, Brief] = {k: expect(Brief, brief, "brief") for k, brief in enumerate(every) if brief is not None}
    replies = dict(sorted(courier.visit(method, world.states, briefs).items()))  # sums do not depend on who came first
    _check_losses({k: reply.loss for k, reply in replies.items() if reply.loss is not None}, t)
    states = tuple(replies[k].state if k in replies else state for k, state in enumerate(world.states))
    labels = {k: reply.labels for k, reply in replies.items() if reply.labels}
    server = method.merge(world.server, replies, t)
    if server is None:
        raise KithkinError(
            "The method's `merge` gives nothing.", "Let it return the server's next state (docs/write-a-method.md)."
        )
    return World(t, server, states, world.ledger.add(courier.bill())), labels


def _check_losses(losses: dict[int, Tensor], t: int) -> None:
    if losses and not torch.stack(list(losses.values())).isfinite().all():
        k = next(k for k, loss in losses.items() if not loss.isfinite())
        where = f"in round {t}" if t else "in the warm-up"
        raise diverged(f"The loss of client {k} {where}")
