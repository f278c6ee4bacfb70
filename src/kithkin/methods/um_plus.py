"""UM+: UM-pFSSL's helpers around one common model, from which every client's class prior is taken out.

It keeps `um`'s helper list, relation and letters (M, R, F, nu, T) and changes nine things. What each gives: docs/um-plus.md.
A client is *known* in a round if the common model's relation to it is `known` or more.

start     Local training starts from the mean of the last cohort's models, by examples, as in FedAvg; not from an average of
          helpers that started from different places.
prior     What a client shares has no class prior in it. It trains with log pi_k added to the bias of the last layer and takes
          that off again before the model leaves (logit adjustment: Menon et al., ICLR 2021; in federations: FedRoD, Chen and
          Chao, ICLR 2022). Whoever receives a model adds a log prior of its own. So a client that has never seen a class does
          not teach others to deny it, a helper is not sure of itself merely because it knows two classes, and the evaluated
          model is personal although all clients share its weights.
vote      A pseudo label is the mean answer of own, helpers' and common model, weighed by relation x evidence, the number of
          labelled pictures behind a model. It is taken only where that mean is certain (`threshold`), for which nearly all of
          the weight must name the same class: one model's confidence is not competence.
sum       Each step takes both losses as they are, as FixMatch does: a client with few labels learns from them at full pace,
          and what it learnt weighs little in the mean.
pooling   A known client's pseudo labels count as labels: one loss over all its pictures that have one, of either kind, in
          about as many steps as if all had been labelled.
views     Pictures are shown as they are until the client is known, and from then on every other one is mirrored and shifted
          (`moved`): plain ones teach faster, and then have nothing left to teach, but it is plain ones that are asked about.
          Not where a mirror image has another label.
momentum  The common model goes most of its last round's way again, beside that of its cohort (FedAvgM: Hsu et al., 2019): a
          cohort is a few clients, and what many of them agree on adds up. None of it in the first rounds, whose ways are long
          and lead elsewhere; and norm statistics are not carried on.
steady    What is evaluated is the mean of the common model over the last rounds, a share of all, of which the first `gathering`
          count twice: that of one cohort is unsteady.
touch     And each client that is not known goes over its pictures once, at a tenth of the learning rate. Where clients are
          large, local training leads them far apart; the mean of what they come to, norm statistics above all, then fits
          nobody well.

pi_k      class frequencies of client k: its labelled pictures, the pseudo labels it took last, and `smoothing` for each class
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch's own stubs leave these open)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kithkin.compute import Fit, Lesson, Recipe
from kithkin.errors import KithkinError
from kithkin.helpers import Helper, HelperList, average, entropy, vote
from kithkin.methods.base import SERVER, Brief, Cause, Client, Labels, Parcel, Reply
from kithkin.methods.um import Pool, Um, UmState, held, unpack
from kithkin.nets import Layout


@dataclass(frozen=True, eq=False)
class Commons:
    """The server: `um`'s pool, and the common model."""

    pool: Pool
    evidence: tuple[int, ...]  # labelled pictures behind each model of the pool
    w: Tensor  # the common model: where training starts
    behind: int  # labelled pictures of the last cohort
    steady: Tensor  # the mean of `w` over the last rounds: what is evaluated
    speed: Tensor | None = None  # how far `w` went in the last round


@dataclass(frozen=True, eq=False)
class PlusState(UmState):
    """A client: `um`'s state, and how many of its unlabelled pictures it takes to be of each class."""

    votes: Tensor | None = None


