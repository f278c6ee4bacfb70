"""What a federation agrees on: read from the server's FEDERATION.toml, sent to every site with the run, as JSON."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from kithkin.compute.loss import centred, scaled
from kithkin.config import RunConfig, as_json, check_kinds, from_json, some
from kithkin.data.own import LARGEST, SMALLEST
from kithkin.errors import KithkinError, unknown
from kithkin.flags import settle
from kithkin.methods import Method, check, entry_of, method_for, sees_all_labels
from kithkin.nets import Build, Network, anatomy_of, builder, initial_vector
from kithkin.network.papers import read_toml
from kithkin.own import expanded, is_own

Numbers = Literal["fp32", "fp16", "bf16"]
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
OF_ONE_MACHINE = ("data", "clients", "alpha", "label_ratio", "device", "compute", "precision", "pool", "preset")
OF_ONE_MACHINE += ("data_folder", "save_models", "checkpoint_every", "flip")  # flip stands above [run], as true or false

OF_TERMS = ("flip", "wire", "norm_limit", "deadline", "least", "aliases", "details")  # which the file may say as they are


@dataclass(frozen=True)
class Terms:
    """Everything that server and sites must have in common."""

    config: RunConfig
    settings: Any  # of the method
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # channels, height, width of a picture
    run: str = ""  # names this run: a site keeps one state for each
    flip: bool = False  # whether a mirror image keeps its label
    wire: Numbers = "fp32"  # how a number travels
    norm_limit: float = 100.0  # a model this many times as long as the first one is refused
    deadline: float = 900.0  # seconds that a site has for its part of a round
    least: int = 2  # sites that must be there for a round to begin
    aliases: bool = True  # sites do not learn whose models they get
    details: bool = False  # sites tell how right their pseudo labels were by class, uncertainty and helper, not in all alone

    @property
    def places(self) -> int:
        return some(self.config.clients)

    def as_text(self) -> str:
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps(parts | {"config": as_json(self.config), "settings": asdict(self.settings)})

    def checked(self) -> Terms:
        check_kinds(self)
        self.config.checked()
        only_kithkins(self.config)
        check(self.settings, self.places)
        if sees_all_labels(self.settings):
            raise KithkinError(f"{self.config.method} trains on labels that sites do not have.", "Choose another method.")
        if not re.fullmatch(r"[0-9A-Za-z_-]{0,64}", self.run):
            raise KithkinError(f"run is {self.run!r}, which sites would make a folder's name.", "Use letters and digits.")
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise KithkinError(f"classes are {list(self.classes)}.", "Name at least two classes, each once.")
        for name in self.classes:  # sites' terminals will show it
            if CONTROL.search(name):
                raise KithkinError(f"The class {name!r} has control characters.", "Give it a name of letters and digits.")
        if len(self.shape) != 3 or self.shape[0] not in (1, 3) or not all(_is_size(n) for n in self.shape[1:]):
            remedy = f"Give [channels, height, width] with 1 or 3 channels and {SMALLEST} to {LARGEST} pixels either way."
            raise KithkinError(f"shape is {list(self.shape)}.", remedy)
        for name in ("norm_limit", "deadline", "least"):
            if not 0 < getattr(self, name) < math.inf:
                raise KithkinError(f"{name} is {getattr(self, name)}.", f"Give a {name} above 0, and finite.")
        if self.least > self.places:
            raise KithkinError(f"least is {self.least}, but there are {self.places} places.", "Give a smaller one.")
        return self


def _is_size(number: object) -> bool:
    return type(number) is int and SMALLEST <= number <= LARGEST


def only_kithkins(config: RunConfig) -> None:
    """Refuse somebody's own method or network: it is code that sites would run unseen."""
    for name in (config.method, config.model):
        if is_own(name):
            raise KithkinError(f"{name} is not of kithkin, and sites run no code that they are told of.", "Name one that is.")


def terms_from(text: str) -> Terms:
    values = json.loads(text)
    config = from_json(values.pop("config"))
    only_kithkins(config)
    settings = type(entry_of(config.method).settings)(**values.pop("settings"))
    classes, shape = tuple(values.pop("classes")), tuple(values.pop("shape"))
    return Terms(config, settings, classes, shape, **values).checked()


