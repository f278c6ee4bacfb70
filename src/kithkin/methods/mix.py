"""Mix: FixAvg, FixProx and FixBN trained side by side; the mean of their outputs answers (the paper's Section VI-E)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kithkin.methods.base import Brief, Client, Reply
from kithkin.methods.fedavg import FedAvg, Global, Own


@dataclass(frozen=True, eq=False)
class Globals:
    parts: tuple[Global, ...]


@dataclass(frozen=True, eq=False)
class Owns:
    parts: tuple[Own, ...]


@dataclass(frozen=True, eq=False)
class Mix:
    methods: tuple[FedAvg, ...]
    opening_round: bool = False

    def open(self, clients: int, w0: Tensor) -> Globals:
        return Globals(tuple(m.open(clients, w0) for m in self.methods))

    def greet(self, client: Client, w0: Tensor) -> Owns:
        return Owns(tuple(m.greet(client, w0) for m in self.methods))

    def brief(self, server: Globals, client: int, round: int, sampled: bool) -> Brief | None:
        briefs = [m.brief(s, client, round, sampled) for m, s in zip(self.methods, server.parts, strict=True)]
        parcels = tuple(p for brief in briefs if brief for p in brief.parcels)
        return Brief(round, sampled, parcels) if parcels else None

    async def visit(self, client: Client, state: Owns, brief: Brief) -> Reply:
        replies = [
            await m.visit(client, own, replace(brief, parcels=(parcel,)))
            for m, own, parcel in zip(self.methods, state.parts, brief.parcels, strict=True)
        ]
        states = Owns(tuple(reply.state for reply in replies))
        parcels = tuple(p for reply in replies for p in reply.parcels)
        loss = torch.stack([reply.loss for reply in replies if reply.loss is not None]).mean()
        return replace(replies[0], state=states, parcels=parcels, loss=loss)

    def merge(self, server: Globals, replies: dict[int, Reply], round: int) -> Globals:
        def part(i: int) -> dict[int, Reply]:
            return {k: replace(reply, parcels=(reply.parcels[i],)) for k, reply in replies.items()}

        merged = (m.merge(s, part(i), round) for i, (m, s) in enumerate(zip(self.methods, server.parts, strict=True)))
        return Globals(tuple(merged))

    def shown(self, server: Globals) -> Globals:
        return Globals(tuple(m.shown(s) for m, s in zip(self.methods, server.parts, strict=True)))

    async def personal(self, server: Globals, client: Client, state: Owns, round: int) -> list[Tensor]:
        parts = zip(self.methods, server.parts, state.parts, strict=True)
        return [w for m, s, own in parts for w in await m.personal(s, client, own, round)]
