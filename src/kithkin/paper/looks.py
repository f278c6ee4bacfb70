"""What is seen of the trained models right after a run: what they confuse, how they see, and who should help whom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from kithkin import rng
from kithkin.compute import Predict
from kithkin.federation import World
from kithkin.helpers import relation
from kithkin.helpers.relation import Terms
from kithkin.record.assembling import Federation
from kithkin.record.looks import confusion, features

PAIRS = 1500  # of the scatter of relations; rank correlations take them all


def look_at(federation: Federation, world: World, looks: frozenset[str]) -> dict[str, Any]:
    """The confusion matrix of all clients on their own test pictures, and the further looks that are asked for."""
    models = federation.models(world)
    seen: dict[str, Any] = {"confusion": confusion(federation, models)}
    if "features" in looks:
        seen["features"] = features(federation, models)
    if "relation" in looks:
        seen["relation"] = relations(federation, [own[0] for own in models])
    return seen


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
