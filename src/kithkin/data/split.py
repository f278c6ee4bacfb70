"""Dealing a data set to K clients: 70/10/20, by Dirichlet label skew or as it says itself, and a label ratio per client."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from kithkin.config import Alpha, bad
from kithkin.data.dataset import Dataset, called
from kithkin.errors import KithkinError
from kithkin.rng import generator

DRAWS = 100
_ROLES = ("labelled", "unlabelled", "val", "test")


@dataclass(frozen=True, eq=False)
class Share:
    """One client's pictures, as positions (int64) in the data set."""

    labelled: np.ndarray
    unlabelled: np.ndarray
    val: np.ndarray
    test: np.ndarray

    @property
    def train(self) -> np.ndarray:
        """All training pictures: the labelled ones, then the others."""
        return np.concatenate([self.labelled, self.unlabelled])

    @property
    def label_ratio(self) -> float:
        """mu_k, equation (2)."""
        return len(self.labelled) / max(1, len(self.labelled) + len(self.unlabelled))


@dataclass(frozen=True, eq=False)
class Split:
    """Who has which pictures."""

    shares: tuple[Share, ...]
    of: bytes = b""  # what it was made from, where it would be the same with other labels

    def digest(self) -> str:
        """A sha256 that two splits share only if they deal the same pictures in the same order and roles."""
        sha = hashlib.sha256(self.of)
        for share in self.shares:
            for role in _ROLES:
                positions = getattr(share, role)
                sha.update(f"{role} {len(positions)}\n".encode())
                sha.update(positions.astype("<i8").tobytes())
        return sha.hexdigest()

    def must_be(self, digest: str) -> None:
        """Refuse to be another than a run began with."""
        if self.digest() != digest:
            raise KithkinError("The data gives another split than when the run began.", "Bring back the same data files.")

    def revealed(self) -> Split:
        """The same split with every training picture labelled, for the fully supervised methods."""
        return Split(tuple(Share(share.train, share.train[:0], share.val, share.test) for share in self.shares))


def class_counts(positions: list[np.ndarray], labels: np.ndarray, classes: int) -> np.ndarray:
    """Pictures per client (row) and class (column)."""
    return np.array([np.bincount(labels[mine], minlength=classes) for mine in positions])


def split_of(dataset: Dataset, clients: int, alpha: Alpha | None, seed: int, label_ratio: float | None = None) -> Split:
    """By class with this alpha, or as the data says whose its pictures are."""
    if isinstance(alpha, float | int):
        return deal(dataset.labels, clients, alpha, seed, label_ratio, dataset.name)
    remedy = "Give a number as alpha, and they are dealt by class; to go on with a run, bring back the same data files."
    if dataset.owners is None:
        raise KithkinError(f"{dataset.name} does not say whose its pictures are.", remedy)
    owners = int(dataset.owners.max()) + 1
    if owners != clients:
        problem = f"The pictures of {dataset.name} belong to {owners} clients, not {clients}."
        raise KithkinError(problem, f"Leave --clients out. {remedy}")
    shares: list[Share] = []
    for k in range(clients):
        own = generator(seed, "split", "own", k).permutation(np.flatnonzero(dataset.owners == k))
        train, val, test = _parts(own)
        if not (len(train) and len(test)):
            problem = f"Client {called(k, dataset.clients)} of {dataset.name} has {len(own)} pictures."
            raise KithkinError(problem, "Give each client three or more, or leave it out.")
        shares.append(label_some(seed, k, label_ratio, train, val, test))
    return Split(tuple(shares), dataset.labels.astype("<i8").tobytes() + "\n".join(dataset.classes).encode())


