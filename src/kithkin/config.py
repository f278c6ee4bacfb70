"""What a run is: frozen dataclasses whose fields are the command line's flags and the manifest's entries."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tyro.conf import arg

from kithkin.errors import KithkinError, unknown

Preset = Literal["default", "paper"]
Engine = Literal["auto", "eager", "workers", "graphs"]
Pool = Literal["device", "host"]
Alpha = float | Literal["given"]  # how pictures are dealt to clients; given: not at all, as the data says whose they are
MOST = 2**31
SAID = arg(help_behavior_hint="")  # the text of a flag says what holds without it
WHERE = ("device", "compute", "pool")  # what of a config says where a run is computed, and changes no numbers


@dataclass(frozen=True)
class RunConfig:
    """One run. The defaults are those that suit the data set."""

    method: str = "um"
    """Which method; `kithkin methods` lists them. Your own: module:NAME or file.py:NAME (docs/write-a-method.md)."""
    data: str = "digits"
    """Data set by name (`kithkin data list`), or the path of your own: an npz or a folder with one sub-folder per class."""
    clients: int | None = None
    """K, how many clients share the data."""
    alpha: Alpha | None = None
    """How alike clients are (Dirichlet). Small: very different; 10: nearly alike; given: your data names the owners."""
    label_ratio: Annotated[float | None, SAID] = None
    """Labelled share of every client's training pictures; left out, each client draws its own from Dir(0.5, 0.5)."""
    rounds: int | None = None
    """n, rounds of training."""
    sample_rate: float | None = None
    """tau, the share of clients that train in a round."""
    epochs: int = 5
    """E, passes over the client's data in a visit."""
    batch_size: int | None = None
    """Pictures per training step."""
    lr: float | None = None
    """Learning rate of SGD."""
    momentum: float = 0.9
    """Momentum of SGD."""
    model: str = "resnet9"
    """resnet9, or your own network: module:function or file.py:function, which builds an nn.Module (docs/own-model.md)."""
    width: int | None = None
    """Channels of ResNet-9's first layer; the paper does not say, `--preset paper` takes 64."""
    flip: Literal["auto", "yes", "no"] = "auto"
    """Whether a mirror image keeps its label, so that augmentation may mirror; auto: by the data set, no for your own."""
    seed: int = 0
    """Everything random follows from it: split, start, cohorts, batches, dropout."""
    eval_every: int = 1
    """Evaluate all personal models every so many rounds, and at the end."""
    checkpoint_every: Annotated[int | None, SAID] = None
    """Save the run every so many rounds (0: only when interrupted); left out, every 10, or less often where saving is slow."""
    save_models: Annotated[bool, SAID] = True
    """Unless this is given, every client's personal model is kept: `predict`, `export` and a report's looks need them."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    compute: Engine = "auto"
    """How training runs: eager is the reference; workers, the same on all cores; graphs, CUDA graphs; auto, the fastest."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Arithmetic of graphs: bf16 is fast, fp32 exact. Everything else computes in fp32."""
    pool: Pool = "device"
    """Where models lie between visits: in the device's memory, or in the host's, which holds more and is slower to reach."""
    preset: Preset = "default"
    """paper: every value of the paper's experiments (K=100, 200 rounds, lr 1e-4 ...), where no flag says otherwise."""
    data_folder: Annotated[Path | None, SAID] = None
    """Where the data sets lie; left out, $KITHKIN_DATA or the platform's cache folder."""

    def resolved(self, owners: int | None = None) -> RunConfig:
        """With every None filled in; `owners`: how many clients the data belongs to, where it says so."""
        table = PAPER if self.preset == "paper" else DEFAULTS
        values = {"alpha": 0.5, **table["*"], **table.get(self.data.removeprefix("small-"), {}), **table.get(self.data, {})}
        if owners:
            values |= {"alpha": "given", "clients": owners}
        return replace(self, **{k: v for k, v in values.items() if getattr(self, k) is None})

    def flips(self, usual: bool) -> bool:
        """Whether pictures may be mirrored, where the data set says `usual`."""
        return usual if self.flip == "auto" else self.flip == "yes"

    def checked(self) -> RunConfig:
        """Itself, if every value is lawful whatever the data."""
        check_kinds(self)
        positive = ("clients", "rounds", "epochs", "batch_size", "lr", "width", "eval_every", "alpha")
        for name in positive:
            value = getattr(self, name)
            if value == "given":
                continue
            if isinstance(value, int) and value >= MOST:
                raise bad(name, f"{len(str(value))} digits long", f"must be below {MOST:,}")
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise bad(name, value, "must be above 0, and finite" if value > 0 else "must be above 0")
        for name, low in (("sample_rate", False), ("label_ratio", True)):
            value = getattr(self, name)
            if value is not None and not (0 < value <= 1 or (low and value == 0)):
                raise bad(name, value, f"must lie in {'[' if low else '('}0, 1]")
        if not 0 <= self.momentum < 1:
            raise bad("momentum", self.momentum, "must lie in [0, 1)")
        if self.checkpoint_every is not None and self.checkpoint_every < 0:
            raise bad("checkpoint_every", self.checkpoint_every, "must be 0 or more")
        if self.batch_size is not None and self.batch_size < 2:
            raise bad("batch_size", self.batch_size, "must be 2 or more: batch norm needs two pictures")
        return self


