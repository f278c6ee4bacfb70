"""All methods: each one's settings, and how they make it. `METHODS[name]` is everything the rest of the house needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

import torch

from kithkin import own
from kithkin.compute import Recipe
from kithkin.config import RunConfig, bad, check_choices, some
from kithkin.errors import KithkinError, unknown
from kithkin.helpers import Helper, HelperList, Score, Terms
from kithkin.methods.base import Brief, Client, Held, Method, Parcel, Reply, Training
from kithkin.methods.fedavg import FedAvg, Global, Own
from kithkin.methods.fedbn import fedbn
from kithkin.methods.fedper import fedper
from kithkin.methods.fedprox import fedprox
from kithkin.methods.lg_fedavg import lg_fedavg
from kithkin.methods.local import local
from kithkin.methods.mix import Globals, Mix, Owns
from kithkin.methods.pfedme import pfedme
from kithkin.methods.um import Newest, Pool, Um, UmState
from kithkin.methods.um_plus import Commons, PlusState, UmPlus, bias_of
from kithkin.nets import Layout

STATES = (Commons, Global, Globals, Held, Helper, HelperList, Newest, Own, Owns, PlusState, Pool, Score, UmState)
"""Every class that server and client states are made of: what a checkpoint may hold."""


@dataclass(frozen=True)
class WarmSettings:
    warmup_epochs: int = 10
    """Passes over the own labelled data before round 1."""
    mc_samples: int = 10
    """T, dropout passes behind every uncertainty."""


@dataclass(frozen=True)
class LocalSettings(WarmSettings):
    objective: Literal["labelled-only", "own-labels", "fixmatch"] = "labelled-only"
    """labelled-only: no unlabelled data; own-labels: the own model labels them, as um without helpers; fixmatch."""
    threshold: float = 0.95
    """FixMatch takes a label where it is at least this certain."""


@dataclass(frozen=True)
class ListSettings(WarmSettings):
    helpers: int = 5
    """M, length of the helper list, the client itself included."""
    candidates: int = 2
    """R, models that every client tries in a search round."""
    search_rounds: int = 30
    """F, search in rounds before this one."""
    refresh_every: int = 10
    """nu, fetch newer versions of the helpers every so many rounds."""
    relation: Terms = "both"
    """Which terms of the relation (13) count."""


@dataclass(frozen=True)
class UmSettings(ListSettings):
    losses: Literal["alternate", "weighted"] = "alternate"
    """alternate: a pass over labelled, then over unlabelled data (Algorithm 1); weighted: both in each step, as in (1)."""


@dataclass(frozen=True)
class UmPlusSettings(ListSettings):
    losses: Literal["sum", "weighted", "alternate"] = "sum"
    """sum: both losses in each step, as they are; weighted, alternate: as in um."""
    threshold: float = 0.9
    """A pseudo label is taken where the vote is at least this certain; above 1 none is."""
    smoothing: float = 1.0
    """Pictures of each class that every client is taken to have beside its own; very large: no class priors."""
    server_momentum: float = 0.8
    """How much of its last round's way the common model goes again; 0: it is the mean of the cohort."""
    gathering: float = 10.0
    """No momentum in so many first rounds, half at most after twice as many; the window is doubled there. 0: no such thing."""
    window: float = 0.1
    """What is evaluated is the mean over about this share of the rounds so far; 0: over the last one alone."""
    views: Literal["auto", "plain", "weak", "strong"] = "auto"
    """How unlabelled pictures are augmented for training, labelled ones at most weakly; auto: not until they are known."""
    known: float = 0.8
    """They are once the common model's relation to the client is at least this; above 1 never."""
    moved: float = 0.5
    """Weak views mirror and shift this share of the pictures; the rest is shown as it is."""
    tune_epochs: int = 1
    """Local passes over the client's data before each evaluation."""
    tune_lr: float = 0.1
    """Their learning rate, as a share of --lr."""


