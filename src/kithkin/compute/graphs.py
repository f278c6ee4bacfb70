"""GPU compute: training steps and predictions captured once as CUDA graphs, several clients in flight on lanes.

A lane is a stream with its own network in static memory. A whole fit is a tape of batches on the device that its graph walks
along by a counter, so the host only says "again". Nothing waits for the GPU but the caller who reads a number.
"""

# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from kithkin.compute.eager import Eager
from kithkin.compute.jobs import Fit, Fitted, Job, Lesson, Predict, Recipe, cost
from kithkin.compute.loss import Half, centred, keep, scaled, step_loss, views
from kithkin.compute.plan import Batch, Step, schedule
from kithkin.nets import Network
from kithkin.nets.fast import why_not

LANES = 5  # clients in flight: more of them only crowd one another out
SIZES = (256, 128, 64)  # pictures per captured forward pass outside training
TAPE = 64  # steps a tape holds at first; it grows as needed


@dataclass(eq=False)
class Tape:
    """The batches of one kind, labelled or unlabelled, for all steps of a fit: static memory that a graph reads."""

    at: Tensor  # [steps, B], where in the client's list
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
        self.at[:n] = at
        self.rows[:n] = (lesson.labelled if labelled else lesson.unlabelled)[at]
        self.weights[:n] = weights if labelled or lesson.weights is None else weights * lesson.weights[at]
        targets = lesson.classes if labelled else lesson.targets
        if targets is not None:
            self.targets[:n] = targets[at]

    def half(self, images: Tensor, step: Tensor, keys: Tensor, soft: bool | None) -> Half:
        """The batch of the step that the counter stands at."""
        at, rows, weights = (tape.index_select(0, step)[0] for tape in (self.at, self.rows, self.weights))
        targets = None if soft is None else self.targets.index_select(0, step)[0]
        return Half(images[rows], targets, weights, keys, at)