def deal(
    labels: np.ndarray, clients: int, alpha: float, seed: int, label_ratio: float | None = None, name: str = "data"
) -> Split:
    """Deal all pictures; one p_c ~ Dir_K(alpha) per class deals its training, validation and test pictures alike."""
    _check(clients, alpha)
    order = generator(seed, "split", "shuffle").permutation(len(labels))
    train, val, test = parts = _parts(order)
    if not len(test):
        raise KithkinError(
            f"{name} has too few pictures: {len(labels)}.",
            f"Give at least {5 * clients - 2}: a fifth, rounded, is for testing, and each client needs one of these.",
        )
    if clients > min(len(train), len(test)):
        raise KithkinError(
            f"{clients} clients cannot share the {len(labels)} pictures of {name}: {len(test)} are for testing.",
            f"Use at most {min(len(train), len(test))} clients.",
        )
    by_class = [[part[labels[part] == c] for c in range(int(labels.max()) + 1)] for part in parts]
    needed = [True, len(val) >= clients, True]  # a set too small for a validation picture each may do without
    for attempt in range(DRAWS):
        rng = generator(seed, "split", "proportions", attempt)
        proportions = _dirichlet(rng, alpha, (len(by_class[0]), clients))
        counts = [_counts(proportions, np.array([len(have) for have in part]), rng) for part in by_class]
        if all(count.sum(0).all() for count, need in zip(counts, needed, strict=True) if need):
            dealt = (_hand_out(part, count) for part, count in zip(by_class, counts, strict=True))
            shares = (label_some(seed, k, label_ratio, *mine) for k, mine in enumerate(zip(*dealt, strict=True)))
            return Split(tuple(shares))
    raise KithkinError(
        f"With {clients} clients and alpha {alpha:g}, {DRAWS} draws on {name} each left a client without "
        "training, validation or test pictures.",
        "Use fewer clients or a larger alpha.",
    )


def _parts(shuffled: np.ndarray) -> list[np.ndarray]:
    """70% to train with, 10% to validate, 20% to test."""
    return np.split(shuffled, [round(0.7 * len(shuffled)), round(0.8 * len(shuffled))])


def _check(clients: int, alpha: float) -> None:
    if clients < 1:
        raise KithkinError(f"{clients} clients cannot share data.", "Use at least one client.")
    if not (math.isfinite(alpha) and alpha > 0):
        raise KithkinError(f"alpha {alpha} is no Dirichlet parameter.", "Use a number above 0, such as 0.5.")


def _dirichlet(rng: np.random.Generator, alpha: float, size: tuple[int, int]) -> np.ndarray:
    """Rows of Dir(alpha) by logarithms: Gamma(a) = Gamma(a + 1) * U^(1/a) underflows for small a, its log does not."""
    alpha = max(alpha, 1e-9)  # below that a row is one 1 among zeros anyway
    scores = np.log(rng.standard_gamma(alpha + 1, size)) + np.log1p(-rng.random(size)) / alpha
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def _counts(proportions: np.ndarray, pictures: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many pictures of each class (row) each client (column) gets: the running sum, rounded down, adds up exactly.

    A random offset per class makes the expected count exact; without it, the first clients always lose by the rounding.
    """
    running = np.cumsum(proportions, 1) * pictures[:, None] + rng.random((len(pictures), 1))
    bounds = np.minimum(np.floor(running).astype(np.int64), pictures[:, None])
    bounds[:, -1] = pictures
    return np.diff(bounds, prepend=0)


def _hand_out(by_class: list[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    piles = [np.split(have, np.cumsum(count)[:-1]) for have, count in zip(by_class, counts, strict=True)]
    return [np.concatenate(mine).astype(np.int64) for mine in zip(*piles, strict=True)]


def label_some(
    seed: int, client: int, label_ratio: float | None, train: np.ndarray, val: np.ndarray, test: np.ndarray
) -> Share:
    """The order is drawn before the ratio, so a larger ratio labels more pictures and never other ones."""
    if label_ratio is not None and not 0 <= label_ratio <= 1:
        raise bad("label_ratio", label_ratio, "must lie in [0, 1]")
    rng = generator(seed, "label", client)
    train = rng.permutation(train)
    ratio = _dirichlet(rng, 0.5, (1, 2))[0, 0] if label_ratio is None else label_ratio
    labelled = math.floor(ratio * len(train) + 0.5)
    return Share(train[:labelled], train[labelled:], val, test)