@dataclass(frozen=True)
class AvgSettings:
    objective: Literal["fixmatch", "supervised", "labelled-only"] = "fixmatch"
    """fixmatch: labelled and unlabelled data; supervised: all training labels are known; labelled-only: no unlabelled data."""
    threshold: float = 0.95
    """FixMatch takes a label where it is at least this certain; above 1 it takes none."""
    lambda_u: float = 1.0
    """FixMatch's weight of the unlabelled loss."""


@dataclass(frozen=True)
class ProxSettings(AvgSettings):
    prox: float = 0.01
    """mu, the pull towards the global model."""


@dataclass(frozen=True)
class PerSettings(AvgSettings):
    personal_layers: int = 1
    """How many of the last layers each client keeps for itself."""


@dataclass(frozen=True)
class LgSettings(AvgSettings):
    global_layers: int = 1
    """How many of the last layers are shared."""
    fedavg_rounds: int | None = None
    """Rounds of plain FedAvg before; left out, a quarter of the rounds."""
    reverse: bool = False
    """Share the body and keep the head, as the authors' CIFAR code does."""


@dataclass(frozen=True)
class MeSettings(AvgSettings):
    prox: float = 15.0
    """lambda, how strongly the personal model is held near w."""
    inner_steps: int = 5
    """K, steps on each batch towards the personal model."""
    personal_lr: float = 0.09
    """Learning rate of those steps, which have no momentum: it stands in for --lr."""
    outer_lr: float = 0.005
    """eta, how far w follows after each batch (times lambda)."""
    server_mix: float = 1.0
    """beta, how far the server goes towards the mean."""


@dataclass(frozen=True)
class TuneSettings(AvgSettings):
    finetune_epochs: int = 5
    """Local passes over the client's data before each evaluation."""


@dataclass(frozen=True)
class Setting:
    """Where a method is set up: the network's layout, local training, and the run's length and seed."""

    layout: Layout
    training: Training
    rounds: int
    seed: int
    device: torch.device
    classes: int | None = None  # left out, the last layer is taken to have one number for each
    dropout: bool = True  # whether the network has any
    signals: bool = False  # the data are no pictures


def _recipe(objective: Literal["alternate", "weighted", "sum", "fixmatch"], at: Setting, **more: Any) -> Recipe:
    t = at.training
    if at.signals and (objective == "fixmatch" or more.get("views", "plain") != "plain"):
        raise KithkinError(
            "FixMatch's augmentations are for pictures, and the data are signals.",
            "Take um, um-plus or local, or give --objective labelled-only where the method has it.",
        )
    return Recipe(objective, t.epochs, t.batch_size, t.lr, t.momentum, flip=t.flip, **more)


def _need_dropout(at: Setting) -> None:
    if not at.dropout:
        raise KithkinError(
            "The method goes by MC-dropout, and the network has no dropout layer.",
            "Give it one (nn.Dropout, as a layer), or take a method that needs none, such as fixavg.",
        )


def _need_head(at: Setting) -> None:
    last = next((slot for slot in at.layout.slots if slot.layer == 1), None)
    if last and at.classes and last.shape[0] != at.classes:
        raise KithkinError(
            f"The network's last layer ({last.name}) gives {last.shape[0]} numbers for {at.classes} classes.",
            "Let the classifier be the last layer that the network defines, or take a method that needs no head.",
        )


def _um(s: UmSettings | UmPlusSettings, at: Setting, **more: Any) -> Um:
    _need_dropout(at)
    recipe = _recipe(s.losses, at, **more)
    return Um(
        s.helpers,
        s.candidates,
        s.search_rounds,
        s.refresh_every,
        s.mc_samples,
        s.relation,
        recipe,
        s.warmup_epochs,
        at.seed,
    )


def _um_plus(s: UmPlusSettings, at: Setting) -> UmPlus:
    _need_head(at)
    auto = s.views == "auto"
    um = _um(s, at, views="plain" if auto else s.views, moved=s.moved)
    moved = replace(um.recipe, views="weak") if auto and at.training.flip and not at.signals else um.recipe
    tune = replace(um.recipe, epochs=s.tune_epochs, lr=um.recipe.lr * s.tune_lr) if s.tune_epochs else None
    return UmPlus(
        um,
        bias_of(at.layout),
        s.threshold,
        s.smoothing,
        s.window,
        moved,
        s.known,
        tune,
        at.layout.trained,
        s.server_momentum,
        s.gathering,
    )


