"""What is seen of the trained models right after a run: what they confuse, how they see, and who should help whom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from kithkin import rng
from kithkin.compute import Predict
from kithkin.config import some
from kithkin.federation import World
from kithkin.helpers import relation
from kithkin.helpers.relation import Terms
from kithkin.nets import Network, ResNet9
from kithkin.record.run import Federation

POINTS = 1000  # pictures of a t-SNE
PAIRS = 1500  # of the scatter of relations; rank correlations take them all


def look_at(federation: Federation, world: World, looks: frozenset[str]) -> dict[str, Any]:
    """The confusion matrix of all clients on their own test pictures, and the further looks that are asked for."""
    models = federation.models(world)
    seen: dict[str, Any] = {"confusion": confusion(federation, models)}
    if "features" in looks:
        seen["features"] = features(federation, models, len(seen["confusion"]))
    if "relation" in looks:
        seen["relation"] = relations(federation, [own[0] for own in models])
    return seen


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

    right = [  # of each client's own validation pictures, with a prior of one half so that a single picture proves little
        (1 + float((p.argmax(1) == exam.classes[: exam.val]).sum())) / (2 + exam.val)
        for p, exam in zip(
            federation.courier.compute.work(
                [Predict(own[0], images, exam.rows[: exam.val]) for own, exam in zip(models, exams, strict=True)]
            ),
            exams,
            strict=True,
        )
    ]
    best = int(np.argmax(right))
    device = federation.device
    network = Network(partial(ResNet9, images.shape[1], classes, some(federation.config.width)), device)
    network.load(models[best][0])
    latent = hidden_features(network, images[rows[at.to(device)]])
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
    from kithkin.compute.loss import centred, scaled

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


def relations(federation: Federation, models: Sequence[Tensor]) -> dict[str, Any]:
    """Corr(k|j) of every pair by each of its terms, against the true accuracy of w_j on client k's test pictures.

    `rank` has each client's rank correlation over all others, averaged over clients; `pooled` that over all pairs at once;
    `chosen` the mean true accuracy of the models that a list would hold if it went by that term alone over the whole pool.
    """
    K, settings, compute = len(models), federation.settings, federation.courier.compute
    T, places = getattr(settings, "mc_samples", 10), min(getattr(settings, "helpers", 5) - 1, K - 1)
    terms: tuple[Terms, ...] = get_args(Terms)
    corr = {name: np.zeros((K, K)) for name in terms}
    true = np.zeros((K, K))
    for k, (client, exam) in enumerate(zip(federation.clients, federation.courier.exams, strict=True)):
        test, classes = exam.rows[exam.val :], exam.classes[exam.val :]
        unlabelled = [Predict(w, client.images, client.unlabelled, T, client.key("relation", j)) for j, w in enumerate(models)]
        others = [Predict(w, client.images, rows) for rows in (client.labelled, test) for w in models]
        answers = compute.work([*unlabelled, *others])
        p_u, p_s, p_test = (torch.stack(answers[i * K : (i + 1) * K]) for i in range(3))
        for name in terms:
            corr[name][k] = relation(p_u, p_s.argmax(2) == client.classes, client.mu, name).cpu().numpy()
        true[k] = (p_test.argmax(2) == classes).float().mean(1).cpu().numpy()

    strangers = ~np.eye(K, dtype=bool)
    best = {**corr, "truth": true}
    mean = {name: _mean_of_best(by, true, places) for name, by in best.items()}
    each = {
        name: [r for k in range(K) if (r := rank_correlation(by[k][strangers[k]], true[k][strangers[k]])) is not None]
        for name, by in corr.items()
    }
    sample = np.sort(rng.generator(federation.config.seed, "relation").permutation(int(strangers.sum()))[:PAIRS])
    return {
        "rank": {name: round(float(np.mean(found)), 4) if found else None for name, found in each.items()},
        "pooled": {name: rank_correlation(by[strangers], true[strangers]) for name, by in corr.items()},
        "chosen": mean | {"anyone": round(float(true[strangers].mean()), 4)},
        "pairs": {name: [round(float(v), 3) for v in by[strangers][sample]] for name, by in {**corr, "truth": true}.items()},
    }


def _mean_of_best(by: np.ndarray, true: np.ndarray, places: int) -> float:
    """The mean true accuracy of every client's `places` best others."""
    best = np.argsort(-by - np.where(np.eye(len(by)), -np.inf, 0), axis=1, kind="stable")[:, :places]
    return round(float(np.take_along_axis(true, best, 1).mean()), 4)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Spearman's, or None where one of them does not vary.

    >>> rank_correlation(np.array([1, 2, 9]), np.array([0.1, 0.2, 0.3]))
    1.0
    """
    if len(a) < 2 or not (np.ptp(a) and np.ptp(b)):
        return None
    value = float(spearmanr(a, b).statistic)  # pyright: ignore[reportAttributeAccessIssue]
    return None if math.isnan(value) else round(value, 4)
