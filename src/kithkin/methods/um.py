"""UM-pFSSL: uncertainty minimisation for personalised federated semi-supervised learning (Shi, Chen, Zhang; IEEE TNSE 2022).

Algorithm 1 (`visit`), with UpdateHelper (2) and ReplaceHelper (3) in `kithkin.helpers`.

M    length of the helper list          R    candidates in a search round
F    search in rounds t < F             nu   refresh every nu rounds
T    MC-dropout passes                  mu   labelled share of a client (2)
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kithkin import rng
from kithkin.compute import Fit, Predict, Read, Recipe, all_of
from kithkin.helpers import Helper, HelperList, Score, Terms, average, entropy, least_uncertain, relation
from kithkin.methods.base import Brief, Cause, Client, Held, Labels, Parcel, Reply, labels_of

Judge = Callable[[Sequence[Helper]], Awaitable[list[Helper]]]
"""Gives helpers their scores."""


@dataclass(frozen=True, eq=False)
class Newest:
    """A client's newest model in the pool."""

    version: int
    w: Tensor


@dataclass(frozen=True, eq=False)
class Pool:
    """The server: every client's newest model, and what is known of every client's list."""

    models: tuple[Newest, ...]
    holds: tuple[tuple[Held, ...], ...]

    @cached_property
    def shared(self) -> NDArray[np.bool_]:
        """Whose model is here, looked up once for all clients: who has not joined yet has none."""
        return np.array([newest.version > 0 for newest in self.models])


@dataclass(frozen=True, eq=False)
class UmState:
    """A client: its helper list, and the candidates it refused, so that none is scored twice at one version."""

    helpers: HelperList
    refused: tuple[Held, ...] = ()