@dataclass(frozen=True, eq=False)
class Craft:
    """What both sides make of the terms: the network, the method, and the model that everyone starts from."""

    build: Build
    method: Method
    w0: Tensor
    shape: tuple[int, int, int]  # of a picture

    def answers(self, w: Tensor) -> bool:
        """Whether a model answers random pictures with numbers; one with a variance below zero, say, answers NaN."""
        network, pictures = self._trial
        network.load(w)
        with torch.no_grad():
            return bool(network(pictures).isfinite().all())

    @cached_property
    def _trial(self) -> tuple[Network, Tensor]:
        network = Network(self.build, self.w0.device)
        network.module.eval()
        drawn = torch.randint(0, 256, (4, *self.shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        return network, centred(scaled(drawn.to(self.w0.device)))


def craft_of(terms: Terms, device: torch.device) -> Craft:
    config = terms.config
    build = builder(config.model, terms.shape, len(terms.classes), some(config.width))
    network = anatomy_of(build, terms.shape, len(terms.classes))
    method = method_for(config, terms.settings, network, terms.flip, device)
    return Craft(build, method, initial_vector(build, config.seed).to(device), terms.shape)


@dataclass(frozen=True)
class Seat:
    """A site as the federation's file names it."""

    number: int
    name: str
    key: str = ""  # its public key, as `kithkin site init` prints it


@dataclass(frozen=True)
class FederationFile:
    """FEDERATION.toml, read and checked."""

    path: Path
    terms: Terms
    server: str  # where sites reach the server
    listen: str  # where the server listens
    folder: Path
    sites: tuple[Seat, ...] = ()
    ca: Path = Path("ca.crt")
    certificate: Path = Path("server.crt")
    key: Path = Path("server.key")

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def flower(self) -> Path:
        """Flower's own home and database."""
        return self.folder / "flower"

    def seat(self, number: int) -> Seat:
        return next((s for s in self.sites if s.number == number), Seat(number, f"site-{number}"))


@dataclass(frozen=True)
class _Written:
    """The file's own words."""

    name: str
    classes: list[str]
    shape: list[int]
    run: dict[str, Any]
    server: str = "127.0.0.1:8443"
    listen: str = ""
    folder: str = "server"
    ca: str = "ca.crt"
    certificate: str = "server.crt"
    key: str = "server.key"
    places: int = 0
    sites: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def read_federation(path: Path) -> FederationFile:
    """The file at this path; every mistake in it is named."""
    path = expanded(path).resolve()
    raw = read_toml(path)
    known = {f.name for f in fields(_Written)} | {*OF_TERMS}
    for name in raw:
        if name not in known:
            raise unknown(f"setting in {path}", name, known)
    for name in ("name", "classes", "shape", "run"):
        if name not in raw:
            raise KithkinError(f"{path} does not say '{name}'.", "docs/deploy.md shows a whole file.")
    try:
        given = {name: raw.pop(name) for name in OF_TERMS if name in raw}
        written = _Written(**raw)
        check_kinds(written)
        for name in ("classes", "shape", "sites"):
            if not isinstance(getattr(written, name), list):
                raise KithkinError(f"{path} says {name} = {getattr(written, name)!r}.", "Write it as a list, in [ ].")
        seats = _seats(path, written)
        terms = _terms(written, len(seats), given)
    except (TypeError, AttributeError, ValueError, OverflowError) as e:
        raise KithkinError(f"{path} is not as it should be ({e}).", "docs/deploy.md shows a whole file.") from None
    for seat in seats:
        if not 0 <= seat.number < terms.places:
            problem = f"{path}: site {seat.name} has number {seat.number}, but there are {terms.places} places."
            raise KithkinError(problem, "Number the sites from 0, or give more places.")
    home = path.parent
    return FederationFile(
        path,
        terms,
        written.server,
        written.listen or written.server,
        home / written.folder,
        seats,
        *(home / name for name in (written.ca, written.certificate, written.key)),
    )


def changed_at(path: Path) -> float | None:
    """When a file was changed last, unless an editor has just taken it away."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _terms(written: _Written, seats: int, given: dict[str, Any]) -> Terms:
    for name in written.run:
        if name in OF_ONE_MACHINE:
            raise KithkinError(f"[run] says '{name}', which is each site's own affair or no choice here.", "Leave it out.")
    if written.places < 0:
        raise KithkinError(f"places is {written.places}.", "Give how many sites may take part.")
    places = written.places or max(1, seats)
    config, settings = settle({"rounds": 50, **written.run, "clients": places})
    fixed = {"data": written.name, "clients": places, "alpha": 0.5, "checkpoint_every": 1, "save_models": False}
    config = RunConfig(**{**vars(config), **fixed})
    return Terms(
        config.checked().resolved(),
        settings,
        tuple(map(str, written.classes)),
        cast(tuple[int, int, int], tuple(written.shape)),
        **given,
    ).checked()


def _seats(path: Path, written: _Written) -> tuple[Seat, ...]:
    seats = tuple(
        Seat(int(s.get("number", i)), str(s.get("name", "")), str(s.get("key", ""))) for i, s in enumerate(written.sites)
    )
    of: dict[str, Callable[[Seat], Any]] = {"number": lambda s: s.number, "name": lambda s: s.name, "key": key_of}
    for what, get in of.items():
        first: dict[Any, Seat] = {}
        for seat in seats:
            twin = first.setdefault(get(seat), seat)
            if twin is not seat and get(seat) != "":
                raise KithkinError(f"{path}: {twin.name} and {seat.name} have the same {what}.", f"Give each its own {what}.")
    return seats


def key_of(seat: Seat) -> str:
    return key_digest(seat.key) if seat.key else ""


def key_digest(key: str) -> str:
    """The same for the same public key, whatever comment follows it."""
    return hashlib.sha256(" ".join(key.split()[:2]).encode()).hexdigest()
