"""What is seen of trained models: what they confuse, and how one of them sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kithkin import rng
from kithkin.compute import Predict
from kithkin.compute.loss import centred, scaled
from kithkin.errors import KithkinError
from kithkin.nets import Network
from kithkin.nets.vector import LAYERS
from kithkin.record.assembling import Federation

POINTS = 1000  # pictures of a t-SNE


def confusion(federation: Federation, models: Sequence[Sequence[Tensor]]) -> list[list[int]]:
    """Test pictures by true class (row) and predicted class (column), over all clients."""
    total = None
    for client, exam, own in zip(federation.clients, federation.courier.exams, models, strict=True):
        answers = federation.courier.compute.work([Predict(w, client.images, exam.rows[exam.val :]) for w in own])
        p = torch.stack(answers).mean(0)
        pairs = exam.classes[exam.val :] * p.shape[1] + p.argmax(1)
        counts = torch.bincount(pairs, minlength=p.shape[1] ** 2).view(p.shape[1], -1)
        total = counts if total is None else total + counts
    assert total is not None
    return total.tolist()


def features(federation: Federation, models: Sequence[Sequence[Tensor]]) -> dict[str, Any]:
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

    asked = [Predict(own[0], images, exam.rows[: exam.val]) for own, exam in zip(models, exams, strict=True)]
    right = [  # of each client's own validation pictures, with a prior of one half so that a single picture proves little
        (1 + float((p.argmax(1) == exam.classes[: exam.val]).sum())) / (2 + exam.val)
        for p, exam in zip(federation.courier.compute.work(asked), exams, strict=True)
    ]
    best = int(np.argmax(right))
    device = federation.device
    network = Network(federation.build, device)
    network.load(models[best][0])
    latent = hidden_features(network, images[rows[at.to(device)]])
    if min(latent.shape) < 2:
        problem = f"t-SNE wants two test pictures and two features at least, not {' and '.join(map(str, latent.shape))}."
        raise KithkinError(problem, "Give more pictures, or a wider network.")
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
    module = network.module.eval()
    last = [m for m in module.modules() if isinstance(m, LAYERS)][-1:]
    if not last:
        raise KithkinError("The network has no linear or convolution layer.", "Give it a classifier, e.g. nn.Linear.")
    kept: list[Tensor] = []
    hook = last[0].register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0].float().flatten(1).cpu()))
    try:
        for part in pictures.split(512):
            network(centred(scaled(part)))
    finally:
        hook.remove()
    return torch.cat(kept).numpy()
