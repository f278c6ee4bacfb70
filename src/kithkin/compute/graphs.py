"""GPU compute: training steps and predictions captured once as CUDA graphs, several clients in flight on lanes.

A lane is a stream with its own network in static memory. A whole fit is a tape of batches on the device that its graph walks
along by a counter, so the host only says "again". Nothing waits for the GPU but the caller who reads a number.
"""

# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kithkin.compute.jobs import Fit, Fitted, Job, Lesson, Predict, Recipe
from kithkin.compute.loss import Half, centred, scaled, step_loss
from kithkin.compute.plan import Batch, Step, schedule
from kithkin.nets import Network

ROWS = 256  # pictures per captured forward pass outside training
TAPE = 64  # steps a tape holds at first; it grows as needed


@dataclass(eq=False)
class Tape:
    """The batches of one kind, labelled or unlabelled, for all steps of a fit: static memory that a graph reads."""

    rows: Tensor  # [steps, B]
    weights: Tensor  # [steps, B]
    targets: Tensor  # [steps, B] classes or [steps, B, C] distributions

    def fill(self, lesson: Lesson, batches: Sequence[Batch | None], labelled: bool) -> None:
        there = [b for b in batches if b]
        if not there:
            return
        blank = Batch(np.zeros_like(there[0].rows), np.zeros_like(there[0].weights))
        device, n = self.rows.device, len(batches)
        at = torch.from_numpy(np.stack([(b or blank).rows for b in batches])).to(device, non_blocking=True)
        weights = torch.from_numpy(np.stack([(b or blank).weights for b in batches])).to(device, non_blocking=True)
        self.rows[:n] = (lesson.labelled if labelled else lesson.unlabelled)[at]
        self.weights[:n] = weights if labelled or lesson.weights is None else weights * lesson.weights[at]
        targets = lesson.classes if labelled else lesson.targets
        if targets is not None:
            self.targets[:n] = targets[at]

    def half(self, images: Tensor, step: Tensor, keys: Tensor, soft: bool | None) -> Half:
        """The batch of the step that the counter stands at."""
        rows, weights = self.rows.index_select(0, step)[0], self.weights.index_select(0, step)[0]
        targets = None if soft is None else self.targets.index_select(0, step)[0]
        return Half(images[rows], targets, weights, keys)


