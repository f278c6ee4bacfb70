"""A finished run, or a newcomer's folder, read back: what its pictures and classes are, and every client's models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kithkin.config import RunConfig, from_json, some
from kithkin.data import called, resolved
from kithkin.data import load as load_data
from kithkin.data.own import as_pictures, fits
from kithkin.errors import KithkinError
from kithkin.helpers import Helper
from kithkin.nets import Build, Network, builder, layout_of
from kithkin.own import expanded
from kithkin.record.assembling import pick_device
from kithkin.record.folder import Folder
from kithkin.record.models import Models
from kithkin.use.predicting import Predictions, ask, cast_votes

PASSES = 10  # dropout passes behind an entropy, where the run's method has no such setting


def load(folder: str | Path, device: str = "auto") -> LoadedRun:
    """A finished run, ready to answer."""
    home = Folder(expanded(folder))
    manifest = home.read_manifest()
    if not home.models.exists():
        if "terms" in manifest:
            raise KithkinError(f"{home.path} has no models: they are at the sites.", "Name a site's folder, state/run-...")
        if not home.summary.exists():
            raise KithkinError(
                f"{home.path} is not finished, and has no models yet.", f"`kithkin resume {home.path}` goes on with it."
            )
        raise KithkinError(
            f"{home.path} has no models.",
            f"`kithkin resume {home.path}` writes them, once there is no summary.json; a run with --no-save-models keeps none.",
        )
    try:
        config = resolved(from_json(manifest["config"]).checked())
        if "classes" not in manifest:  # a run from before the manifest told them
            dataset = load_data(config.data, config.data_folder)
            manifest |= {"classes": list(dataset.classes), "picture": list(dataset.images.shape[1:])}
        models = Models(home.models, pick_device(device))
        return LoadedRun(home, manifest, config, models, harmless(manifest["classes"]), tuple(manifest["picture"]))
    except (KeyError, TypeError, AttributeError) as e:
        raise KithkinError(f"{home.path} is not of this version of kithkin ({e!r}).", "Do the run anew.") from None


def harmless(names: Iterable[object]) -> tuple[str, ...]:
    """Names of a folder that may come from elsewhere, such that a terminal obeys none of them.

    >>> harmless(["cat", "\\x1b[31mdog"])
    ('cat', '\\\\x1b[31mdog')
    """
    return tuple(re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda control: f"\\x{ord(control[0]):02x}", str(name)) for name in names)


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run's models, and what they are for."""

    folder: Folder
    manifest: dict[str, Any]
    config: RunConfig
    models: Models
    classes: tuple[str, ...]
    picture: tuple[int, int, int]  # [C, H, W]

    def __repr__(self) -> str:
        clients = len(self.models.clients)
        told = f"{self.config.method} on {self.config.data}, {clients} client{'s' * (clients > 1)}"
        return f"LoadedRun({told}, in {self.folder.path})"

    @property
    def client_names(self) -> tuple[str, ...]:
        """Where the run's clients have any."""
        return harmless(self.manifest.get("client_names") or ())

    @property
    def passes(self) -> int:
        """T of the run."""
        return self.manifest["settings"].get("mc_samples", PASSES)

    @cached_property
    def build(self) -> Build:
        """Makes a network of the run's kind; a user's own is run from where the manifest says."""
        return builder(self.config.model, self.picture, len(self.classes), some(self.config.width))

    @cached_property
    def network(self) -> Network:
        return Network(self.build, self.models.device)

    @cached_property
    def lines(self) -> dict[int, dict[str, Any]]:
        """What the record says of each client."""
        return {line["client"]: line for line in self.folder.read_lines(self.folder.clients)}

    def client(self, who: int | str | None = None) -> LoadedClient:
        """One client, by its name, where it has one, or its number; without either the only client there is."""
        known, names = sorted(self.models.clients), self.client_names
        if who is None and len(known) == 1:
            return LoadedClient(self, known[0])
        named = [k for k in known if isinstance(who, str) and names[k : k + 1] == (who,)]  # which may be another's number
        meant = named or [k for k in known if str(who) == str(k)]
        if not meant:
            what = "No client is named." if who is None else f"There is no client {who}."
            where = f"from {known[0]} to {known[-1]}" if len(known) > 1 else f"{known[0]}"
            raise KithkinError(what, f"Give --client {where}{', or a name such as ' + names[0] if names else ''}.")
        return LoadedClient(self, meant[0])

    def batch(self, x: np.ndarray | Tensor) -> Tensor:
        """Pictures as the network takes them: uint8 [N, C, H, W] on its device, whichever layout came."""
        what = "The array"
        pictures = as_pictures(what, x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x))
        fits(what, pictures, self.picture)
        return torch.from_numpy(np.ascontiguousarray(pictures)).to(self.models.device)


@dataclass(frozen=True, eq=False)
class LoadedClient:
    """One client of a finished run: its personal model, and its helpers."""

    run: LoadedRun
    number: int

    def __repr__(self) -> str:
        return f"LoadedClient({self} of {self.run.folder.path})"

    def __str__(self) -> str:
        return called(self.number, self.run.client_names)

    @cached_property
    def weights(self) -> list[Tensor]:
        """The personal models as vectors; the mean of their outputs is the answer."""
        weights = self.run.models.personal(self.number)
        size = layout_of(self.run.build()).size
        if any(w.shape != (size,) for w in weights):
            raise KithkinError(
                f"{self.run.folder.models} holds models of another network than its manifest tells.", "Do the run anew."
            )
        return weights

    @cached_property
    def helpers(self) -> list[tuple[Helper, float]]:
        """The models on its helper list, as the pool has them, each with the relation that the run found; the best first."""
        listed = self.run.lines.get(self.number, {}).get("helpers", [])
        pooled = set(self.run.models.pooled)
        found = [(self.run.models.helper(h["client"]), float(h["relation"])) for h in listed if h["client"] in pooled]
        if not found and "site" in self.run.manifest:
            raise KithkinError(f"{self.run.folder.path} is a site's: its own model alone is kept there.", "Leave --vote away.")
        if not found:
            raise KithkinError(
                f"Client {self} of {self.run.folder.path} has no helpers: method {self.run.config.method} keeps no list "
                "of them, nobody else is there, or the run is from before their models were kept.",
                "Leave --vote away, or run um or um-plus.",
            )
        return found

    def predict(self, x: np.ndarray | Tensor, passes: int | None = None, vote: bool = False) -> Predictions:
        """Class, probability and entropy of each picture; `vote` asks the helpers too.

        Pictures are uint8, or floats in [0, 1], of shape [N, C, H, W], [N, H, W, C] or [N, H, W]. The entropy is that of the
        mean over `passes` dropout passes. A picture's answer does not depend on the pictures beside it.
        """
        pictures, T = self.run.batch(x), self.run.passes if passes is None else passes
        if T < 1:
            raise KithkinError(f"{T} dropout passes give no entropy.", "Give at least 1.")
        network, seed = self.run.network, self.run.config.seed
        answers = [ask(network, w, pictures, T, seed) for w in self.weights]
        plain = torch.stack([p for p, _ in answers]).mean(0)
        mean = torch.stack([p for _, p in answers]).mean(0)
        votes = None
        if vote:
            shift = self.run.models.shift(self.number)
            votes = cast_votes(self.helpers, [ask(network, h.w, pictures, T, seed, shift)[1] for h, _ in self.helpers])
        return Predictions.of(self.run.classes, plain, mean, votes)