@dataclass(frozen=True)
class UmPlus:
    """UM+: `um` around a common model."""

    um: Um  # keeps the helper list, and has the settings that both have
    bias: slice  # where the last layer's bias lies in the vector: one number a class
    threshold: float
    smoothing: float
    window: float
    known: float  # the common model's relation to a client that it knows is at least this
    moved: Recipe  # for known clients
    pooled: bool  # whether their pseudo labels count as labels; they are then not tuned
    tune: Recipe | None  # local training before evaluation, if any
    trained: int  # how many leading numbers of the vector are trained; the rest are norm statistics
    momentum: float  # how much of its last round's way the common model goes again,
    gathering: float  # nothing of it in so many rounds, then 1 - gathering / round at most
    opening_round: bool = True

    def open(self, clients: int, w0: Tensor) -> Commons:
        return Commons(self.um.open(clients, w0), (0,) * clients, w0, 0, w0)

    def greet(self, client: Client, w0: Tensor) -> PlusState:
        own = Helper(client.number, 0, w0, evidence=len(client.labelled))
        return PlusState(HelperList(client.number, (own,), self.um.M))

    def brief(self, server: Commons, client: int, round: int, sampled: bool) -> Brief | None:
        """`um`'s, each model with its evidence; and for who trains the common model."""
        brief = self.um.brief(server.pool, client, round, sampled)
        if not brief:
            return None
        parcels = [replace(p, evidence=server.evidence[p.client]) for p in brief.parcels]
        if brief.train:
            parcels.append(Parcel("start", SERVER, round, server.w, server.w.numel(), server.behind))
        return replace(brief, parcels=tuple(parcels))

    async def visit(self, client: Client, state: PlusState, brief: Brief) -> Reply:
        prior = self.log_prior(client, state.votes)
        if brief.round == 0:
            recipe = replace(self.um.recipe, epochs=self.um.warmup_epochs)
            w = self.with_prior(state.helpers.own.w, prior)
            fitted = await Fit(w, client.labelled_lesson(), recipe, client.key(0, "fit"))
            helpers = await self.renew(client, state.helpers, fitted.w, prior)
            return Reply(PlusState(helpers), upload("warm-up", helpers), len(client.labelled), held(helpers), fitted.loss)

        helpers, refused = await self.um.reconsider(state, brief, partial(self.score, client, prior))
        if not brief.train:
            return Reply(PlusState(helpers, refused, state.votes), holds=held(helpers))
        (common,) = await self.score(client, prior, unpack(brief, "start"))
        y, taken = self.label(helpers, common)
        votes = (y * taken[:, None]).sum(0)
        prior = self.log_prior(client, votes)
        known = common.relation >= self.known
        lesson = client.lesson(y, taken.float())
        if known and self.pooled:
            lesson = as_labels(lesson, y.argmax(1), taken)
        recipe = self.moved if known else self.um.recipe
        fitted = await Fit(self.with_prior(common.w, prior), lesson, recipe, client.key(brief.round, "fit"))
        helpers = await self.renew(client, helpers, fitted.w, prior)
        state = PlusState(helpers, refused, votes)
        examples = len(client.labelled) + int(taken.sum())
        labels = Labels(y.argmax(1), taken, entropy(y))
        return Reply(state, upload("upload", helpers), examples, held(helpers), fitted.loss, labels)

    def log_prior(self, client: Client, votes: Tensor | None) -> Tensor:
        """log pi_k, up to a constant."""
        every = torch.arange(self.bias.stop - self.bias.start, device=client.classes.device)
        counts = (client.classes[:, None] == every).sum(0).float()  # bincount would wait for the device
        counts = (counts if votes is None else counts + votes) + self.smoothing
        return (counts / counts.mean()).log()

    def with_prior(self, w: Tensor, log_prior: Tensor) -> Tensor:
        """The model with this prior in its last layer's bias; with minus the prior, without it again."""
        w = w.clone()
        w[self.bias] += log_prior.to(w.device)
        return w

    async def score(self, client: Client, log_prior: Tensor, helpers: Sequence[Helper]) -> list[Helper]:
        """As in `um`, of the models as they answer with the client's prior."""
        return await self.um.score(client, helpers, log_prior)

    async def renew(self, client: Client, helpers: HelperList, fitted: Tensor, log_prior: Tensor) -> HelperList:
        """The list with the client's own new model, which from here on has no prior."""
        own = helpers.own.next(self.with_prior(fitted, -log_prior))
        return helpers.refresh(await self.score(client, log_prior, [own]))

    def label(self, helpers: HelperList, common: Helper) -> tuple[Tensor, Tensor]:
        """Pseudo labels of all unlabelled pictures, and which of them are taken."""
        voters = [h for h in (*helpers, common) if h.score]  # a client that joins late has not scored its own model yet
        y = vote([h.score.p_u for h in voters if h.score], [h.relation * h.evidence for h in voters])
        return y, y.amax(1) >= self.threshold

    def merge(self, server: Commons, replies: dict[int, Reply], round: int) -> Commons:
        evidence = list(server.evidence)
        for k, reply in replies.items():
            for parcel in reply.parcels:
                evidence[k] = parcel.evidence
        server = replace(server, pool=self.um.merge(server.pool, replies, round), evidence=tuple(evidence))
        cohort = [reply for reply in replies.values() if reply.parcels and reply.examples]
        if not cohort:
            return server
        uploads = [reply.parcels[0] for reply in cohort]
        w = average([p.w for p in uploads], [reply.examples for reply in cohort])
        speed = None
        if self.momentum and round:
            speed = w - server.w
            if server.speed is not None:
                carried = min(self.momentum, max(0.0, 1 - self.gathering / round))
                speed[: self.trained] += carried * server.speed[: self.trained]
            w = server.w + speed
        span = self.window * (round + min(round, self.gathering))
        steady = server.steady.lerp(w, 1 / max(1.0, span))
        return replace(server, w=w, behind=sum(p.evidence for p in uploads), steady=steady, speed=speed)

    def shown(self, server: Commons) -> Commons:
        return Commons(self.um.shown(server.pool), (), server.steady, server.behind, server.steady)

    async def personal(self, server: Commons, client: Client, state: PlusState, round: int) -> list[Tensor]:
        """The steady common model with the client's prior; fine-tuned if asked for."""
        prior = self.log_prior(client, state.votes)
        w = self.with_prior(server.steady, prior)
        if not self.tune:
            return [w]
        (common,) = await self.score(client, prior, [Helper(SERVER, round, server.steady, evidence=server.behind)])
        if self.pooled and common.relation >= self.known:
            return [w]
        y, taken = self.label(state.helpers, common)
        return [(await Fit(w, client.lesson(y, taken.float()), self.tune, client.key(round, "finetune"))).w]


