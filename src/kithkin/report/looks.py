"""What is seen of trained models: what they confuse, and how one of them sees; also from a run folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from kithkin import rng
from kithkin.compute import Predict
from kithkin.compute.loss import centred, scaled
from kithkin.config import from_json, some
from kithkin.errors import KithkinError
from kithkin.methods import METHODS
from kithkin.nets import Network, ResNet9
from kithkin.record import Folder
from kithkin.record.run import Federation, assemble

POINTS = 1000  # pictures of a t-SNE
PATIENCE = 4e13  # multiplications on a CPU that a report may take unasked: some ten seconds


def look_at(folder: Folder, manifest: dict[str, Any], whatever_it_takes: bool, remarks: list[str]) -> dict[str, Any]:
    """Confusion and latent features of a finished run; a remark where models or data are not to be had."""
    if not folder.models.exists():
        remarks.append("Confusion and latent features are not shown: the run kept no models (--save-models).")
        return {}
    try:
        federation = assembled(manifest)
        if federation.split.digest() != manifest.get("split_hash"):
            raise KithkinError("the data gives another split than when the run began.", "")
        pictures = sum(len(exam.rows) - exam.val for exam in federation.courier.exams)
        pixels = federation.clients[0].images[0, 0].numel()
        if not whatever_it_takes and federation.device.type == "cpu" and pictures * pixels * federation.w0.numel() > PATIENCE:
            remarks.append("Confusion and latent features are not shown: that takes minutes here; --models always asks for it.")
            return {}
        models = read_models(folder, federation.device)
        seen: dict[str, Any] = {"confusion": confusion(federation, models)}
        return seen | {"features": features(federation, models, len(seen["confusion"]))}
    except KithkinError as e:
        remarks.append(f"Confusion and latent features are not shown: {e.problem}")
    except Exception as e:  # whatever a damaged file of models brings must not cost the page
        remarks.append(f"Confusion and latent features are not shown: models.safetensors cannot be used ({type(e).__name__}).")
    return {}


def assembled(manifest: dict[str, Any]) -> Federation:
    """The federation of a run, on the best device here."""
    config = from_json(manifest["config"])
    settings = type(METHODS[config.method].settings)(**manifest["settings"])
    return assemble(replace(config, device="auto", compute="eager", pool="device"), settings)


def read_models(folder: Folder, device: torch.device) -> list[list[Tensor]]:
    """Every client's personal models."""
    with safe_open(str(folder.models), "pt", device=str(device)) as file:
        table: dict[str, list[str]] = json.loads(file.metadata()["clients"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    return [[tensors[name] for name in table[str(k)]] for k in range(len(table))]


def confusion(federation: Federation, models: Sequence[Sequence[Tensor]]) -> list[list[int]]:
    """Test pictures by true class (row) and predicted class (column), over all clients."""
    C = federation.classes
    total = torch.zeros(C * C, dtype=torch.int64)
    for client, exam, own in zip(federation.clients, federation.courier.exams, models, strict=True):
        answers = federation.courier.compute.work([Predict(w, client.images, exam.rows[exam.val :]) for w in own])
        said = torch.stack(answers).mean(0).argmax(1)
        total += torch.bincount(exam.classes[exam.val :] * C + said, minlength=C * C).cpu()
    return total.view(C, C).tolist()


def features(federation: Federation, models: Sequence[Sequence[Tensor]], classes: int) -> dict[str, Any]:
    """t-SNE of the last hidden layer: test pictures of all clients through the model of the client that does best on its own.

    Personal models have no space in common, so it is one model, as in the paper.
    """
    from sklearn.manifold import TSNE  # here, because it is slow to import

    exams, images = federation.courier.exams, federation.clients[0].images
    rows = torch.cat([exam.rows[exam.val :] for exam in exams])
    owners = torch.cat([torch.full((len(exam.rows) - exam.val,), k) for k, exam in enumerate(exams)])
    truth = torch.cat([exam.classes[exam.val :] for exam in exams])
    chosen = rng.generator(federation.config.seed, "features").permutation(len(rows))[:POINTS]
    at = torch.from_numpy(np.sort(chosen))
    jobs = [Predict(own[0], images, exam.rows[: exam.val]) for own, exam in zip(models, exams, strict=True)]
    right = [  # of each client's own validation pictures, with a prior of one half so that a single picture proves little
        (1 + float((p.argmax(1) == exam.classes[: exam.val]).sum())) / (2 + exam.val)
        for p, exam in zip(federation.courier.compute.work(jobs), exams, strict=True)
    ]
    best = int(np.argmax(right))
    network = Network(partial(ResNet9, images.shape[1], classes, some(federation.config.width)), federation.device)
    network.load(models[best][0])
    latent = hidden_features(network, images[rows[at.to(federation.device)]])
    spread = TSNE(perplexity=min(30.0, (len(at) - 1) / 3), init="pca", random_state=0).fit_transform(latent)
    return {
        "model_of": best,
        "x": [round(float(v), 2) for v in spread[:, 0]],
        "y": [round(float(v), 2) for v in spread[:, 1]],
        "class": truth.cpu()[at].tolist(),
        "client": owners[at].tolist(),
    }


@torch.no_grad()
def hidden_features(network: Network, pictures: Tensor) -> np.ndarray:
    """What reaches the last layer, without dropout."""
    module = network.module
    assert isinstance(module, ResNet9)
    module.eval()
    kept: list[Tensor] = []
    hook = module.head.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0].float().cpu()))
    try:
        for part in pictures.split(512):
            network(centred(scaled(part)))
    finally:
        hook.remove()
    return torch.cat(kept).numpy()
