"""The models that a finished run keeps: every client's personal ones and, where there is one, the pool of helpers.

One safetensors file, in which several names may stand for one tensor. A helper list may hold an older version of a model than
the pool, and only the pool's is kept: it is what the next refresh (Algorithm 2) would bring.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kithkin.disk import write_whole
from kithkin.errors import KithkinError
from kithkin.federation import World
from kithkin.helpers import Helper
from kithkin.methods import Client, Method
from kithkin.methods.base import SERVER
from kithkin.methods.um_plus import UmPlus, um_in
from kithkin.record.folder import write_tensors


@dataclass(frozen=True, eq=False)
class Pooled:
    """The newest models that others may ask: by client, and under SERVER the common one, if any."""

    models: dict[int, Helper] = field(default_factory=dict)
    shifts: dict[int, list[float]] = field(default_factory=dict)  # what each client adds to their logits: its log prior


def pool_of(method: Method, clients: Sequence[Client], world: World) -> Pooled:
    """The pool of a run whose clients help each other; nothing for other methods."""
    um = um_in(method)
    if not um or um.M == 1:
        return Pooled()
    if not isinstance(method, UmPlus):
        return Pooled({k: Helper(k, newest.version, newest.w) for k, newest in enumerate(world.server.models)})
    server = world.server
    newest = zip(server.pool.models, server.evidence, strict=True)
    models = {k: Helper(k, model.version, model.w, evidence=behind) for k, (model, behind) in enumerate(newest)}
    models[SERVER] = Helper(SERVER, world.round, server.steady, evidence=server.behind)
    states = zip(clients, world.states, strict=True)
    return Pooled(models, {client.number: method.log_prior(client, state.votes).tolist() for client, state in states})


def write_models(path: Path, personal: Mapping[int, Sequence[Tensor]], pool: Pooled) -> None:
    """All of them; clients with the same model name the same tensor."""
    names: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}

    def name(w: Tensor) -> str:
        if id(w) not in names:
            names[id(w)] = f"model-{len(names):04d}"
            tensors[names[id(w)]] = w
        return names[id(w)]

    about: dict[str, Any] = {"clients": {k: [name(w) for w in models] for k, models in personal.items()}}
    if pool.models:
        about["pool"] = {k: {"model": name(h.w), "version": h.version, "evidence": h.evidence} for k, h in pool.models.items()}
        about["shifts"] = pool.shifts
    write_whole(path, lambda draft: write_tensors(draft, tensors, {k: json.dumps(v) for k, v in about.items()}))


class Models:
    """A run's file of models; a tensor is read when it is asked for."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path = path
        self.device = device
        with self._open() as file:
            told = file.metadata() or {}
        try:
            about = {k: json.loads(v) for k, v in told.items()}
            self.clients: dict[int, list[str]] = {int(k): names for k, names in about["clients"].items()}
            self._pool: dict[int, dict[str, Any]] = {int(k): line for k, line in about.get("pool", {}).items()}
            self._shifts: dict[int, list[float]] = {int(k): shift for k, shift in about.get("shifts", {}).items()}
        except (KeyError, AttributeError, ValueError):
            remedy = "Bring back the file that the run wrote, or do the run anew in another --out."
            raise KithkinError(f"{path} does not say whose its models are.", remedy) from None
        self._read: dict[str, Tensor] = {}

    def _open(self) -> Any:
        try:
            return safe_open(str(self.path), "pt", device=str(self.device))
        except FileNotFoundError:  # safetensors says so, too, of what may not be read
            raise KithkinError(
                f"There is no {self.path}, or it may not be read.", "Finish the run, without --no-save-models."
            ) from None
        except (OSError, SafetensorError) as e:
            raise KithkinError(f"{self.path} cannot be read ({e}).", "Do the run anew in another --out.") from None

    def tensor(self, name: str) -> Tensor:
        if name not in self._read:
            with self._open() as file:
                self._read[name] = file.get_tensor(name)
        return self._read[name]

    def personal(self, client: int) -> list[Tensor]:
        """The client's models, the mean of whose outputs is its answer."""
        return [self.tensor(name) for name in self.clients[client]]

    @property
    def pooled(self) -> list[int]:
        """Whose models are in the pool."""
        return list(self._pool)

    def helper(self, client: int) -> Helper:
        """A model of the pool."""
        line = self._pool[client]
        return Helper(client, line["version"], self.tensor(line["model"]), evidence=line["evidence"])

    def shift(self, client: int) -> Tensor | None:
        """What the client adds to the logits of models of the pool."""
        shift = self._shifts.get(client)
        return None if shift is None else torch.tensor(shift, device=self.device)