@dataclass(frozen=True, eq=False)
class Captured:
    """A graph, where its answer lies, and the memory beside the lane's own that it reads."""

    graph: torch.cuda.CUDAGraph
    answer: Tensor
    tables: Sequence[Any]


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
        self.mu = torch.zeros((), device=device)
        self.total = torch.zeros((), device=device)
        self.tapes: dict[bool, Tape] = {}
        self.said = torch.zeros(1, classes, device=device)  # FixMatch's answers; grows with the tapes
        self.feed = torch.zeros(3, SIZES[0], dtype=torch.int64, device=device)  # rows, first keys, their strides
        self.shift = torch.zeros(SIZES[0], classes, device=device)
        self.holds: Tensor | None = None  # the model that was loaded last, where nothing has trained it since
        self.descent: Any = None
        if self.net.low is not None:
            from kithkin.compute.descent import Descent

            self.descent = Descent([p.numel() for p in self.net.parameters], device)
        self.tables: list[Any] = []  # where the gradients lie, one table for each inner step of what is being captured
        self.gradients: list[list[Tensor]] = []
        self.graphs: dict[tuple[Any, ...], Captured] = {}
        self.pool = torch.cuda.graph_pool_handle()  # one for all: a lane's graphs never run at once

    def load(self, w: Tensor) -> None:
        if self.holds is not w:
            self.net.load(w)
            self.holds = w

    # -- training

    def fit(self, job: Fit, fitted: Fitted) -> None:
        """Put the whole fit on the stream; the answers land in `fitted`."""
        lesson, recipe = job.lesson, job.recipe
        steps = schedule(len(lesson.labelled), len(lesson.unlabelled), recipe, job.key)
        self._make_tapes(len(steps), recipe.batch_size)
        self.tapes[True].fill(lesson, [s.labelled for s in steps], True)
        self.tapes[False].fill(lesson, [s.unlabelled for s in steps], False)
        self.step.zero_()  # a rehearsal reads the tapes from where the counter stands
        graphs = [self._step_graph(job, step) for step in steps]
        self.load(job.w)
        self.holds = None
        self.anchor.copy_(self.net.w[: self.n])
        self.mu.fill_(len(lesson.labelled) / max(1, len(lesson.labelled) + len(lesson.unlabelled)))
        self.key.fill_(job.key)
        for buffer in (self.speed, self.step, self.total, self.said):
            buffer.zero_()
        for graph in graphs:
            graph.replay()
        self.net.save(fitted.w)
        if fitted.anchor is not fitted.w:
            self.net.w[: self.n] = self.anchor
            self.net.save(fitted.anchor)
        torch.div(self.total, max(1, len(steps) * recipe.inner_steps), out=fitted.loss)
        if fitted.p_u is not None:
            fitted.p_u.copy_(self.said[: len(fitted.p_u)])

    def _make_tapes(self, steps: int, batch: int) -> None:
        if self.tapes and self.tapes[True].rows.shape[0] >= steps and self.tapes[True].rows.shape[1] == batch:
            return
        size = (max(TAPE, 2 * steps), batch)
        for labelled in (True, False):
            targets = torch.zeros(*size, dtype=torch.int64) if labelled else torch.zeros(*size, self.classes)
            at, rows = torch.zeros(2, *size, dtype=torch.int64)
            self.tapes[labelled] = Tape(*(t.to(self.device) for t in (at, rows, torch.zeros(*size), targets)))
        self.said = torch.zeros(size[0] * batch + 1, self.classes, device=self.device)
        self.graphs.clear()  # they read the old tapes

    def _step_graph(self, job: Fit, step: Step) -> torch.cuda.CUDAGraph:
        recipe = replace(job.recipe, epochs=0)
        soft = job.lesson.targets is not None
        kind = (recipe, step.labelled is not None, step.unlabelled is not None, soft, job.lesson.images.data_ptr())
        return self._captured(kind, lambda: self._train(recipe, job.lesson.images, *kind[1:4])).graph

    def _train(self, recipe: Recipe, images: Tensor, labelled: bool, unlabelled: bool, soft: bool) -> Tensor:
        """One step of SGD on every static buffer, then the counter moves on."""
        self.net.module.train()
        B = recipe.batch_size
        base = self.key + self.step * (2 * B) + torch.arange(B, device=self.device)
        half_s = self.tapes[True].half(images, self.step, base + B, False) if labelled else None
        half_u = self.tapes[False].half(images, self.step, base, True if soft else None) if unlabelled else None
        seen = views(recipe, half_s, half_u)
        for inner in range(recipe.inner_steps):
            loss, p = step_loss(self.net, recipe, seen, self.mu)
            parameters = self.net.parameters
            free = [p for p in parameters if p.requires_grad]  # all, but where a network of one's own holds some still
            found = iter(torch.autograd.grad(loss, free, allow_unused=True, materialize_grads=True))
            grads = [_like(next(found), p) if p.requires_grad else torch.zeros_like(p) for p in parameters]
            with torch.no_grad():
                self.total += loss.detach()
                if half_u and p is not None:
                    keep(self.said, half_u, p)
                if self.descent:
                    self._descend(recipe, grads, inner)
                    continue
                if recipe.prox:
                    torch._foreach_add_(grads, torch._foreach_sub(parameters, self.anchors), alpha=recipe.prox)
                speeds = self.speeds if recipe.momentum else []
                plain = {"weight_decay": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": False}
                torch._fused_sgd_(parameters, grads, speeds, momentum=recipe.momentum, lr=recipe.lr, **plain)
        if recipe.anchor_rate:
            with torch.no_grad():
                self.anchor.lerp_(self.net.w[: self.n], recipe.anchor_rate)
        self.step += 1
        return self.total

    def _descend(self, recipe: Recipe, grads: list[Tensor], inner: int) -> None:
        """The fused step. Where the gradients will lie is known when the capture ends: only then can its table be filled."""
        self.gradients.append(grads)
        if not torch.cuda.is_current_stream_capturing():
            if inner == len(self.tables):
                self.tables.append(self.descent.table())
            self.tables[inner].fill(grads)
        buffers = (self.net.w, self.net.low, self.speed, self.anchor)
        self.descent.step(buffers, self.tables[inner], recipe.lr, recipe.momentum, recipe.prox)

    # -- prediction

    def predict(self, jobs: Sequence[Predict], answer: Tensor) -> None:
        """Put predictions of one model on the stream, those of one kind packed into passes of a fixed shape."""
        self.load(jobs[0].w)
        done = 0
        for _, group in groupby(jobs, _kind):
            done += self._ask(list(group), answer[done:])

    def _ask(self, jobs: Sequence[Predict], answer: Tensor) -> int:
        """The answers land at the head of `answer` [n, C]; tells how many they are."""
        passes, shifted = _kind(jobs[0])
        images, lengths = jobs[0].images, [len(job.rows) for job in jobs]
        first = np.concatenate([np.arange(n) + np.int64(job.key) for job, n in zip(jobs, lengths, strict=True)])
        keys = torch.from_numpy(np.stack([first, np.repeat(lengths, lengths)])).to(self.device, non_blocking=True)
        feed = torch.cat([torch.cat([job.rows for job in jobs])[None], keys])
        shifts = [job.shift.expand(n, -1) for job, n in zip(jobs, lengths, strict=True) if job.shift is not None]
        shift = torch.cat(shifts) if shifted else None
        start = 0
        for size in sizes(feed.shape[1]):
            n = min(size, feed.shape[1] - start)
            self.feed[:, :n] = feed[:, start : start + n]
            if shift is not None:
                self.shift[:n] = shift[start : start + n]
            kind = ("predict", size, passes, shifted, images.data_ptr())
            captured = self._captured(kind, partial(self._answer, images, size, passes, shifted))
            captured.graph.replay()
            answer[start : start + n] = captured.answer[:n]
            start += n
        return start

    @torch.no_grad()
    def _answer(self, images: Tensor, size: int, passes: int, shifted: bool) -> Tensor:
        self.net.module.eval()
        rows, first, stride = self.feed[:, :size]
        x = centred(scaled(images[rows]))
        keys = first + torch.arange(passes, device=self.device)[:, None] * stride
        logits = (self.net.passes(x, keys) if passes else self.net(x)[None]).float()
        return (logits + self.shift[:size] if shifted else logits).softmax(2).mean(0)

    def _captured(self, kind: tuple[Any, ...], run: Callable[[], Tensor]) -> Captured:
        """The graph of this kind; the first time it is rehearsed and captured, and what that did to the buffers undone."""
        if kind in self.graphs:
            return self.graphs[kind]
        kept = [(b, b.clone()) for b in (self.net.w, self.speed, self.anchor, self.step, self.total)]
        self.tables = []
        graph = torch.cuda.CUDAGraph()
        try:
            for _ in range(3):
                run()
            self.stream.synchronize()
            self.gradients.clear()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                answer = run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as e:
            raise UncapturableError(str(e).partition("\n")[0]) from e
        for table, grads in zip(self.tables, self.gradients, strict=True):
            table.fill(grads)
        self.gradients.clear()
        for buffer, before in kept:
            buffer.copy_(before)
        if self.net.low is not None:
            self.net.low.copy_(self.net.w)
        self.graphs[kind] = Captured(graph, answer, self.tables)
        return self.graphs[kind]


def sizes(n: int) -> list[int]:
    """Passes for n pictures: the largest that are filled, and one that takes the rest."""
    passes: list[int] = []
    while n > 0:
        passes.append(next((size for size in SIZES if size <= n), SIZES[-1]))
        n -= passes[-1]
    return passes


def _like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient, laid out in memory as its parameter: the fused steps ask for that."""
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)


class UncapturableError(Exception):
    """A network that CUDA graphs cannot hold: it asks the host in the middle, or allocates as it goes."""


class Graphs:
    """Jobs spread over lanes. Answers are tensors that are ready when the caller's stream reaches them.

    Models that come from host memory (`--pool host`) go back there, and then the call waits until they have arrived.
    A network that cannot be captured is left to the reference, and `say` tells so.
    """

    def __init__(
        self, build: Callable[[], nn.Module], device: torch.device, classes: int, bf16: bool = True, lanes: int = LANES
    ) -> None:
        self.device = device
        self.classes = classes
        self.bf16 = bf16
        self.most = lanes
        self.lanes: list[Lane] = []
        self._lane = lambda: Lane(build, device, bf16, classes)
        self._reference = lambda: Eager(build, device)
        self.instead: Eager | None = None
        self.say: Callable[[str], None] = lambda text: None

    def work(self, jobs: Sequence[Job[Any]]) -> list[Any]:
        if not self.instead:
            try:
                return self._work(jobs)
            except UncapturableError as e:
                torch.cuda.synchronize(self.device)
                self.lanes = []
                self.instead = self._reference()
                self.say(f"This network cannot be captured as a CUDA graph ({e}): going on without, in fp32 (--compute eager).")
        return self.instead.work(jobs)

    def _work(self, jobs: Sequence[Job[Any]]) -> list[Any]:
        if self.bf16 and not self.lanes and (reason := why_not()):
            self.say(f"Triton does not work here ({reason}): going on with PyTorch's own kernels, which are slower.")
        while len(self.lanes) < min(self.most, len(jobs)):
            self.lanes.append(self._lane())
        now = torch.cuda.current_stream(self.device)
        hands = deal(jobs, len(self.lanes))
        answers: list[Any] = [None] * len(jobs)
        rooms = [[self._room(jobs, piece, answers) for piece in hand] for hand in hands]
        for lane in self.lanes:
            lane.stream.wait_stream(now)
        for turn in range(max(map(len, hands), default=0)):
            for lane, hand, room in zip(self.lanes, hands, rooms, strict=True):
                with torch.cuda.stream(lane.stream):
                    for piece, answer in zip(hand[turn : turn + 1], room[turn : turn + 1], strict=True):
                        job = jobs[piece[0]]
                        if isinstance(job, Fit):
                            lane.fit(job, answer)
                        else:
                            lane.predict([cast(Predict, jobs[i]) for i in piece], answer)
        for lane in self.lanes:
            now.wait_stream(lane.stream)
        if any(isinstance(job, Fit) and job.w.device != self.device for job in jobs):
            now.synchronize()
        return answers

    def _room(self, jobs: Sequence[Job[Any]], piece: Sequence[int], answers: list[Any]) -> Any:
        """Where the answers will lie, taken on the caller's stream; those of one model's predictions side by side."""
        job = jobs[piece[0]]
        if isinstance(job, Fit):
            pinned = self.device.type == "cuda" and not job.w.is_cuda
            w = torch.empty_like(job.w, pin_memory=pinned)
            anchor = torch.empty_like(w, pin_memory=pinned) if job.recipe.anchor_rate else w
            guessed = job.recipe.objective == "fixmatch" and len(job.lesson.unlabelled)
            p_u = torch.empty(guessed, self.classes, device=self.device) if guessed else None
            answers[piece[0]] = Fitted(w, anchor, torch.zeros((), device=self.device), p_u)
            return answers[piece[0]]
        lengths = [len(cast(Predict, jobs[i]).rows) for i in piece]
        room = torch.empty(sum(lengths), self.classes, device=self.device)
        for i, part in zip(piece, room.split(lengths), strict=True):
            answers[i] = part
        return room


def deal(jobs: Sequence[Job[Any]], lanes: int) -> list[list[list[int]]]:
    """Which jobs each lane does, in pieces: the heaviest first, to whoever has least to do. A fit is a piece; so are
    predictions of one model, as many as are a small part of the whole."""
    fair = sum(map(cost, jobs)) / max(1, 4 * lanes)
    pieces: list[list[int]] = []
    costs: list[float] = []
    open_pieces: dict[tuple[int, ...], int] = {}
    for i, job in enumerate(jobs):
        kind = (id(job.w), id(job.images)) if isinstance(job, Predict) else (i,)
        at = open_pieces.get(kind)
        if at is None or costs[at] >= fair:
            open_pieces[kind] = at = len(pieces)
            pieces.append([])
            costs.append(0.0)
        pieces[at].append(i)
        costs[at] += cost(job)
    for piece in pieces:
        piece.sort(key=lambda i: _kind(jobs[i]))  # those of one kind side by side
    hands: list[list[list[int]]] = [[] for _ in range(lanes)]
    loads = [0.0] * lanes
    for at in sorted(range(len(pieces)), key=lambda at: -costs[at]):
        least = loads.index(min(loads))
        loads[least] += costs[at]
        hands[least].append(pieces[at])
    return hands


def _kind(job: Job[Any]) -> tuple[int, bool]:
    """What distinguishes predictions of one model that cannot share a pass: dropout passes, and whether logits are shifted."""
    return (job.passes, job.shift is not None) if isinstance(job, Predict) else (0, False)
