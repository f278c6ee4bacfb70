"""Which pictures to label next: those that the model is unsure of, and that are unlike each other.

As many clusters as labels can be had, by k-means weighed by entropy (10), of the pictures as the client's model sees them (what
reaches its last layer); of each cluster the picture nearest to its centre (Zhdanov, arXiv 1901.05954). The most uncertain ones
are often odd pictures that teach little: of each kind the typical one teaches more. Measured in docs/use.md.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kithkin.data import load as load_data
from kithkin.data.own import listing
from kithkin.data.picture import any_names
from kithkin.data.sources import is_official
from kithkin.data.split import split_of
from kithkin.errors import KithkinError
from kithkin.methods import sees_all_labels, settings_from
from kithkin.record.assembling import fingerprint_of, must_be_same
from kithkin.record.looks import hidden_features
from kithkin.use.loading import LoadedClient
from kithkin.use.predicting import Predictions

PER_ROW = 10  # pictures side by side on the contact sheet


@dataclass(frozen=True, eq=False)
class Advice:
    """The chosen pictures, the most wanted first, and what the model makes of them."""

    names: list[str]
    images: np.ndarray
    answers: Predictions


def own_pictures(client: LoadedClient) -> tuple[list[str], np.ndarray]:
    """The client's unlabelled pictures, as the run dealt them, with their names."""
    run, config = client.run, client.run.config
    if "split_hash" not in run.manifest:  # a newcomer's, or a site's
        raise KithkinError(f"{run.folder.path} has no split of its own.", "Name the pictures to choose from after it.")
    if sees_all_labels(settings_from(config.method, run.manifest["settings"])):
        raise KithkinError(f"{config.method} knows all labels: nothing is left to label.", "Name pictures to choose from.")
    dataset = load_data(config.data, config.data_folder)
    split = split_of(dataset, len(run.models.clients), config.alpha, config.seed, config.label_ratio)
    split.must_be(run.manifest["split_hash"])
    must_be_same(run.manifest, dataset.classes, dataset.images.shape[1:], fingerprint_of(config.data, dataset))
    share = split.shares[client.number]
    where = Path(config.data)
    files = listing(where).files if not is_official(config.data) and where.is_dir() else None
    names = [str(files[row]) if files else f"{config.data}[{row}]" for row in share.unlabelled]
    return names, dataset.images[share.unlabelled]


def advise(client: LoadedClient, names: list[str], images: np.ndarray, budget: int) -> Advice:
    """The `budget` pictures whose labels are worth most."""
    if budget < 1:
        raise KithkinError(f"A budget of {budget} buys no label.", "Give --budget 1 or more.")
    if not len(images):
        raise KithkinError(f"Client {client} has no unlabelled pictures.", "Name pictures to choose from.")
    answers = client.predict(images)
    chosen = typical(features(client, images), answers.entropy, budget)
    picked = Predictions(answers.names, answers.probabilities[chosen], answers.entropy[chosen])
    return Advice([names[i] for i in chosen], images[chosen], picked)


def features(client: LoadedClient, images: np.ndarray) -> np.ndarray:
    """How the client's models see pictures, side by side."""
    network, seen = client.run.network, []
    for w in client.weights:
        network.load(w)
        seen.append(hidden_features(network, client.run.batch(images)))
    return np.concatenate(seen, 1)


def typical(seen: np.ndarray, uncertainty: np.ndarray, budget: int) -> list[int]:
    """One picture of each of `budget` clusters, the heaviest cluster's first; the most uncertain ones where some are empty.

    >>> typical(np.array([[0.0], [0.1], [0.2], [9.0]]), np.array([0.1, 0.1, 0.1, 0.9]), 2)
    [3, 1]
    """
    from sklearn.cluster import KMeans  # here, because it is slow to import

    budget = min(budget, len(seen))
    weights = uncertainty if uncertainty.max() > 0 else np.ones_like(uncertainty)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer different pictures than clusters: some stay empty
        means: Any = KMeans  # its stubs know n_init as a string alone
        found = means(budget, n_init=4, random_state=0).fit(seen, sample_weight=weights)
    heaviest = np.argsort(-np.bincount(found.labels_, weights, minlength=budget), kind="stable")
    far = ((seen - found.cluster_centers_[found.labels_]) ** 2).sum(1)
    members = (np.flatnonzero(found.labels_ == j) for j in heaviest)
    chosen = [int(rows[far[rows].argmin()]) for rows in members if len(rows)]
    most_uncertain = np.argsort(-uncertainty, kind="stable").tolist()
    return list(dict.fromkeys([*chosen, *most_uncertain]))[:budget]


@any_names()
def contact_sheet(advice: Advice, title: str, out: Path) -> None:
    """The chosen pictures in their order, each with its number, the model's class and the entropy."""
    count = len(advice.names)
    columns, rows = min(PER_ROW, count), -(-count // PER_ROW)
    figure = Figure(figsize=(1.1 * max(columns, 5), 1.35 * rows + 0.5), layout="constrained")
    figure.suptitle(title, fontsize=10)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid:
        axes.set_axis_off()
    for i, (axes, picture) in enumerate(zip(grid, advice.images, strict=False)):
        if picture.shape[1] == 1:  # a signal: a line for each channel
            axes.plot(picture[:, 0].T, linewidth=0.8)
            axes.set_ylim(0, 255)
        else:
            axes.imshow(picture.transpose(1, 2, 0), cmap="gray", vmin=0, vmax=255)
        axes.set_title(f"{i + 1}: {advice.answers.classes[i]}?\nentropy {advice.answers.entropy[i]:.2f}", fontsize=7)
    figure.savefig(out, dpi=120, format="png")
