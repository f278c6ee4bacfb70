"""All methods: each one's settings, and how it is made of them. `METHODS[name]` is everything the rest of the house needs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, cast

import torch

from kithkin import own
from kithkin.compute import Recipe
from kithkin.config import RunConfig, bad, some
from kithkin.errors import KithkinError, unknown
from kithkin.helpers import Helper, HelperList, Score
from kithkin.methods.base import Brief, Client, Held, Method, Parcel, Reply, Training
from kithkin.methods.fedavg import FedAvg, Global, Own
from kithkin.methods.fedbn import fedbn
from kithkin.methods.fedper import fedper
from kithkin.methods.fedprox import fedprox
from kithkin.methods.lg_fedavg import lg_fedavg
from kithkin.methods.local import local
from kithkin.methods.mix import Globals, Mix, Owns
from kithkin.methods.pfedme import pfedme
from kithkin.methods.settings import (
    AvgSettings,
    LgSettings,
    LocalSettings,
    MeSettings,
    PerSettings,
    ProxSettings,
    TuneSettings,
    UmPlusSettings,
    UmSettings,
    check,
    idle,
    sees_all_labels,
    suited,
)
from kithkin.methods.um import Newest, Pool, Um, UmState
from kithkin.methods.um_plus import Commons, PlusState, UmPlus, bias_of
from kithkin.nets import Anatomy

STATES = (Commons, Global, Globals, Held, Helper, HelperList, Newest, Own, Owns, PlusState, Pool, Score, UmState)
"""Every class that server and client states are made of: what a checkpoint may hold."""


@dataclass(frozen=True, kw_only=True)
class Setting(Anatomy):
    """Where a method is set up: the network, local training, and the run's length and seed."""

    training: Training
    rounds: int
    seed: int
    device: torch.device


def _recipe(objective: Literal["alternate", "weighted", "sum", "fixmatch"], at: Setting, **more: Any) -> Recipe:
    t = at.training
    if at.signals and (objective == "fixmatch" or more.get("views", "plain") != "plain"):
        raise KithkinError(
            "FixMatch's augmentations are for pictures, and the data are signals.",
            "Take um, um-plus or local, or give --objective labelled-only where the method has it; augment nothing.",
        )
    return Recipe(objective, t.epochs, t.batch_size, t.lr, t.momentum, flip=t.flip, **more)


