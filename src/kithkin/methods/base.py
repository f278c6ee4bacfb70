"""What a method is: written once, for one client and one server; it runs on every compute and every courier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from kithkin import rng
from kithkin.compute import Fitted, Lesson
from kithkin.helpers import entropy

Cause = Literal["start", "search", "refresh", "fill", "upload", "warm-up", "exam"]


@dataclass(frozen=True, eq=False)
class Client:
    """What one client holds. `images` may hold more pictures than the client's own, which are the named rows of it."""

    number: int
    images: Tensor  # uint8 [N, C, H, W]
    labelled: Tensor  # rows of D_k^s
    classes: Tensor  # their classes
    unlabelled: Tensor  # rows of D_k^u
    seed: int  # the run's seed, from which every draw is addressed

    @property
    def mu(self) -> float:
        """mu_k, the labelled share (2)."""
        return len(self.labelled) / max(1, len(self.labelled) + len(self.unlabelled))

    def key(self, *address: int | str) -> int:
        """A key for random draws that no other client, run or address has."""
        return rng.key(self.seed, "client", self.number, *address)

    def lesson(self, targets: Tensor | None = None, weights: Tensor | None = None) -> Lesson:
        """All the client's training data."""
        return Lesson(self.images, self.labelled, self.classes, self.unlabelled, targets, weights)

    def labelled_lesson(self) -> Lesson:
        """The labelled data alone."""
        return Lesson(self.images, self.labelled, self.classes, self.unlabelled[:0])


@dataclass(frozen=True, eq=False)
class Parcel:
    """A model on its way: whose, which version, why, and how many of its numbers really travel."""

    cause: Cause
    client: int  # SERVER for the global model
    version: int
    w: Tensor
    size: int
    evidence: int = 0  # labelled pictures behind it, where a method asks for that


SERVER = -1


@dataclass(frozen=True, eq=False)
class Brief:
    """What the server sends to one client in one round."""

    round: int
    train: bool
    parcels: tuple[Parcel, ...] = ()

    def sent(self, cause: Cause) -> list[Parcel]:
        """The parcels that were sent for this cause."""
        return [p for p in self.parcels if p.cause == cause]


@dataclass(frozen=True)
class Held:
    """A line of a client's helper list, as the server knows it."""

    client: int
    version: int
    relation: float


@dataclass(frozen=True, eq=False)
class Labels:
    """Pseudo labels of a client's unlabelled pictures: class, whether it was taken, how uncertain, and by whose model."""

    classes: Tensor
    taken: Tensor
    entropy: Tensor
    who: Tensor | None = None  # numbers of clients; None: several together


def labels_of(client: Client, fitted: Fitted, threshold: float) -> Labels | None:
    """The labels that FixMatch trained with: of each picture the last one."""
    if fitted.p_u is None:
        return None
    confidence, classes = fitted.p_u.max(1)
    return Labels(classes, confidence >= threshold, entropy(fitted.p_u), torch.full_like(classes, client.number))


@dataclass(frozen=True, eq=False)
class Reply:
    """What a client answers. `state` and `labels` stay with the client; the rest travels."""

    state: Any
    parcels: tuple[Parcel, ...] = ()
    examples: int = 0  # the client's weight in an average
    holds: tuple[Held, ...] = ()
    loss: Tensor | None = None
    labels: Labels | None = None


@dataclass(frozen=True)
class Training:
    """Local training, the same for every method of a comparison."""

    epochs: int
    batch_size: int
    lr: float
    momentum: float
    flip: bool


class Method(Protocol):
    """One federated method. Server and client state are values that are never changed in place."""

    @property
    def opening_round(self) -> bool:
        """Whether all clients are visited before round 1 (warm-up)."""
        ...

    def open(self, clients: int, w0: Tensor) -> Any:
        """The server's first state."""
        ...

    def greet(self, client: Client, w0: Tensor) -> Any:
        """A client's first state."""
        ...

    def brief(self, server: Any, client: int, round: int, sampled: bool) -> Brief | None:
        """What goes down to a client, or None where there is nothing to do."""
        ...

    async def visit(self, client: Client, state: Any, brief: Brief) -> Reply:
        """The client's side of a round."""
        ...

    def merge(self, server: Any, replies: dict[int, Reply], round: int) -> Any:
        """The server's next state."""
        ...

    def shown(self, server: Any) -> Any:
        """The part of the server's state that `personal` reads: what goes down to clients before they are examined."""
        ...

    async def personal(self, server: Any, client: Client, state: Any, round: int) -> list[Tensor]:
        """The client's personal model, after aggregation: the mean of these models' outputs is what is evaluated."""
        ...