@dataclass(frozen=True)
class Um:
    """UM-pFSSL to the letter; with a list of one it is `local`."""

    M: int
    R: int
    F: int
    nu: int
    T: int
    terms: Terms
    recipe: Recipe
    warmup_epochs: int
    seed: int
    labelled_only: bool = False  # no pseudo labels: for `local`
    opening_round: bool = True

    def open(self, clients: int, w0: Tensor) -> Pool:
        return Pool((Newest(0, w0),) * clients, tuple((Held(k, 0, 0.0),) for k in range(clients)))

    def greet(self, client: Client, w0: Tensor) -> UmState:
        return UmState(HelperList(client.number, (Helper(client.number, 0, w0),), self.M))

    def brief(self, server: Pool, client: int, round: int, sampled: bool) -> Brief | None:
        """Search and refresh reach every client, training the sampled ones; all of it in one message."""
        if round == 0:
            return Brief(0, train=False)
        k, t = client, round
        held = server.holds[k]
        searching = t < self.F and self.M > 1
        strangers: list[int] = []
        if searching or (sampled and len(held) < self.M):
            draw = rng.generator(self.seed, "helpers", t, k)
            unheld = server.shared.copy()
            unheld[[k, *(h.client for h in held)]] = False
            strangers = draw.permutation(np.flatnonzero(unheld))[: self.R + self.M].tolist()
        parcels: list[Parcel] = []

        def send(cause: Cause, clients: Sequence[int]) -> None:
            for j in clients:
                newest = server.models[j]
                parcels.append(Parcel(cause, j, newest.version, newest.w, newest.w.numel()))

        candidates = strangers[: self.R] if searching else []
        send("search", candidates)
        if t % self.nu == 0:
            others = sorted((h for h in held if h.client != k), key=lambda h: h.relation)
            kept = others[self.R :] if searching else others
            send("refresh", [h.client for h in kept if server.models[h.client].version > h.version])
        if sampled:
            room = max(0, self.M - len(held) - len(candidates))
            send("fill", strangers[len(candidates) : len(candidates) + room])
        return Brief(t, sampled, tuple(parcels)) if parcels or sampled else None

    async def visit(self, client: Client, state: UmState, brief: Brief) -> Reply:
        if brief.round == 0:
            return await self.warm_up(client, state)
        helpers, refused = await self.reconsider(state, brief, partial(self.score, client))

        loss = labels = None
        parcels: tuple[Parcel, ...] = ()
        if brief.train:
            w = average([h.w for h in helpers], [h.relation for h in helpers])
            lesson = client.labelled_lesson()
            if self.recipe.objective == "fixmatch":
                lesson = client.lesson()
            elif not self.labelled_only:
                if not any(h.score for h in helpers):  # joined late, and nobody has shared a model yet
                    helpers = helpers.refresh(await self.score(client, [helpers.own]))
                asked = [(h.client, h.score.p_u) for h in helpers if h.score]  # all but the own one of a client that joins late
                y, who = least_uncertain([p_u for _, p_u in asked])  # (11)
                named = torch.tensor([j for j, _ in asked], device=y.device)[who]
                lesson = client.lesson(y)
                labels = Labels(y.argmax(1), torch.ones(len(y), dtype=torch.bool, device=y.device), entropy(y), named)
            fitted = await Fit(w, lesson, self.recipe, client.key(brief.round, "fit"))
            loss, labels = fitted.loss, labels or labels_of(client, fitted, self.recipe.threshold)
            helpers = helpers.refresh(await self.score(client, [helpers.own.next(fitted.w)]))
            parcels = self.to_pool("upload", helpers)
        return Reply(UmState(helpers, refused), parcels, holds=held(helpers), loss=loss, labels=labels)

    async def reconsider(self, state: UmState, brief: Brief, score: Judge) -> tuple[HelperList, tuple[Held, ...]]:
        """The list after search, refresh and fill, and the candidates that were refused."""
        owner = state.helpers.owner
        refused = {h.client: h for h in state.refused}
        least = min((h.relation for h in state.helpers if h.client != owner), default=0.0)
        full = len(state.helpers) == self.M
        candidates = [h for h in unpack(brief, "search") if not (full and surely_refused(h, refused, least))]
        candidates = sound(await score(candidates))
        helpers = state.helpers.test_and_set(candidates)
        refused |= {h.client: h for h in held([*state.helpers, *candidates])}
        listed = {h.client for h in helpers}
        refused = {j: h for j, h in refused.items() if j not in listed}
        newer = [h for h in unpack(brief, "refresh") if h.client in helpers]
        helpers = helpers.refresh(sound(await score(newer)))
        helpers = helpers.fill(sound(await score(unpack(brief, "fill"))))
        return helpers, tuple(refused.values())

    async def warm_up(self, client: Client, state: UmState) -> Reply:
        """Algorithm 1, lines 3-4: own labelled data only, so that no untrained model is chosen as a helper."""
        own = state.helpers.own
        recipe = replace(self.recipe, objective="alternate", epochs=self.warmup_epochs)
        fitted = await Fit(own.w, client.labelled_lesson(), recipe, client.key(0, "fit"))
        helpers = state.helpers.refresh(await self.score(client, [own.next(fitted.w)]))
        return Reply(UmState(helpers), self.to_pool("warm-up", helpers), holds=held(helpers), loss=fitted.loss)

    def to_pool(self, cause: Cause, helpers: HelperList) -> tuple[Parcel, ...]:
        """The client's own model; it stays at home where nobody can become a helper."""
        own = helpers.own
        return (Parcel(cause, own.client, own.version, own.w, own.w.numel()),) if self.M > 1 else ()

    async def score(self, client: Client, helpers: Sequence[Helper], shift: Tensor | None = None) -> list[Helper]:
        """Relation (13) and answers on D_k^u (9). Kept beside the model: once per (client, helper, version)."""
        if self.M == 1 and (self.labelled_only or self.recipe.objective == "fixmatch"):
            return list(helpers)  # alone, and asked for no labels: nobody would read a score
        if not helpers:
            return []
        keys = [client.key("score", h.client, h.version) for h in helpers]
        models = [h.w for h in helpers]
        passes = [Predict(w, client.images, client.unlabelled, self.T, key, shift) for w, key in zip(models, keys, strict=True)]
        plain = [Predict(w, client.images, client.labelled, shift=shift) for w in models]
        answers = await all_of([*passes, *plain])
        p_u, p_s = torch.stack(answers[: len(helpers)]), torch.stack(answers[len(helpers) :])
        related = await Read(relation(p_u, p_s.argmax(2) == client.classes, client.mu, self.terms))
        return [replace(h, score=Score(corr, p)) for h, corr, p in zip(helpers, related, answers, strict=False)]

    def merge(self, server: Pool, replies: dict[int, Reply], round: int) -> Pool:
        models, holds = list(server.models), list(server.holds)
        for k, reply in replies.items():
            holds[k] = reply.holds
            for parcel in reply.parcels:
                models[k] = Newest(parcel.version, parcel.w)
        return Pool(tuple(models), tuple(holds))

    def shown(self, server: Pool) -> Pool:
        return Pool((), ())  # nothing: the personal model is at home

    async def personal(self, server: Pool, client: Client, state: UmState, round: int) -> list[Tensor]:
        return [state.helpers.own.w]


def unpack(brief: Brief, cause: Cause) -> list[Helper]:
    """The models that came for this cause, not yet scored."""
    return [Helper(p.client, p.version, p.w, evidence=p.evidence) for p in brief.sent(cause)]


def sound(helpers: Iterable[Helper]) -> list[Helper]:
    """Those that answer with numbers: a model from elsewhere may answer NaN, and would spoil the average."""
    return [h for h in helpers if math.isfinite(h.relation)]


def held(helpers: Iterable[Helper]) -> tuple[Held, ...]:
    """What the server is told of a list."""
    return tuple(Held(h.client, h.version, h.relation) for h in helpers)


def surely_refused(candidate: Helper, refused: dict[int, Held], least: float) -> bool:
    """Whether this version was scored before and is no better than the least related helper."""
    known = refused.get(candidate.client)
    return known is not None and known.version == candidate.version and known.relation <= least