def _local(s: LocalSettings, at: Setting) -> Um:
    if s.objective == "own-labels":
        _need_dropout(at)
    recipe = _recipe("fixmatch" if s.objective == "fixmatch" else "alternate", at, threshold=s.threshold)
    return local(recipe, s.mc_samples, s.warmup_epochs, at.seed, s.objective == "labelled-only")


def _fedavg(s: AvgSettings, at: Setting) -> FedAvg:
    recipe = _recipe("fixmatch" if s.objective == "fixmatch" else "alternate", at, threshold=s.threshold, lambda_u=s.lambda_u)
    shared = torch.ones(at.layout.size, dtype=torch.bool, device=at.device)
    return FedAvg(recipe, shared, labelled_only=s.objective != "fixmatch")


def _fedprox(s: ProxSettings, at: Setting) -> FedAvg:
    return fedprox(_fedavg(s, at), s.prox)


def _fedbn(s: AvgSettings, at: Setting) -> FedAvg:
    return fedbn(_fedavg(s, at), at.layout)


def _fedper(s: PerSettings, at: Setting) -> FedAvg:
    _need_head(at)
    return fedper(_fedavg(s, at), at.layout, s.personal_layers)


def _lg_fedavg(s: LgSettings, at: Setting) -> FedAvg:
    _need_head(at)
    before = at.rounds // 4 if s.fedavg_rounds is None else s.fedavg_rounds
    if before >= at.rounds:
        raise bad("fedavg_rounds", before, f"must be below the {at.rounds} rounds, or it is FedAvg")
    return lg_fedavg(_fedavg(s, at), at.layout, s.global_layers, before, s.reverse)


def _pfedme(s: MeSettings, at: Setting) -> FedAvg:
    return pfedme(_fedavg(s, at), s.prox, s.outer_lr, s.server_mix, s.personal_lr, s.inner_steps)


def _tuned(s: TuneSettings, at: Setting) -> FedAvg:
    return replace(_fedavg(s, at), finetune_epochs=s.finetune_epochs)


def _mix(s: ProxSettings, at: Setting) -> Mix:
    return Mix((_fedavg(s, at), _fedprox(s, at), _fedbn(s, at)))


@dataclass(frozen=True)
class Entry:
    summary: str
    settings: Any  # the method's settings with their defaults
    make: Callable[[Any, Setting], Method]
    revision: int = 1  # raised by a change that alters the method's numbers: `kithkin paper` then runs its cells anew
    states: tuple[type, ...] = ()  # classes of a user's own method that its states are made of, beside STATES


METHODS: dict[str, Entry] = {
    "um": Entry("UM-pFSSL, the paper's method: helpers chosen by uncertainty and accuracy", UmSettings(), _um),
    "um-plus": Entry("UM+: helpers vote, from a common start, without anyone's prior", UmPlusSettings(), _um_plus, revision=4),
    "local": Entry("no federation: every client trains alone", LocalSettings(), _local),
    "fixavg": Entry("FedAvg with FixMatch", AvgSettings(), _fedavg),
    "fixprox": Entry("FedProx with FixMatch", ProxSettings(), _fedprox),
    "fixbn": Entry("FedBN with FixMatch: norms stay local", AvgSettings(), _fedbn),
    "fixavg-ft": Entry("FixAvg, fine-tuned by each client before evaluation", TuneSettings(), _tuned),
    "fedper": Entry("FedPer with FixMatch: shared body, personal head", PerSettings(), _fedper),
    "lg-fedavg": Entry("LG-FedAvg with FixMatch: local body, global head", LgSettings(), _lg_fedavg),
    "pfedme": Entry("pFedMe with FixMatch: Moreau envelopes", MeSettings(), _pfedme),
    "mix": Entry("FixAvg, FixProx and FixBN side by side, outputs averaged", ProxSettings(), _mix),
    "fedavg-sl": Entry("FedAvg with all training labels", AvgSettings("supervised"), _fedavg),
    "fedprox-sl": Entry("FedProx with all training labels", ProxSettings("supervised"), _fedprox),
    "fedbn-sl": Entry("FedBN with all training labels", AvgSettings("supervised"), _fedbn),
}


