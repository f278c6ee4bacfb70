"""A finished run's models and data, read back from its folder to be looked at."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kithkin.config import from_json
from kithkin.errors import KithkinError
from kithkin.methods import settings_from
from kithkin.own import is_own
from kithkin.record import Folder
from kithkin.record.assembling import Federation, assemble, must_be_same
from kithkin.record.looks import confusion, features
from kithkin.record.models import Models

PATIENCE = 4e13  # multiplications on a CPU that a report may take unasked, over all its runs: some ten seconds


def look_at(folder: Folder, manifest: dict[str, Any], patience: float, remarks: list[str]) -> dict[str, Any]:
    """Confusion and latent features of a finished run; a remark where models or data are missing, or it takes too long."""
    seen: dict[str, Any] = {}

    def refuse(why: str) -> dict[str, Any]:
        remarks.append(f"{'Latent features' if seen else 'Confusion and latent features'} are not shown: {why}")
        return seen

    if not folder.models.exists():
        return refuse("the run kept no models (--no-save-models).")
    try:
        code = [name for what in ("model", "method") if is_own(name := str(manifest["config"].get(what)))]
        if code and patience < math.inf:  # a folder may be somebody else's: what it names is not run unasked
            return refuse(f"that runs {', '.join(code)}; --models always asks for it.")
        federation = assembled(manifest)
        federation.split.must_be(manifest["split_hash"])
        must_be_same(manifest, federation.names, federation.picture, federation.fingerprint)
        pictures = sum(len(exam.rows) - exam.val for exam in federation.courier.exams)
        pixels = federation.clients[0].images[0, 0].numel()
        if federation.device.type == "cpu" and pictures * pixels * federation.w0.numel() > patience:
            return refuse("that takes minutes here; --models always asks for it.")
        models = read_models(folder, federation.device)
        seen["confusion"] = confusion(federation, models)
        seen["features"] = features(federation, models)
    except KithkinError as e:
        return refuse(e.problem)
    except Exception as e:  # whatever a damaged file of models brings must not cost the page
        return refuse(f"models.safetensors cannot be used ({type(e).__name__}).")
    return seen


def assembled(manifest: dict[str, Any]) -> Federation:
    """The federation of a run, on the best device here."""
    config = from_json(manifest["config"])
    settings = settings_from(config.method, manifest["settings"])
    return assemble(replace(config, device="auto", compute="eager", pool="device"), settings)


def read_models(folder: Folder, device: torch.device) -> list[list[Tensor]]:
    """Every client's personal models."""
    models = Models(folder.models, device)
    return [models.personal(k) for k in sorted(models.clients)]
