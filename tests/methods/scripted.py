"""A federation without a network: models of seven numbers, and a compute that answers as the test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from kithkin.compute import Fit, Fitted, Predict, together
from kithkin.methods import METHODS, Client, Setting, Training
from kithkin.nets import layout_of

CPU = torch.device("cpu")
# The vector of this network: body | gamma, beta | head, head | running mean, running variance.
LAYOUT = layout_of(nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1), nn.Linear(1, 2, bias=False)))
# Seven numbers for UM+, which wants a bias in the last layer: body | head, head | bias, bias | running mean, running variance.
BIASED = layout_of(nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False), nn.Linear(1, 2)))
W0 = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0])
TRAINING = Training(epochs=2, batch_size=4, lr=0.125, momentum=0.5, flip=True)
SETTING = Setting(layout=LAYOUT, training=TRAINING, rounds=8, seed=0, device=CPU)


def make(name: str, **changes: Any) -> Any:
    """A method on the seven numbers, its settings changed."""
    settings = METHODS[name].settings
    setting = replace(SETTING, layout=BIASED) if name == "um-plus" else SETTING
    return METHODS[name].make(type(settings)(**{**vars(settings), **changes}), setting)


def client(number: int, labelled: int, unlabelled: int, seed: int = 0) -> Client:
    """A client whose pictures all show its number, and are all of class 0."""
    n = labelled + unlabelled
    rows = torch.arange(n)
    images = torch.full((max(1, n), 1, 1, 1), number, dtype=torch.uint8)
    return Client(number, images, rows[:labelled], torch.zeros(labelled, dtype=torch.int64), rows[labelled:], seed)


def asker(job: Fit | Predict) -> int:
    """Which client asks."""
    images = job.lesson.images if isinstance(job, Fit) else job.images
    return int(images[0, 0, 0, 0])


def unsure(job: Predict) -> Tensor:
    """Every class as likely as the other."""
    return torch.full((len(job.rows), 2), 0.5)


def fitted(w: Sequence[float] | Tensor, anchor: Tensor | None = None, loss: float = 0.0) -> Fitted:
    w = torch.as_tensor(w)
    return Fitted(w, w if anchor is None else anchor, torch.tensor(loss))


def adding(job: Fit) -> Fitted:
    """Client 0 adds 4, client 1 adds 8, client 2 adds 12 to every number; the anchor goes half the way."""
    step = 4.0 * (asker(job) + 1)
    return fitted(job.w + step, job.w + step / 2, loss=float(asker(job)))


@dataclass
class Scripted:
    """Does jobs as told, and writes down what it was asked for."""

    fit: Callable[[Fit], Fitted] = adding
    predict: Callable[[Predict], Tensor] = unsure
    fits: list[Fit] = field(default_factory=list)
    predicts: list[Predict] = field(default_factory=list)

    def work(self, jobs: Sequence[Any]) -> list[Any]:
        return [self._do(job) for job in jobs]

    def _do(self, job: Fit | Predict) -> Any:
        if isinstance(job, Fit):
            self.fits.append(job)
            answer, lesson = self.fit(job), job.lesson
            if job.recipe.objective == "fixmatch" and len(lesson.unlabelled):
                answer = replace(answer, p_u=self.predict(Predict(job.w, lesson.images, lesson.unlabelled)))
            return answer
        self.predicts.append(job)
        return self.predict(job)

    def run(self, visit: Coroutine[Any, Any, Any]) -> Any:
        """One visit alone."""
        return together([visit], self.work)[0]
