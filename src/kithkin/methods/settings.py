"""Every method's settings, and which of them cannot be."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from kithkin.config import SAID, bad, check_kinds
from kithkin.errors import KithkinError
from kithkin.helpers import Terms


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
    """nu, fetch newer versions of the helpers every so many rounds; while searching, not of the R least related."""
    relation: Terms = "both"
    """Which terms of the relation (13) count."""


@dataclass(frozen=True)
class UmSettings(ListSettings):
    losses: Literal["alternate", "weighted"] = "alternate"
    """alternate: a pass over labelled, then over unlabelled data (Algorithm 1); weighted: both in each step, as in (1)."""


@dataclass(frozen=True)
class UmPlusSettings(ListSettings):
    losses: Literal["auto", "sum", "weighted", "alternate"] = "auto"
    """sum: both losses in each step, unweighted; auto: sum, but a known client's votes count as labels; others: as in um."""
    threshold: float = 0.9
    """A pseudo label is taken where the vote is at least this certain; above 1 none is."""
    smoothing: float = 1.0
    """Pictures of each class that every client is taken to have beside its own; very large: no class priors."""
    server_momentum: float = 0.8
    """How much of its last round's step the common model repeats; 0: it is just the mean of the cohort."""
    gathering: float = 5.0
    """Momentum begins after so many rounds, and grows: half at most after twice as many. They count twice in the window."""
    window: float = 0.1
    """The common model's mean over about this share of the rounds so far is evaluated; 0: its last version alone."""
    views: Literal["auto", "plain", "weak", "strong"] = "auto"
    """How training augments unlabelled pictures (labelled ones at most weakly); auto: plain, weak once a client is known."""
    known: float = 0.8
    """A client is known if the common model's relation to it is at least this; above 1: never."""
    moved: float = 0.5
    """Weak views mirror and shift this share of the pictures; the rest is shown as it is."""
    tune_epochs: int = 1
    """Local passes over a client's data before each evaluation; with --losses auto not for known clients."""
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
    augment: bool = False
    """Mirror (where allowed) and shift pictures also without FixMatch; with it that is always done."""


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
    fedavg_rounds: Annotated[int | None, SAID] = None
    """Rounds of plain FedAvg at the start; left out, a quarter of the rounds."""
    reverse: bool = False
    """Share the body and keep the head, as the authors' CIFAR code does."""


@dataclass(frozen=True)
class MeSettings(AvgSettings):
    prox: float = 15.0
    """lambda, how strongly the personal model is held near w."""
    inner_steps: int = 5
    """K, steps on each batch towards the personal model, at --lr and without momentum."""
    outer_lr: float = 0.005
    """eta, how far w follows after each batch (times lambda)."""
    server_mix: float = 1.0
    """beta, how far the server goes towards the mean."""


@dataclass(frozen=True)
class TuneSettings(AvgSettings):
    finetune_epochs: int = 5
    """Local passes over the client's data before each evaluation."""
    finetune_lr: float = 0.1
    """Their learning rate, as a share of --lr."""


def suited(settings: Any, clients: int | None, helpers: int | None = None) -> Any:
    """These usual settings, with shorter lists and fewer candidates where there are few clients (`helpers`: as was asked)."""
    if not isinstance(settings, ListSettings) or not clients or clients < 1:
        return settings
    M = min(settings.helpers, clients)
    left = max(0, clients - (M if helpers is None else helpers))
    return replace(settings, helpers=M, candidates=min(settings.candidates, left))


def sees_all_labels(settings: Any) -> bool:
    """Whether every training label is given to the method."""
    return getattr(settings, "objective", None) == "supervised"


def idle(settings: Any) -> set[str]:
    """Of these settings FixMatch's own, where the objective is another and they do nothing."""
    ours = isinstance(settings, AvgSettings | LocalSettings)
    return {"threshold", "lambda_u"} if ours and settings.objective != "fixmatch" else set()


AT_LEAST_ONE = ("helpers", "mc_samples", "refresh_every", "personal_layers", "global_layers", "inner_steps", "finetune_epochs")
AT_LEAST_ZERO = (
    *("candidates", "search_rounds", "warmup_epochs", "threshold", "lambda_u", "fedavg_rounds"),
    *("gathering", "window", "known", "tune_epochs", "tune_lr"),
)
ABOVE_ZERO = ("prox", "outer_lr", "server_mix", "smoothing", "finetune_lr")


def check(settings: Any, clients: int) -> None:
    """Refuse settings that cannot be, and those that make a method a no-op; what a user's own class adds is its own affair."""
    check_kinds(settings)
    ours = {f.name for kind in type(settings).__mro__ if kind.__module__ == __name__ for f in fields(kind)}
    for name, value in ((f.name, getattr(settings, f.name)) for f in fields(settings)):
        if isinstance(value, float) and not math.isfinite(value):
            raise bad(name, value, "must be a finite number")
        if name not in ours or value is None:
            continue
        if name in AT_LEAST_ONE and value < 1:
            raise bad(name, value, "must be 1 or more")
        if name in AT_LEAST_ZERO and value < 0:
            raise bad(name, value, "must be 0 or more")
        if name in ABOVE_ZERO and value <= 0:
            why = " (at 0 the method does nothing of its own)" if name in ("prox", "server_mix") else ""
            raise bad(name, value, "must be above 0" + why)
        if name == "moved" and not 0 <= value <= 1:
            raise bad(name, value, "must lie in [0, 1]")
        if name == "server_momentum" and not 0 <= value < 1:
            raise bad(name, value, "must lie in [0, 1)")
    if isinstance(settings, ListSettings):
        if settings.helpers > clients:
            raise bad("helpers", settings.helpers, f"must not exceed the {clients} clients")
        left = clients - settings.helpers
        if settings.search_rounds and settings.candidates > left:
            raise KithkinError(
                f"--candidates is {settings.candidates}, but {clients} clients with lists of {settings.helpers} leave {left}.",
                "Give fewer --candidates or --helpers, more --clients, or --search-rounds 0.",
            )
