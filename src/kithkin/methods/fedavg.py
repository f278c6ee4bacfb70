"""FedAvg (McMahan et al., AISTATS 2017, Algorithm 1), and everything that is FedAvg but for what is shared.

A mask over the model's vector says which numbers are averaged; the others stay with each client. The average weighs clients by
their numbers of examples, running statistics included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from kithkin.compute import Fit, Lesson, Recipe
from kithkin.helpers import average
from kithkin.methods.base import SERVER, Brief, Client, Parcel, Reply, labels_of


@dataclass(frozen=True, eq=False)
class Global:
    """The server: one model. What is not shared stays as it was at the start."""

    w: Tensor
    settled: tuple[int, ...] = ()  # clients that keep numbers of their own, since LG-FedAvg's start is over


@dataclass(frozen=True, eq=False)
class Own:
    """A client: its model after its last visit, where it has numbers of its own, and pFedMe's in any case."""

    w: Tensor | None = None
    round: int = 0


@dataclass(frozen=True, eq=False)
class FedAvg:
    """FedAvg and its relatives, which differ in these fields; a method of one's own may build on it."""

    recipe: Recipe
    shared: Tensor  # bool [P]
    share_all_until: int = 0  # rounds of plain FedAvg before the mask holds (LG-FedAvg starts from a FedAvg model)
    tune: Recipe | None = None  # local training before evaluation, if any
    beta: float = 1.0  # how far the server goes towards the mean
    trained: int = 0  # how many leading numbers are trained, where it goes beyond: what follows are norm statistics
    moreau: bool = False  # pFedMe: the anchor travels, the fitted model is personal
    opening_round: bool = False

    def open(self, clients: int, w0: Tensor) -> Global:
        return Global(w0)

    def greet(self, client: Client, w0: Tensor) -> Own:
        return Own()

    def mask(self, round: int) -> Tensor:
        """Which numbers are averaged in this round."""
        return torch.ones_like(self.shared) if round <= self.share_all_until else self.shared

    def brief(self, server: Global, client: int, round: int, sampled: bool) -> Brief | None:
        if not sampled:
            return None
        whole = round <= self.share_all_until or (self.share_all_until and client not in server.settled)
        size = len(self.shared) if whole else self.numbers
        return Brief(round, True, (Parcel("start", SERVER, round, server.w, size),))

    async def visit(self, client: Client, state: Own, brief: Brief) -> Reply:
        (parcel,) = brief.parcels
        start = self.combine(parcel.w, state)
        fitted = await Fit(start, self.lesson(client), self.recipe, client.key(brief.round, "fit"))
        upload = replace(parcel, cause="upload", client=client.number, w=fitted.anchor if self.moreau else fitted.w)
        if brief.round > self.share_all_until:
            upload = replace(upload, size=self.numbers)
        labels = labels_of(client, fitted, self.recipe.threshold)
        kept = fitted.w if self.moreau or not self.shares_all else None
        return Reply(Own(kept, brief.round), (upload,), self.examples(client), loss=fitted.loss, labels=labels)

    @property
    def labelled_only(self) -> bool:
        """Whether unlabelled pictures are left alone: only FixMatch has labels for them."""
        return self.recipe.objective != "fixmatch"

    def combine(self, w: Tensor, state: Own) -> Tensor:
        """The global model, with the client's own numbers, if it has any yet, where nothing is shared."""
        if state.w is None or state.round <= self.share_all_until or self.shares_all:
            return w
        return torch.where(self.shared, w, state.w)

    @cached_property
    def shares_all(self) -> bool:
        """Whether clients keep nothing of their own."""
        return self.numbers == len(self.shared)

    @cached_property
    def numbers(self) -> int:
        """How many numbers travel."""
        return int(self.shared.sum())

    def lesson(self, client: Client) -> Lesson:
        """What a client trains on."""
        return client.labelled_lesson() if self.labelled_only else client.lesson()

    def examples(self, client: Client) -> int:
        """How many pictures that is: the client's weight in the average."""
        return len(client.labelled) + (0 if self.labelled_only else len(client.unlabelled))

    def merge(self, server: Global, replies: dict[int, Reply], round: int) -> Global:
        mean = self.mean(replies)
        settled = server.settled
        if self.share_all_until and round > self.share_all_until:
            settled = tuple(sorted({*settled, *replies}))
        if mean is None:
            return Global(server.w, settled)
        w = server.w.lerp(mean, self.beta)
        if self.beta > 1:  # beyond the mean a variance may fall below zero
            w[self.trained :] = mean[self.trained :]
        return Global(torch.where(self.mask(round), w, server.w), settled)

    def mean(self, replies: dict[int, Reply]) -> Tensor | None:
        """The mean of the uploads by numbers of examples; None where nobody had any."""
        models = [parcel.w for reply in replies.values() for parcel in reply.parcels]
        examples = [reply.examples for reply in replies.values()]
        return average(models, examples) if sum(examples) else None

    def shown(self, server: Global) -> Global:
        return Global(server.w)

    async def personal(self, server: Global, client: Client, state: Own, round: int) -> list[Tensor]:
        w = self.combine(server.w, state) if not self.moreau else server.w if state.w is None else state.w
        if self.tune:
            w = (await Fit(w, self.lesson(client), self.tune, client.key(round, "finetune"))).w
        return [w]


def rounds_before(method: object) -> int:
    """Rounds that only prepare for a method: no model of theirs is the method's own."""
    return method.share_all_until if isinstance(method, FedAvg) else 0
