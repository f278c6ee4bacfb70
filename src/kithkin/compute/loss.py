"""The loss of one training step: what every compute differentiates.

CE on labelled pictures (4); KL(y^ || f) to soft pseudo labels on unlabelled ones (5); or FixMatch (Sohn et al., NeurIPS 2020,
eq. (3), (4)): the class of a weakly augmented picture, where it is certain, is the target of its strongly augmented twin.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kithkin.compute.jobs import Recipe
from kithkin.data import augment
from kithkin.nets import Network

STRONG = 0x2545F4914F6CDD1D  # tells the strong twin's dice from the weak one's


@dataclass(frozen=True)
class Half:
    """One step's labelled or unlabelled pictures, as they lie in memory."""

    pictures: Tensor  # uint8 [B, C, H, W]
    targets: Tensor | None  # classes [B], distributions [B, C], or none
    weights: Tensor  # [B], the weight of each picture in the mean
    keys: Tensor  # int64 [B]
    at: Tensor  # int64 [B], where they stand in the client's list


def scaled(pictures: Tensor) -> Tensor:
    """Bytes to [0, 1]."""
    return pictures.float() / 255


def centred(x: Tensor) -> Tensor:
    """[0, 1] to [-1, 1], what networks see. No statistics of anyone's data are needed."""
    return x * 2 - 1


@dataclass(frozen=True)
class Views:
    """What the network sees of a step's pictures, the same in all of its inner steps."""

    labelled: Half | None
    unlabelled: Half | None
    x: Tensor  # the labelled ones, then the others
    keys: Tensor
    asked: Tensor | None  # FixMatch's weakly augmented twins of the others


def views(recipe: Recipe, labelled: Half | None, unlabelled: Half | None) -> Views:
    """Every picture as it is shown, and FixMatch's twins."""
    fixmatch = recipe.objective == "fixmatch"
    halves = [half for half in (labelled, unlabelled) if half]
    xs: list[Tensor] = []
    asked = None
    if labelled:
        x = scaled(labelled.pictures)
        moved = fixmatch or recipe.views != "plain"
        xs.append(augment.weak(x, labelled.keys, recipe.flip, recipe.moved) if moved else x)
    if unlabelled:
        x = scaled(unlabelled.pictures)
        if fixmatch:
            asked = centred(augment.weak(x, unlabelled.keys, recipe.flip))
        if fixmatch or recipe.views == "strong":
            x = augment.strong(x, unlabelled.keys ^ STRONG, recipe.flip)
        elif recipe.views == "weak":
            x = augment.weak(x, unlabelled.keys, recipe.flip, recipe.moved)
        xs.append(x)
    return Views(labelled, unlabelled, centred(torch.cat(xs)), torch.cat([half.keys for half in halves]), asked)


def step_loss(network: Network, recipe: Recipe, seen: Views, mu: Tensor) -> tuple[Tensor, Tensor | None]:
    """The loss of one step, and the answers [B, C] that FixMatch took its labels from.

    `mu` is the client's labelled share, used by the weighted objective alone.
    """
    labelled, unlabelled = seen.labelled, seen.unlabelled
    p = certain = guess = None
    if seen.asked is not None:
        # The label is the model's answer as it would be evaluated: running statistics, no dropout.
        network.module.eval()
        with torch.no_grad():
            p = network(seen.asked).float().softmax(1)
        network.module.train()
        confidence, guess = p.max(1)
        certain = (confidence >= recipe.threshold).float()
    with network.throwing(seen.keys):
        logits = network(seen.x).float()
    log_f = functional.log_softmax(logits, 1)
    loss = torch.zeros((), device=log_f.device)
    if labelled:
        assert labelled.targets is not None
        own = -log_f[: len(labelled.keys)].gather(1, labelled.targets[:, None]).squeeze(1)
        loss = loss + (own * labelled.weights).sum() * (mu if recipe.objective == "weighted" else 1)
    if unlabelled:
        log_f = log_f[-len(unlabelled.keys) :]
        if guess is not None and certain is not None:
            far = -log_f.gather(1, guess[:, None]).squeeze(1) * certain * recipe.lambda_u
        else:
            assert unlabelled.targets is not None
            y = unlabelled.targets
            far = (torch.special.xlogy(y, y) - y * log_f).sum(1)  # KL(y^ || f)
        loss = loss + (far * unlabelled.weights).sum() * (1 - mu if recipe.objective == "weighted" else 1)
    return loss, p


def keep(said: Tensor, unlabelled: Half, p: Tensor) -> None:
    """Put a batch's answers to their pictures' rows of `said`; those of rows that only fill up, to its last one."""
    said.index_copy_(0, torch.where(unlabelled.weights > 0, unlabelled.at, len(said) - 1), p)
