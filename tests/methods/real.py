"""Small federations of real networks on 8x8 pictures, for what must hold bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scripted import CPU
from torch import nn

from kithkin.compute import Eager
from kithkin.federation import Exam, LocalCourier, World, open_world, play
from kithkin.methods import METHODS, Client, Setting, Training
from kithkin.nets import ResNet9, initial_vector, layout_of

CLASSES = 3
TRAINING = Training(epochs=2, batch_size=4, lr=0.05, momentum=0.9, flip=True)


def plain() -> nn.Module:
    """No norm, no dropout."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def normed() -> nn.Module:
    """Batch norm and dropout, under names that say nothing."""
    conv = (nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(*conv, nn.Dropout(0.5), nn.Linear(12, CLASSES))


resnet9 = partial(ResNet9, 1, CLASSES, 2)


def clients_of(*parts: tuple[int, int], seed: int = 0) -> list[Client]:
    """Clients with so many labelled and unlabelled pictures, all in one tensor; a class is a bright band."""
    draw = np.random.default_rng(seed)
    total = sum(a + b for a, b in parts)
    classes = torch.from_numpy(draw.integers(0, CLASSES, total))
    images = torch.from_numpy(draw.integers(0, 120, (total, 1, 8, 8), dtype=np.uint8))
    for image, c in zip(images, classes, strict=True):
        image[0, 2 * int(c) : 2 * int(c) + 2] += 130
    found: list[Client] = []
    start = 0
    for k, (labelled, unlabelled) in enumerate(parts):
        rows = torch.arange(start, start + labelled + unlabelled)
        start += len(rows)
        found.append(Client(k, images, rows[:labelled], classes[rows[:labelled]], rows[labelled:], seed))
    return found


def method_of(name: str, build: Callable[[], nn.Module], training: Training = TRAINING, **changes: Any) -> Any:
    setting = Setting(layout=layout_of(build()), training=training, rounds=4, seed=0, device=CPU)
    return METHODS[name].make(replace(METHODS[name].settings, **changes), setting)


def exams_of(clients: Sequence[Client]) -> list[Exam]:
    """Each client is asked for its labelled pictures, and for the first picture of all."""
    first = torch.zeros(1, dtype=torch.int64)
    return [Exam(torch.cat([c.labelled, first]), torch.cat([c.classes, first]), len(c.labelled)) for c in clients]


def courier_of(clients: Sequence[Client], build: Callable[[], nn.Module]) -> LocalCourier:
    return LocalCourier(clients, exams_of(clients), Eager(build, CPU))


def simulate(method: Any, clients: Sequence[Client], build: Callable[[], nn.Module], cohorts: Sequence[set[int]]) -> World:
    """The world after a warm-up, if the method has one, and these cohorts' rounds."""
    courier = courier_of(clients, build)
    world = open_world(method, clients, initial_vector(build, 0))
    if method.opening_round:
        world, _ = play(method, courier, world, set(range(len(clients))))
    for trained in cohorts:
        world, _ = play(method, courier, world, trained)
    return world
