"""The reference compute: one job after another, plain PyTorch, on the CPU or a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from kithkin.compute.jobs import Fit, Fitted, Job, Lesson, Predict
from kithkin.compute.loss import Half, centred, keep, scaled, step_loss, views
from kithkin.compute.plan import Batch, schedule
from kithkin.nets import Network

CHUNK = 512  # pictures per forward pass outside training


@contextmanager
def one_thread(device: torch.device) -> Generator[None, None, None]:
    """Sums that threads share round otherwise: on a CPU with one, a seed gives the same numbers on any number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if device.type == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Eager:
    """Does every job as its definition reads."""

    def __init__(self, build: Callable[[], nn.Module], device: torch.device) -> None:
        self.network = Network(build, device)
        self.device = device
        self.tick: Callable[[int, int], None] = lambda done, jobs: None  # told after every job: a display may hang on it

    def work(self, jobs: Sequence[Job[Any]]) -> list[Any]:
        answers: list[Any] = []
        for job in jobs:
            answers.append(self.fit(job) if isinstance(job, Fit) else self.predict(cast(Predict, job)))
            self.tick(len(answers), len(jobs))
        return answers

    def fit(self, job: Fit) -> Fitted:
        """SGD with momentum over the flat vector, with a pull towards an anchor that may follow (FedProx, pFedMe)."""
        net, recipe, lesson = self.network, job.recipe, job.lesson
        steps = schedule(len(lesson.labelled), len(lesson.unlabelled), recipe, job.key)
        n = net.layout.trained
        total = torch.zeros((), device=self.device)
        mu = torch.tensor(len(lesson.labelled) / max(1, len(lesson.labelled) + len(lesson.unlabelled)), device=self.device)
        net.load(job.w)
        anchor, speed = net.w[:n].clone(), torch.zeros_like(net.g)
        said: Tensor | None = None
        net.module.train()
        for number, step in enumerate(steps):
            labelled = step.labelled and self._half(lesson, step.labelled, True, job.key, number)
            unlabelled = step.unlabelled and self._half(lesson, step.unlabelled, False, job.key, number)
            seen = views(recipe, labelled, unlabelled)
            for _ in range(recipe.inner_steps):
                net.g.zero_()
                loss, p = step_loss(net, recipe, seen, mu)
                loss.backward()
                with torch.no_grad():
                    if recipe.prox:
                        net.g.add_(net.w[:n] - anchor, alpha=recipe.prox)
                    speed.mul_(recipe.momentum).add_(net.g)
                    net.w[:n].sub_(speed, alpha=recipe.lr)
                total += loss.detach()
                if unlabelled and p is not None:
                    said = p.new_zeros(len(lesson.unlabelled) + 1, p.shape[1]) if said is None else said
                    keep(said, unlabelled, p)
            if recipe.anchor_rate:
                anchor.lerp_(net.w[:n], recipe.anchor_rate)
        w = end = torch.empty_like(job.w)
        net.save(w)
        if recipe.anchor_rate:
            end = torch.empty_like(job.w)
            net.w[:n] = anchor
            net.save(end)
        return Fitted(w, end, total / max(1, len(steps) * recipe.inner_steps), None if said is None else said[:-1])

    def _half(self, lesson: Lesson, batch: Batch, labelled: bool, key: int, number: int) -> Half:
        at = torch.from_numpy(batch.rows).to(self.device)
        weights = torch.from_numpy(batch.weights).to(self.device)
        rows = (lesson.labelled if labelled else lesson.unlabelled)[at]
        targets = lesson.classes[at] if labelled else None if lesson.targets is None else lesson.targets[at]
        if not labelled and lesson.weights is not None:
            weights = weights * lesson.weights[at]
        keys = sample_keys(key, number * 2 + labelled, len(at), self.device)
        return Half(lesson.images[rows], targets, weights, keys, at)

    @torch.no_grad()
    def predict(self, job: Predict) -> Tensor:
        net = self.network
        net.load(job.w)
        net.module.eval()
        answers: list[Tensor] = []
        asked = job.rows if len(job.rows) else job.rows.new_zeros(1)  # not every network takes a batch of none
        for start in range(0, len(asked), CHUNK):
            rows = asked[start : start + CHUNK]
            x = centred(scaled(job.images[rows]))
            at = torch.arange(start, start + len(rows), device=self.device)
            keys = job.key + at + torch.arange(job.passes, device=self.device)[:, None] * len(job.rows)
            logits = (net.passes(x, keys) if job.passes else net(x)[None]).float()
            answers.append((logits if job.shift is None else logits + job.shift).softmax(2).mean(0))
        return torch.cat(answers)[: len(job.rows)]


def sample_keys(key: int, feed: int, size: int, device: torch.device) -> Tensor:
    """One key for each row of a batch; `feed` counts the batches of a fit."""
    return key + torch.arange(feed * size, (feed + 1) * size, device=device)
