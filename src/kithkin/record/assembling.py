"""Who plays a run: the federation, assembled from a config, and what is told of it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

import kithkin
from kithkin import own
from kithkin.compute import Workers, choose, together
from kithkin.config import RunConfig, as_json, bad, some
from kithkin.data import Dataset, Share, Split, load, resolved, split_of, whole_name
from kithkin.data.sources import is_official
from kithkin.errors import KithkinError
from kithkin.federation import Courier, Exam, LocalCourier, World, cohort
from kithkin.methods import Client, Method, check, entry_of, method_for, sees_all_labels
from kithkin.methods.base import Labels
from kithkin.nets import Build, anatomy_of, builder, initial_vector
from kithkin.record.audit import audit
from kithkin.record.folder import Folder
from kithkin.record.models import pool_of, write_models


class Troupe(Protocol):
    """What a run is played with: a federation in this process, or one that is spread over a network."""

    @property
    def config(self) -> RunConfig: ...

    @property
    def method(self) -> Method: ...

    @property
    def courier(self) -> Courier: ...

    @property
    def w0(self) -> Tensor: ...

    @property
    def names(self) -> tuple[str, ...]:
        """Of the classes."""
        ...

    @property
    def picture(self) -> tuple[int, ...]:
        """Channels, height and width."""
        ...

    @property
    def client_names(self) -> tuple[str, ...]:
        """Of the clients, where they have any."""
        ...

    def ready(self, world: World) -> World:
        """The world as the next round finds it; may wait for clients."""
        ...

    def trained(self, round: int, world: World) -> set[int]:
        """Who trains in a round."""
        ...

    def audited(self, labels: dict[int, Labels]) -> dict[str, Any]:
        """How right the pseudo labels of the last round were."""
        ...

    def sizes(self) -> list[dict[str, Any]]:
        """How many pictures each client has, and for what."""
        ...

    def digest(self) -> str | None:
        """The hash of the split, where it is known."""
        ...

    def machine(self) -> dict[str, Any]: ...

    def save_models(self, folder: Folder, world: World) -> None: ...


@dataclass(frozen=True, eq=False)
class Federation:
    """A run, assembled: everything that does not change while it goes on."""

    config: RunConfig
    settings: Any
    split: Split
    clients: Sequence[Client]
    truth: Sequence[Tensor]  # classes of each client's unlabelled pictures: for the record, never for training
    courier: LocalCourier
    method: Method
    w0: Tensor
    names: tuple[str, ...]  # of the classes
    build: Build  # the network
    flip: bool  # whether a mirror image keeps its label
    client_names: tuple[str, ...]  # where the data names its clients, and each keeps its own
    fingerprint: str | None  # of one's own pictures, which may change; official ones are checked when they are read

    @property
    def classes(self) -> int:
        return len(self.names)

    @property
    def picture(self) -> tuple[int, int, int]:
        _, channels, height, width = self.clients[0].images.shape
        return channels, height, width

    def place(self, tensor: Tensor) -> torch.device:
        """Where a tensor belongs: models with the pool, everything else where it is worked on."""
        return self.w0.device if tensor.shape == self.w0.shape else self.device

    @property
    def device(self) -> torch.device:
        return self.clients[0].images.device

    def models(self, world: World) -> list[list[Tensor]]:
        """Every client's personal models."""
        pairs = zip(self.clients, world.states, strict=True)
        asked = [self.method.personal(world.server, client, state, world.round) for client, state in pairs]
        return together(asked, self.courier.compute.work)

    def ready(self, world: World) -> World:
        return world

    def trained(self, round: int, world: World) -> set[int]:
        K = len(self.clients)
        return set(range(K)) if round == 0 else cohort(self.config.seed, round, K, some(self.config.sample_rate))

    def audited(self, labels: dict[int, Labels]) -> dict[str, Any]:
        return audit(labels, self.truth, self.classes)

    def sizes(self) -> list[dict[str, Any]]:
        return [sizes_of(share) for share in self.split.shares]

    def digest(self) -> str:
        return self.split.digest()

    def save_models(self, folder: Folder, world: World) -> None:
        write_models(folder.models, dict(enumerate(self.models(world))), pool_of(self.method, self.clients, world))

    def machine(self) -> dict[str, Any]:
        compute = self.courier.compute
        return {
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "compute": type(compute).__name__.lower(),
            "processes": compute.count if isinstance(compute, Workers) else 1,
        }

    def manifest(self) -> dict[str, Any]:
        return manifest_of(self, self.settings) | {"fingerprint": self.fingerprint}