def _before_evaluation(recipe: Recipe, epochs: int, share: float) -> Recipe:
    """A client's last passes over its own pictures, at a share of the learning rate."""
    return replace(recipe, epochs=epochs, lr=recipe.lr * share)


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
    recipe = _recipe("sum" if s.losses == "auto" else s.losses, at, **more)
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
    bias = bias_of(at.layout)
    if not at.open_bias:
        raise KithkinError(
            "What UM+ adds to the bias of the network's last layer does not reach its logits unchanged.",
            "Let the classifier be the last layer that the network defines, and return what it gives as it is.",
        )
    auto = s.views == "auto"
    um = _um(s, at, views="plain" if auto else s.views, moved=s.moved)
    moved = replace(um.recipe, views="weak") if auto and at.training.flip and not at.signals else um.recipe
    tune = _before_evaluation(um.recipe, s.tune_epochs, s.tune_lr) if s.tune_epochs else None
    return UmPlus(
        um,
        bias,
        s.threshold,
        s.smoothing,
        s.window,
        s.known,
        moved,
        s.losses == "auto",
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
    own = {"threshold": s.threshold, "lambda_u": s.lambda_u, "views": "weak" if s.augment else "plain"}
    recipe = _recipe("fixmatch" if s.objective == "fixmatch" else "alternate", at, **own)
    shared = torch.ones(at.layout.size, dtype=torch.bool, device=at.device)
    return FedAvg(recipe, shared)


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
    return pfedme(_fedavg(s, at), s.prox, s.outer_lr, s.server_mix, s.inner_steps, at.layout.trained)


def _tuned(s: TuneSettings, at: Setting) -> FedAvg:
    fedavg = _fedavg(s, at)
    return replace(fedavg, tune=_before_evaluation(fedavg.recipe, s.finetune_epochs, s.finetune_lr))


def _mix(s: ProxSettings, at: Setting) -> Mix:
    return Mix((_fedavg(s, at), _fedprox(s, at), _fedbn(s, at)))


@dataclass(frozen=True)
class Entry:
    """A method as it is listed, or as a user names an own one: what is said of it, its settings, and how it is made of them."""

    summary: str  # one line, for --help
    settings: Any  # the method's settings with their defaults
    make: Callable[[Any, Setting], Method]
    revision: int = 1  # raised by a change that alters the method's numbers: `kithkin paper` then runs its cells anew
    states: tuple[type, ...] = ()  # classes of a user's own method that its states are made of, beside STATES


METHODS: dict[str, Entry] = {
    "um": Entry("UM-pFSSL, the paper's method: helpers chosen by uncertainty and accuracy", UmSettings(), _um),
    "um-plus": Entry("UM+: helpers vote around one common model without class priors", UmPlusSettings(), _um_plus, revision=5),
    "local": Entry("no federation: every client trains alone", LocalSettings(), _local),
    "fixavg": Entry("FedAvg with FixMatch", AvgSettings(), _fedavg),
    "fixprox": Entry("FedProx with FixMatch", ProxSettings(), _fedprox),
    "fixbn": Entry("FedBN with FixMatch: norms stay local", AvgSettings(), _fedbn),
    "fixavg-ft": Entry("FixAvg, fine-tuned by each client before evaluation", TuneSettings(), _tuned, revision=2),
    "fedper": Entry("FedPer with FixMatch: shared body, personal head", PerSettings(), _fedper),
    "lg-fedavg": Entry("LG-FedAvg with FixMatch: local body, global head", LgSettings(), _lg_fedavg, revision=2),
    "pfedme": Entry("pFedMe with FixMatch: Moreau envelopes", MeSettings(), _pfedme, revision=2),
    "mix": Entry("FixAvg, FixProx and FixBN side by side, outputs averaged", ProxSettings(), _mix),
    "fedavg-sl": Entry("FedAvg with all training labels", AvgSettings("supervised"), _fedavg),
    "fedprox-sl": Entry("FedProx with all training labels", ProxSettings("supervised"), _fedprox),
    "fedbn-sl": Entry("FedBN with all training labels", AvgSettings("supervised"), _fedbn),
}


TAKEN = {  # flags that no method's own setting may be
    *(f.name for f in fields(RunConfig)),
    *("out", "quiet", "report", "tensorboard", "courier", "wire", "methods", "alphas", "seeds", "lrs", "jobs"),
}


def entry_of(name: str) -> Entry:
    """The method of this name; `module:NAME` is a user's own, which is found there."""
    if own.is_own(name):
        entry = own.find(name, "--method")
        settings = entry.settings if isinstance(entry, Entry) else None
        if not isinstance(settings, Hashable) or not is_dataclass(settings) or isinstance(settings, type):  # hashable: frozen
            remedy = "Let it be Entry(summary, Settings(), make), with a frozen dataclass of settings (docs/write-a-method.md)."
            raise KithkinError(f"--method: {own.short(name)} is no method.", remedy)
        for setting in (f.name for f in fields(settings) if f.name in TAKEN):
            problem = f"--method: {own.short(name)} has a setting '{setting}', as every run or command has."
            raise KithkinError(problem, "Give it another name.")
        return entry
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def settings_from(method: str, saved: Mapping[str, Any]) -> Any:
    """A method's settings as a manifest has them: JSON knows no tuples."""

    def back(value: Any) -> Any:
        return tuple(back(each) for each in cast(list[Any], value)) if isinstance(value, list) else value

    return type(entry_of(method).settings)(**{name: back(value) for name, value in saved.items()})


def method_for(
    config: RunConfig,
    settings: Any,
    network: Anatomy,
    flip: bool,
    device: torch.device,
) -> Method:
    """The method that a resolved config asks for, on such a network; `flip` is what is known of the data set."""
    training = Training(config.epochs, some(config.batch_size), some(config.lr), config.momentum, config.flips(flip))
    setting = Setting(**vars(network), training=training, rounds=some(config.rounds), seed=config.seed, device=device)
    method = entry_of(config.method).make(settings, setting)
    needed = ("opening_round", "open", "greet", "brief", "visit", "merge", "personal")
    lacking = [name for name in needed if not hasattr(method, name)]
    if lacking:
        problem = f"--method: what `make` of {own.short(config.method)} gives ({type(method).__name__}) has no {lacking[0]}."
        raise KithkinError(problem, "Let it return a method with all its functions (docs/write-a-method.md).")
    return method


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
    "idle",
    "method_for",
    "sees_all_labels",
    "settings_from",
    "suited",
]