def entry_of(name: str) -> Entry:
    """The method of this name; `module:NAME` is a user's own, which is found there."""
    if own.is_own(name):
        entry = own.find(name, "--method")
        if not isinstance(entry, Entry) or not is_dataclass(entry.settings) or isinstance(entry.settings, type):
            remedy = "Let it be Entry(summary, Settings(), make), with a dataclass of settings (docs/write-a-method.md)."
            raise KithkinError(f"--method: {own.short(name)} is no method.", remedy)
        return entry
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def method_for(
    config: RunConfig,
    settings: Any,
    layout: Layout,
    flip: bool,
    device: torch.device,
    classes: int | None = None,
    dropout: bool = True,
    signals: bool = False,
) -> Method:
    """The method that a resolved config asks for, on a network of this layout; `flip` is what is known of the data set."""
    training = Training(config.epochs, some(config.batch_size), some(config.lr), config.momentum, config.flips(flip))
    setting = Setting(layout, training, some(config.rounds), config.seed, device, classes, dropout, signals)
    return entry_of(config.method).make(settings, setting)


def sees_all_labels(settings: Any) -> bool:
    """Whether every training label is given to the method."""
    return getattr(settings, "objective", None) == "supervised"


def check(name: str, settings: Any, clients: int) -> None:
    """Refuse settings that cannot be, and those that make a method a no-op."""
    check_choices(settings)
    values = {f.name: getattr(settings, f.name) for f in fields(settings)}
    for field, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise bad(field, value, "must be a finite number")
    for field in (
        "helpers",
        "mc_samples",
        "refresh_every",
        "personal_layers",
        "global_layers",
        "inner_steps",
        "finetune_epochs",
    ):
        if field in values and values[field] < 1:
            raise bad(field, values[field], "must be 1 or more")
    for field in (
        "candidates",
        "search_rounds",
        "warmup_epochs",
        "threshold",
        "lambda_u",
        "fedavg_rounds",
        "gathering",
        "window",
        "known",
        "tune_epochs",
        "tune_lr",
    ):
        if values.get(field) is not None and values[field] < 0:
            raise bad(field, values[field], "must be 0 or more")
    if not 0 <= values.get("moved", 0) <= 1:
        raise bad("moved", values["moved"], "must lie in [0, 1]")
    if not 0 <= values.get("server_momentum", 0) < 1:
        raise bad("server_momentum", values["server_momentum"], "must lie in [0, 1)")
    for field in ("prox", "personal_lr", "outer_lr", "server_mix", "smoothing"):
        if field in values and not values[field] > 0:
            why = " (at 0 the method does nothing of its own)" if field in ("prox", "server_mix") else ""
            raise bad(field, values[field], "must be above 0" + why)
    if isinstance(settings, ListSettings):
        if settings.helpers > clients:
            raise bad("helpers", settings.helpers, f"must not exceed the {clients} clients")
        left = clients - settings.helpers
        if settings.search_rounds and settings.candidates > left:
            raise KithkinError(
                f"--candidates is {settings.candidates}, but {clients} clients with lists of {settings.helpers} leave {left}.",
                "Give fewer --candidates or --helpers, more --clients, or --search-rounds 0.",
            )


__all__ = [
    "METHODS",
    "STATES",
    "AvgSettings",
    "Brief",
    "Client",
    "Entry",
    "FedAvg",
    "Global",
    "Method",
    "Own",
    "Parcel",
    "Reply",
    "Setting",
    "Training",
    "check",
    "entry_of",
    "method_for",
    "sees_all_labels",
]
