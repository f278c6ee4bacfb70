"""What a client's model says of pictures, how sure it is, and what its helpers would say.

Class and probability are those of the model as it is evaluated; the entropy (10) is that of the mean over T dropout passes (9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kithkin import rng
from kithkin.compute.eager import CHUNK
from kithkin.compute.loss import centred, scaled
from kithkin.helpers import Helper, entropy, least_uncertain, vote
from kithkin.nets import Network


@dataclass(frozen=True, eq=False)
class Vote:
    """What the helpers make of each picture."""

    probabilities: np.ndarray  # [N, C]
    who: np.ndarray | None  # [N], the helper whose answer it is; None: all of them together

    @property
    def label(self) -> np.ndarray:
        return self.probabilities.argmax(1)


@dataclass(frozen=True, eq=False)
class Predictions:
    """One answer for each picture, in the order of the pictures."""

    names: tuple[str, ...]  # of the classes
    probabilities: np.ndarray  # [N, C]
    entropy: np.ndarray  # [N], from 0 (certain) to the logarithm of the number of classes
    vote: Vote | None = None

    @classmethod
    def of(cls, names: tuple[str, ...], plain: Tensor, passes: Tensor, vote: Vote | None = None) -> Predictions:
        return cls(names, plain.cpu().numpy(), entropy(passes).cpu().numpy(), vote)

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def label(self) -> np.ndarray:
        """The class of each picture, by number."""
        return self.probabilities.argmax(1)

    @property
    def classes(self) -> list[str]:
        """The class of each picture, by name."""
        return [self.names[c] for c in self.label]

    @property
    def probability(self) -> np.ndarray:
        """Of that class."""
        return self.probabilities.max(1)

    def rows(self) -> list[dict[str, Any]]:
        """One flat line a picture, for a table."""
        rows: list[dict[str, Any]] = [
            {"class": name, "probability": round(float(p), 4), "entropy": round(float(h), 4)}
            for name, p, h in zip(self.classes, self.probability, self.entropy, strict=True)
        ]
        if self.vote:
            for i, row in enumerate(rows):
                p = self.vote.probabilities[i]
                row |= {"vote": self.names[int(p.argmax())], "vote_probability": round(float(p.max()), 4)}
                if self.vote.who is not None:
                    row["vote_of"] = int(self.vote.who[i])
        return rows


@torch.no_grad()
def ask(
    network: Network, w: Tensor, pictures: Tensor, passes: int, seed: int, shift: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Class probabilities [N, C] as evaluated, and their mean over dropout passes.

    Every picture meets the same masks, so that its answer does not depend on its neighbours.
    """
    network.load(w)
    network.module.eval()
    keys = rng.key(seed, "predict") + torch.arange(passes, device=network.device)
    plain: list[Tensor] = []
    mean: list[Tensor] = []
    for part in pictures.split(CHUNK):
        x = centred(scaled(part))
        logits = torch.stack([network(x).float(), *network.passes(x, keys[:, None].expand(-1, len(x))).float()])
        p = (logits if shift is None else logits + shift).softmax(2)
        plain.append(p[0])
        mean.append(p[1:].mean(0))
    return torch.cat(plain), torch.cat(mean)


def cast_votes(helpers: Sequence[tuple[Helper, float]], answers: Sequence[Tensor]) -> Vote:
    """The helpers' label by the run's own rule: the least uncertain answer (11), as `um` takes it; with evidence behind the
    models, as in `um-plus`, their mean answer, weighed by relation x evidence (there, without the common model's voice)."""
    if any(h.evidence for h, _ in helpers):
        return Vote(vote(answers, [relation * h.evidence for h, relation in helpers]).cpu().numpy(), None)
    p, who = least_uncertain(answers)
    named = np.array([h.client for h, _ in helpers])[who.cpu().numpy()]
    return Vote(p.cpu().numpy(), named)