def manifest_of(troupe: Troupe, settings: Any) -> dict[str, Any]:
    return {
        "config": as_json(troupe.config),
        "seed": troupe.config.seed,
        "settings": asdict(settings),
        "split_hash": troupe.digest(),
        "model_numbers": troupe.w0.numel(),
        "sources": sources(troupe.config),
        "classes": list(troupe.names),
        "client_names": list(troupe.client_names),
        "picture": list(troupe.picture),
        "machine": troupe.machine(),
        "versions": {
            "kithkin": kithkin.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def sizes_of(share: Share) -> dict[str, Any]:
    return {
        "labelled": len(share.labelled),
        "unlabelled": len(share.unlabelled),
        "val": len(share.val),
        "test": len(share.test),
        "label_ratio": share.label_ratio,
    }


def assemble(config: RunConfig, settings: Any, dataset: Dataset | None = None) -> Federation:
    """Load, deal, and set up every client."""
    entry_of(config.method)  # a wrong name is told before any data is read
    try:
        json.dumps(asdict(settings))
    except TypeError as e:
        problem = f"--method: a setting of {own.short(config.method)} can stand in no manifest ({e})."
        raise KithkinError(problem, "Let settings be numbers, words, and tuples of these.") from None
    config = in_full(config)
    device = pick_device(config.device)
    dataset = load(config.data, config.data_folder) if dataset is None else dataset
    K, pictures = some(config.clients), len(dataset.labels)
    check(settings, K)
    if some(config.batch_size) > max(1024, pictures):  # short batches are filled up, at no use and much cost
        raise bad("batch_size", config.batch_size, f"must not exceed the {pictures:,} pictures")
    split = split_of(dataset, K, config.alpha, config.seed, config.label_ratio)
    known = split.revealed() if sees_all_labels(settings) else split
    images = torch.from_numpy(dataset.images).to(device)
    labels = torch.from_numpy(dataset.labels).to(device)

    def rows(positions: np.ndarray) -> Tensor:
        return torch.from_numpy(positions).to(device)

    clients: list[Client] = []
    exams: list[Exam] = []
    for k, share in enumerate(known.shares):
        labelled = rows(share.labelled)
        clients.append(Client(k, images, labelled, labels[labelled], rows(share.unlabelled), config.seed))
        both = rows(np.concatenate([share.val, share.test]))
        exams.append(Exam(both, labels[both], len(share.val)))

    shape, classes = dataset.images.shape[1:], len(dataset.classes)
    build = builder(config.model, shape, classes, some(config.width))
    home = torch.device("cpu") if config.pool == "host" else device
    method = method_for(config, settings, anatomy_of(build, shape, classes), dataset.flip, home)
    w0 = initial_vector(build, config.seed).to(home)
    courier = LocalCourier(clients, exams, choose(config.compute, build, device, classes, config.precision), len(w0))
    truth = [labels[client.unlabelled] for client in clients]
    flip = config.flips(dataset.flip)
    names = dataset.clients if config.alpha == "given" else ()
    fingerprint = fingerprint_of(config.data, dataset)
    return Federation(
        config, settings, split, clients, truth, courier, method, w0, dataset.classes, build, flip, names, fingerprint
    )


def in_full(config: RunConfig) -> RunConfig:
    """With every value filled in, and names that are found again from any folder."""
    config = resolved(config.checked())
    folder = config.data_folder and own.expanded(config.data_folder).resolve()
    whole = {"method": own.whole(config.method), "model": own.whole(config.model), "data": whole_name(config.data)}
    return replace(config, data_folder=folder, **whole)


def fingerprint_of(data: str, dataset: Dataset) -> str | None:
    """A hash of the pictures and their labels; None for an official set, whose files are known by theirs."""
    if is_official(data):
        return None
    sha = hashlib.sha256(np.ascontiguousarray(dataset.images).data)
    sha.update(dataset.labels.astype("<i8").tobytes())
    return sha.hexdigest()


def must_be_same(manifest: dict[str, Any], classes: Sequence[str], picture: Sequence[int], fingerprint: str | None) -> None:
    """Refuse other classes or pictures than a run began with, as far as its manifest tells: its split knows labels alone."""
    now = {"classes": list(classes), "picture": list(picture), "fingerprint": fingerprint}
    if any(manifest.get(name, value) != value for name, value in now.items()):
        raise KithkinError("The data has other classes or pictures than when the run began.", "Bring back the same data files.")


def sources(config: RunConfig) -> dict[str, str | None]:
    """The sha256 of the files of a user's own model and method."""
    named = {what: getattr(config, what) for what in ("model", "method")}
    return {what: own.source_hash(name, f"--{what}") for what, name in named.items() if own.is_own(name)}


def pick_device(name: str) -> torch.device:
    """The device of this name, if it is here; auto: a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise KithkinError(f"There is no device '{name}'.", "Give --device auto, cpu, cuda or cuda:N.") from None
    if device.type not in ("cpu", "cuda"):
        raise KithkinError(f"Nothing here runs on '{name}'.", "Give --device auto, cpu, cuda or cuda:N.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise KithkinError("There is no CUDA device here.", "Give --device cpu, or install a CUDA build of torch.")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise KithkinError(f"There is no device '{name}'.", f"The last one here is cuda:{count - 1}; give another --device.")
    return device
