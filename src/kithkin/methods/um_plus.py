"""UM+: UM-pFSSL's helpers, on a common start and without anyone's prior.

What differs from `um`, whose letters these are (M, R, F, nu, T):
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch's own stubs leave these open)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kithkin.compute import Fit, Predict, Recipe, all_of
from kithkin.helpers import Helper, HelperList, Score, average, least_uncertain, relation
from kithkin.methods.base import SERVER, Brief, Cause, Client, Labels, Parcel, Reply
from kithkin.methods.um import Newest, Pool, Um, UmState, held, surely_refused


@dataclass(frozen=True, eq=False)
class Kept(Newest):
    """A client's newest model, when it came, and what is behind it."""

    round: int = 0
    examples: int = 0
    evidence: int = 0


@dataclass(frozen=True, eq=False)
class Commons(Pool):
    """The server: `um`'s pool, and the mean of its newest models."""

    w: Tensor
    steady: Tensor  # the mean of `w` over the last rounds
    evidence: int = 0


@dataclass(frozen=True, eq=False)
class PlusState(UmState):
    """A client: `um`'s, and how often it expects each class among its unlabelled pictures."""

    votes: Tensor | None = None
    shared: Helper | None = None


@dataclass(frozen=True)
class UmPlus(Um):
    start: Literal["global", "helpers", "half"] = "global"
    prior: Literal["none", "labelled", "both"] = "both"
    smoothing: float = 1.0
    trust: Literal["equal", "relation", "evidence"] = "relation"
    choice: Literal["vote", "least"] = "vote"
    targets: Literal["soft", "hard"] = "soft"
    agree: float = 0.7
    confident: float = 0.0
    with_global: bool = True
    memory: float = 0.0
    window: float = 0.0
    lambda_u: float = 1.0
    evaluated: Literal["own", "global", "tuned", "own+global", "tuned+global", "adapted", "wise"] = "own"
    tune: Recipe | None = None
    classes: int = 0
    bias: slice | None = None  # where the last layer's bias lies in the vector

    def open(self, clients: int, w0: Tensor) -> Commons:
        pool = super().open(clients, w0)
        return Commons((Kept(0, w0),) * clients, pool.holds, w0, w0)

    def greet(self, client: Client, w0: Tensor) -> PlusState:
        own = Helper(client.number, 0, w0, evidence=len(client.labelled))
        return PlusState(HelperList(client.number, (own,), self.M))

    # -- the prior: pools and averages hold models without one, a client adds its own

    def log_prior(self, client: Client, votes: Tensor | None) -> Tensor:
        counts = torch.bincount(client.classes, minlength=self.classes).float()
        if votes is not None and self.prior == "both":
            counts = counts + votes
        counts = counts + self.smoothing
        return (counts / counts.mean()).log()

    def shifted(self, w: Tensor, by: Tensor) -> Tensor:
        if self.prior == "none" or self.bias is None:
            return w
        w = w.clone()
        w[self.bias] += by
        return w

    def brief(self, server: Commons, client: int, round: int, sampled: bool) -> Brief | None:
        brief = super().brief(server, client, round, sampled)
        if not brief or not round:
            return brief
        parcels = tuple(replace(p, evidence=server.models[p.client].evidence) for p in brief.parcels)
        if sampled:
            parcels += (Parcel("start", SERVER, round, server.w, server.w.numel(), server.evidence),)
        return replace(brief, parcels=parcels)

    async def visit(self, client: Client, state: PlusState, brief: Brief) -> Reply:
        prior = self.log_prior(client, state.votes)
        if brief.round == 0:
            return await self.warm_up(client, state)
        refused = {h.client: h for h in state.refused}
        least = min((h.relation for h in state.helpers if h.client != client.number), default=0.0)
        full = len(state.helpers) == self.M
        candidates = [h for h in unpack(brief, "search") if not (full and surely_refused(h, refused, least))]
        candidates = await self.judge(client, candidates, prior)
        helpers = state.helpers.test_and_set(candidates)
        refused |= {h.client: h for h in held([*state.helpers, *candidates])}
        refused = {j: h for j, h in refused.items() if j not in helpers}
        newer = [h for h in unpack(brief, "refresh") if h.client in helpers]
        helpers = helpers.refresh(await self.judge(client, newer, prior))
        helpers = helpers.fill(await self.judge(client, unpack(brief, "fill"), prior))
        state = replace(state, helpers=helpers, refused=tuple(refused.values()))
        if not brief.train:
            return Reply(state, holds=held(helpers))

        (shared,) = await self.judge(client, unpack(brief, "start"), prior)
        y, weights = self.label(helpers, shared)
        labels = Labels(y.argmax(1), weights > 0)
        w = shared.w
        if self.start != "global":
            w = average([h.w for h in helpers], [h.relation for h in helpers])
            if self.start == "half":
                w = w.lerp(shared.w, 0.5)
        votes = (y * weights[:, None]).sum(0)
        prior = self.log_prior(client, votes)
        lesson = client.lesson(y, weights * self.lambda_u)
        fitted = await Fit(self.shifted(w, prior), lesson, self.recipe, client.key(brief.round, "fit"))
        own = helpers.own.next(self.shifted(fitted.w, -prior))
        helpers = helpers.refresh(await self.judge(client, [own], prior))
        examples = len(client.labelled) + round(float(weights.sum()) * self.lambda_u)
        return Reply(
            PlusState(helpers, state.refused, votes),
            self.to_pool("upload", helpers),
            examples,
            held(helpers),
            fitted.loss,
            labels,
        )

    def label(self, helpers: HelperList, shared: Helper) -> tuple[Tensor, Tensor]:
        """Targets for the unlabelled pictures, and how much each one counts."""
        voters = [*helpers, shared] if self.with_global else list(helpers)
        p = torch.stack([h.score.p_u for h in voters if h.score])  # [voters, n, C]
        trust = torch.tensor([self.trust_in(h) for h in voters], device=p.device)
        trust = trust / trust.sum() if trust.sum() > 0 else torch.full_like(trust, 1 / len(trust))
        mean = (p * trust[:, None, None]).sum(0)
        ballots = (one_hot(p.argmax(2), p.shape[2]) * trust[:, None, None]).sum(0)  # [n, C]
        if self.choice == "least":
            y, _ = least_uncertain(list(p))
        else:
            y = mean
        agreed = ballots.gather(1, y.argmax(1, keepdim=True)).squeeze(1) if len(y) else y.new_zeros(0)
        taken = (agreed >= self.agree - 1e-6) & (mean.amax(1) >= self.confident) if len(y) else agreed > 0
        if self.targets == "hard":
            y = one_hot(y.argmax(1), p.shape[2]).float()
        return y, taken.float()

    def trust_in(self, h: Helper) -> float:
        if self.trust == "equal":
            return 1.0
        return h.relation * (h.evidence if self.trust == "evidence" else 1)

    async def warm_up(self, client: Client, state: PlusState) -> Reply:
        own = state.helpers.own
        prior = self.log_prior(client, None)
        recipe = replace(self.recipe, epochs=self.warmup_epochs)
        fitted = await Fit(self.shifted(own.w, prior), client.labelled_lesson(), recipe, client.key(0, "fit"))
        helpers = state.helpers.refresh(await self.judge(client, [own.next(self.shifted(fitted.w, -prior))], prior))
        return Reply(PlusState(helpers), self.to_pool("warm-up", helpers), len(client.labelled), held(helpers), fitted.loss)

    def to_pool(self, cause: Cause, helpers: HelperList) -> tuple[Parcel, ...]:
        own = helpers.own
        return (Parcel(cause, own.client, own.version, own.w, own.w.numel(), own.evidence),)

    async def judge(self, client: Client, helpers: Sequence[Helper], prior: Tensor) -> list[Helper]:
        at_home = [replace(h, w=self.shifted(h.w, prior)) for h in helpers]
        return [replace(h, score=s.score) for h, s in zip(helpers, await self.score(client, at_home), strict=True)]

    def merge(self, server: Commons, replies: dict[int, Reply], round: int) -> Commons:
        models, holds = list(server.models), list(server.holds)
        for k, reply in replies.items():
            holds[k] = reply.holds
            for p in reply.parcels:
                models[k] = Kept(p.version, p.w, round, reply.examples, p.evidence)
        fresh = [m for m in models if isinstance(m, Kept) and (m.round == round or self.memory)]
        weights = [m.examples * self.memory ** (round - m.round) for m in fresh]
        if not sum(weights):
            return Commons(tuple(models), tuple(holds), server.w, server.steady, server.evidence)
        evidence = sum(m.evidence for m in fresh)
        w = average([m.w for m in fresh], weights)
        steady = server.steady.lerp(w, 1 / max(1.0, self.window * round))
        return Commons(tuple(models), tuple(holds), w, steady, evidence)

    async def personal(self, server: Commons, client: Client, state: PlusState, round: int) -> list[Tensor]:
        prior = self.log_prior(client, state.votes)
        own = self.shifted(state.helpers.own.w, prior)
        if self.evaluated == "own":
            return [own]
        shared = Helper(SERVER, round, server.steady, evidence=server.evidence)
        if self.evaluated in ("tuned", "tuned+global", "adapted", "wise"):
            (shared,) = await self.judge(client, [shared], prior)
            y, weights = self.label(state.helpers, shared)
            prior = self.log_prior(client, (y * weights[:, None]).sum(0))
            assert self.tune
            recipe = replace(self.tune, lr=0.0) if self.evaluated == "adapted" else self.tune
            start = self.shifted(server.steady, prior)
            tuned = (await Fit(start, client.lesson(y, weights * self.lambda_u), recipe, client.key(round, "finetune"))).w
            if self.evaluated == "wise":
                return [tuned.lerp(start, 0.5)]
            return [tuned] if self.evaluated != "tuned+global" else [tuned, start]
        common = self.shifted(server.steady, prior)
        return [common] if self.evaluated == "global" else [own, common]


def unpack(brief: Brief, cause: Cause) -> list[Helper]:
    return [Helper(p.client, p.version, p.w, evidence=p.evidence) for p in brief.sent(cause)]