class Lane:
    """One network in static memory, its stream, and the graphs captured on it."""

    def __init__(self, build: Callable[[], nn.Module], device: torch.device, bf16: bool, classes: int) -> None:
        self.net = Network(build, device, bf16)
        self.device, self.classes = device, classes
        self.stream = torch.cuda.Stream(device)
        self.n = self.net.layout.trained
        self.speed = torch.zeros_like(self.net.g)
        self.anchor = torch.zeros_like(self.net.g)
        self.speeds, self.anchors = self.net.views(self.speed), self.net.views(self.anchor)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.key = torch.zeros((), dtype=torch.int64, device=device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self.mu = torch.zeros((), device=device)
        self.total = torch.zeros((), device=device)
        self.tapes: dict[bool, Tape] = {}
        self.rows = torch.zeros(ROWS, dtype=torch.int64, device=device)
        self.at = torch.zeros((), dtype=torch.int64, device=device)
        self.graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.pool = torch.cuda.graph_pool_handle()  # one for all: a lane's graphs never run at once

    # -- training

    def fit(self, job: Fit, w: Tensor, anchor: Tensor, loss: Tensor) -> None:
        """Put the whole fit on the stream; the answers land in `w`, `anchor`, `loss`."""
        lesson, recipe = job.lesson, job.recipe
        steps = schedule(len(lesson.labelled), len(lesson.unlabelled), recipe, job.key)
        self._make_tapes(len(steps), recipe.batch_size)
        self.tapes[True].fill(lesson, [s.labelled for s in steps], True)
        self.tapes[False].fill(lesson, [s.unlabelled for s in steps], False)
        graphs = [self._step_graph(job, step) for step in steps]
        self.net.load(job.w)
        self.anchor.copy_(self.net.w[: self.n])
        self.mu.fill_(len(lesson.labelled) / max(1, len(lesson.labelled) + len(lesson.unlabelled)))
        self.key.fill_(job.key)
        for buffer in (self.speed, self.step, self.total):
            buffer.zero_()
        for graph in graphs:
            graph.replay()
        self.net.save(w)
        self.net.w[: self.n] = self.anchor
        self.net.save(anchor)
        torch.div(self.total, max(1, len(steps) * recipe.inner_steps), out=loss)

    def _make_tapes(self, steps: int, batch: int) -> None:
        if self.tapes and self.tapes[True].rows.shape[0] >= steps and self.tapes[True].rows.shape[1] == batch:
            return
        size = (max(TAPE, 2 * steps), batch)
        for labelled in (True, False):
            targets = torch.zeros(*size, dtype=torch.int64) if labelled else torch.zeros(*size, self.classes)
            parts = (torch.zeros(*size, dtype=torch.int64), torch.zeros(*size), targets)
            self.tapes[labelled] = Tape(*(t.to(self.device) for t in parts))
        self.graphs.clear()  # they read the old tapes

    def _step_graph(self, job: Fit, step: Step) -> torch.cuda.CUDAGraph:
        recipe = replace(job.recipe, epochs=0)
        soft = job.lesson.targets is not None
        kind = (recipe, step.labelled is not None, step.unlabelled is not None, soft, job.lesson.images.data_ptr())
        if kind not in self.graphs:
            self.graphs[kind] = self._capture(lambda: self._train(recipe, job.lesson.images, *kind[1:4]))
        return self.graphs[kind][0]

    def _train(self, recipe: Recipe, images: Tensor, labelled: bool, unlabelled: bool, soft: bool) -> Tensor:
        """One step of SGD on every static buffer, then the counter moves on."""
        self.net.module.train()
        B = recipe.batch_size
        base = self.key + self.step * (2 * B) + torch.arange(B, device=self.device)
        half_s = self.tapes[True].half(images, self.step, base + B, False) if labelled else None
        half_u = self.tapes[False].half(images, self.step, base, True if soft else None) if unlabelled else None
        for _ in range(recipe.inner_steps):
            loss = step_loss(self.net, recipe, half_s, half_u, self.mu)
            parameters = self.net.parameters
            grads = [_like(g, p) for g, p in zip(torch.autograd.grad(loss, parameters), parameters, strict=True)]
            with torch.no_grad():
                if recipe.prox:
                    torch._foreach_add_(grads, torch._foreach_sub(parameters, self.anchors), alpha=recipe.prox)
                speeds = self.speeds if recipe.momentum else []
                plain = {"weight_decay": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": False}
                torch._fused_sgd_(parameters, grads, speeds, momentum=recipe.momentum, lr=recipe.lr, **plain)
                self.total += loss.detach()
        if recipe.anchor_rate:
            with torch.no_grad():
                self.anchor.lerp_(self.net.w[: self.n], recipe.anchor_rate)
        self.step += 1
        return self.total

    # -- prediction

    def predict(self, job: Predict, answer: Tensor) -> None:
        """Put the prediction on the stream, in passes of a fixed shape; it lands in `answer` [n, C]."""
        n = len(job.rows)
        self.net.load(job.w)
        self.key.fill_(job.key)
        self.count.fill_(n)
        kind = ("predict", job.passes, job.images.data_ptr())
        for start in range(0, n, ROWS):
            rows = job.rows[start : start + ROWS]
            self.rows[: len(rows)] = rows
            self.at.fill_(start)
            if kind not in self.graphs:
                self.graphs[kind] = self._capture(lambda: self._answer(job.images, job.passes))
            graph, p = self.graphs[kind]
            graph.replay()
            answer[start : start + len(rows)] = p[: len(rows)]

    @torch.no_grad()
    def _answer(self, images: Tensor, passes: int) -> Tensor:
        self.net.module.eval()
        x = centred(scaled(images[self.rows]))
        if not passes:
            return self.net(x).float().softmax(1)
        at = self.at + torch.arange(ROWS, device=self.device)
        keys = self.key + at + torch.arange(passes, device=self.device)[:, None] * self.count
        return self.net.passes(x, keys).float().softmax(2).mean(0)

    def _capture(self, run: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Warm up, then capture; what the rehearsals did to the static buffers is undone."""
        kept = [(b, b.clone()) for b in (self.net.w, self.speed, self.anchor, self.step, self.total)]
        for _ in range(3):
            run()
        self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            out = run()
        for buffer, before in kept:
            buffer.copy_(before)
        return graph, out


def _like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient, laid out in memory as its parameter: the fused step asks for that."""
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)


class Graphs:
    """Jobs spread over lanes. Answers are tensors that are ready when the caller's stream reaches them."""

    def __init__(
        self, build: Callable[[], nn.Module], device: torch.device, classes: int, bf16: bool = True, lanes: int = 10
    ) -> None:
        self.device, self.classes = device, classes
        self._make = lambda: Lane(build, device, bf16, classes)
        self.lanes = [self._make()]
        self.most = lanes

    def work(self, jobs: Sequence[Job[Any]]) -> list[Any]:
        while len(self.lanes) < min(self.most, len(jobs)):
            self.lanes.append(self._make())
        now = torch.cuda.current_stream(self.device)
        answers: list[Any] = [self._room(job) for job in jobs]
        for lane in self.lanes:
            lane.stream.wait_stream(now)
        for i, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
            lane = self.lanes[i % len(self.lanes)]
            with torch.cuda.stream(lane.stream):
                if isinstance(job, Fit):
                    lane.fit(job, answer.w, answer.anchor, answer.loss)
                elif isinstance(job, Predict):
                    lane.predict(job, answer)
        for lane in self.lanes:
            now.wait_stream(lane.stream)
        return answers

    def _room(self, job: Job[Any]) -> Any:
        """Where the answer will lie, taken on the caller's stream."""
        if isinstance(job, Fit):
            return Fitted(torch.empty_like(job.w), torch.empty_like(job.w), torch.zeros((), device=self.device))
        assert isinstance(job, Predict)
        return torch.empty(len(job.rows), self.classes, device=self.device)