def some(value: Any) -> Any:
    """A setting that `resolved` has filled in."""
    assert value is not None
    return value


hints_of = cache(get_type_hints)  # slow, and asked for every cell of a table


def check_kinds(settings: Any) -> None:
    """Refuse a word that is none of a field's choices, and a value of another kind than the field's."""
    for name, kind in hints_of(type(settings)).items():
        value = getattr(settings, name)
        parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
        kinds = tuple(part for part in parts if get_origin(part) is not Literal)
        if value in words:
            continue
        if not kinds:
            raise unknown("--" + name.replace("_", "-"), str(value), words)
        if PLAIN.issuperset(kinds) and not _is_a(value, kinds):
            lawful = [*(k.__name__ for k in kinds if k is not NoneType), *words]
            raise bad(name, repr(value), f"must be {' or '.join(lawful)}")


PLAIN = {bool, int, float, str, Path, NoneType}


def _is_a(value: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):  # Python takes it for an int
        return bool in kinds
    return isinstance(value, kinds) or (float in kinds and isinstance(value, int)) or (Path in kinds and isinstance(value, str))


def bad(name: str, value: object, rule: str) -> KithkinError:
    """A setting that cannot be, named as its flag."""
    flag = "--" + name.replace("_", "-")
    return KithkinError(f"{flag} is {value}; it {rule}.", f"Give another {flag}.")


# docs/defaults.md says which of these were measured, and how.
DEFAULTS: dict[str, dict[str, Any]] = {
    "*": {"clients": 10, "rounds": 50, "sample_rate": 0.5, "batch_size": 32, "lr": 0.01, "width": 16},
    "digits": {"clients": 20, "rounds": 30, "sample_rate": 0.5, "batch_size": 32, "lr": 0.01, "width": 8},
    "fashion-mnist": {"clients": 100, "rounds": 200, "sample_rate": 0.1, "batch_size": 64, "lr": 3e-3, "width": 64},
    "cifar-10": {"clients": 100, "rounds": 200, "sample_rate": 0.1, "batch_size": 64, "lr": 3e-3, "width": 64},
    "organamnist": {"clients": 20, "rounds": 100, "sample_rate": 1.0, "batch_size": 64, "lr": 3e-3, "width": 64},
    "pathmnist": {"clients": 20, "rounds": 100, "sample_rate": 1.0, "batch_size": 64, "lr": 3e-3, "width": 64},
    "small-fashion-mnist": {"clients": 40, "rounds": 60, "sample_rate": 0.2, "batch_size": 32, "lr": 0.01, "width": 8},
    "small-cifar-10": {"clients": 40, "rounds": 60, "sample_rate": 0.2, "batch_size": 32, "lr": 0.01, "width": 8},
    "small-organamnist": {"clients": 20, "rounds": 20, "sample_rate": 1.0, "batch_size": 32, "lr": 0.01, "width": 8},
    "small-pathmnist": {"clients": 20, "rounds": 20, "sample_rate": 1.0, "batch_size": 32, "lr": 0.01, "width": 8},
}
PAPER: dict[str, dict[str, Any]] = {
    "*": {"clients": 100, "rounds": 200, "sample_rate": 0.1, "batch_size": 64, "lr": 1e-4, "width": 64},
    "organamnist": {"clients": 20, "sample_rate": 1.0},
    "pathmnist": {"clients": 20, "sample_rate": 1.0},
}


def as_json(config: RunConfig) -> dict[str, Any]:
    """The config as the manifest keeps it."""
    return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(config).items()}


def from_json(values: dict[str, Any]) -> RunConfig:
    known = {f.name for f in fields(RunConfig)}
    kept = {k: v for k, v in values.items() if k in known}
    if kept.get("data_folder"):
        kept["data_folder"] = Path(kept["data_folder"])
    return RunConfig(**kept)