def as_labels(lesson: Lesson, classes: Tensor, taken: Tensor) -> Lesson:
    """The lesson in which these classes of the unlabelled pictures are labels, where they are taken."""
    rows = torch.cat([lesson.labelled, lesson.unlabelled[taken]])
    return Lesson(lesson.images, rows, torch.cat([lesson.classes, classes[taken]]), lesson.unlabelled[:0])


def upload(cause: Cause, helpers: HelperList) -> tuple[Parcel, ...]:
    """The client's own model, with the evidence behind it."""
    own = helpers.own
    return (Parcel(cause, own.client, own.version, own.w, own.w.numel(), own.evidence),)


def um_in(method: object) -> Um | None:
    """Who keeps the helper lists of a method that has them."""
    method = method.um if isinstance(method, UmPlus) else method
    return method if isinstance(method, Um) else None


def pool_in(server: object) -> Pool | None:
    """The pool in the state of a server that has one."""
    server = server.pool if isinstance(server, Commons) else server
    return server if isinstance(server, Pool) else None


def bias_of(layout: Layout) -> slice:
    """Where the last layer's bias lies."""
    if slot := layout.bias:
        return slice(slot.start, slot.stop)
    raise KithkinError(
        "The network's last layer has no bias, where UM+ puts class priors.", "Give it one, or take another method."
    )
