"""CPU compute: jobs spread over worker processes, each the reference compute with one thread.

Batches are small: two cores that train two clients do more than two that share one. Which worker does a job changes no bit of
its answer. Pictures are not copied: workers look at the parent's. A model crosses on a desk, memory that its worker and the
parent share: one copy in and one out, microseconds where a job takes milliseconds, and an answer is the caller's own memory.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor, nn

from kithkin import own
from kithkin.compute.eager import Eager
from kithkin.compute.jobs import Fit, Fitted, Job, Lesson, Predict, cost
from kithkin.errors import KithkinError

CPU = torch.device("cpu")
REMEDY = "If memory is short, OMP_NUM_THREADS=1 before `kithkin resume` makes do with one process, as --compute eager does."


def start_method() -> str:
    """How workers come to life.

    A fork is there at once, has whatever closure builds the network, and sees the pictures where they lie. It is safe because a
    worker computes with one thread: it needs none of the threads that do not survive a fork. On macOS the system's libraries
    break in a fork, and autograd refuses one where it may have threads for a GPU: there workers are spawned. That takes seconds
    to import torch, and the network's builder must be known by name; so nobody gets it without asking.
    """
    return "fork" if sys.platform == "linux" and not torch.cuda.is_available() else "spawn"


class Workers:
    """Spreads jobs over processes. They start with the first job, and anew where jobs come with other pictures."""

    def __init__(self, build: Callable[[], nn.Module], count: int) -> None:
        self.build = build
        self.count = count
        self.tick: Callable[[int, int], None] = lambda done, jobs: None  # told after every job: a display may hang on it
        self._pictures: dict[int, Tensor] = {}  # by identity; held, so that no other tensor takes it over
        self._crew: list[Worker] = []
        weakref.finalize(self, _dismiss, self._crew, os.getpid())

    def work(self, jobs: Sequence[Job[Any]]) -> list[Any]:
        if not jobs:
            return []
        pictures = {id(p): p for p in map(_pictures_of, jobs)}
        try:
            if not self._crew or not pictures.keys() <= self._pictures.keys():
                self._hire(pictures, len(_model_of(jobs[0])))
            return self._spread(jobs)
        except BaseException:  # whoever comes next must not get the answers that are still on their way
            self.close()
            raise

    def close(self) -> None:
        """End the processes; more work would start new ones."""
        _dismiss(self._crew, os.getpid())

    def _hire(self, pictures: dict[int, Tensor], size: int) -> None:
        self.close()
        self._pictures = pictures
        unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # workers keep it blocked: Ctrl-C is the parent's
        try:
            for _ in range(self.count):
                self._crew.append(Worker(self.build, pictures, size))
        except OSError as e:
            raise KithkinError(f"No worker process can be started ({e}).", REMEDY) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)

    def _spread(self, jobs: Sequence[Job[Any]]) -> list[Any]:
        """Whoever is free takes the longest job that waits."""
        waiting = sorted(range(len(jobs)), key=lambda i: cost(jobs[i]))
        answers: dict[int, Any] = {}
        busy: dict[Connection, tuple[Worker, int]] = {}
        free = list(self._crew)
        while waiting or busy:
            for worker in free[: len(waiting)]:
                busy[worker.line] = worker, (i := waiting.pop())
                worker.give(jobs[i])
            free = []
            for line in wait(list(busy)):
                worker, i = busy.pop(line)  # pyright: ignore[reportArgumentType]
                answers[i] = worker.take()
                free.append(worker)
                self.tick(len(answers), len(jobs))
        return [answers[i] for i in range(len(jobs))]


class Worker:
    """A process, the line to it, and its desk."""

    def __init__(self, build: Callable[[], nn.Module], pictures: Mapping[int, Tensor], size: int) -> None:
        method = start_method()
        context: Any = multiprocessing.get_context(method)
        self.desk = torch.frombuffer(mmap.mmap(-1, 2 * size * 4), dtype=torch.float32).view(2, size)  # a model, its anchor
        self.line, theirs = context.Pipe()
        inherited = self.line if method == "fork" else None
        self.process = context.Process(target=_serve, args=(theirs, inherited, build, self.desk, pictures), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # "multi-threaded, use of fork()": see start_method
            self.process.start()
        theirs.close()  # so that a dead worker is noticed

    def give(self, job: Job[Any]) -> None:
        """Lay the model on the desk and say the rest; as arrays, since torch would open a file for every tensor said."""
        self.desk[0] = _model_of(job)
        if isinstance(job, Fit):
            parts = {k: v.numpy() for k, v in vars(job.lesson).items() if k != "images" and v is not None}
            self._speak((id(job.lesson.images), parts, job.recipe, job.key))
        elif isinstance(job, Predict):
            shift = None if job.shift is None else job.shift.numpy()
            self._speak((id(job.images), job.rows.numpy(), (job.passes, shift), job.key))

    def _speak(self, words: Any) -> None:
        try:
            self.line.send(words)
        except OSError:
            raise self._death() from None

    def take(self) -> Any:
        """The answer, in memory that nobody else writes."""
        try:
            rows, answer = self.line.recv()
        except (EOFError, OSError):
            raise self._death() from None
        if isinstance(answer, BaseException):
            raise answer
        models = [row.clone() for row in self.desk[:rows]]
        if not models:
            return torch.tensor(answer)
        loss, p_u = (None if part is None else torch.tensor(part) for part in answer)
        assert loss is not None
        return Fitted(models[0], models[-1], loss, p_u)

    def _death(self) -> KithkinError:
        self.process.join(1)
        code = self.process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return KithkinError(f"A worker process died at its work ({how}).", REMEDY)


def _serve(
    line: Connection,
    inherited: Connection | None,
    build: Callable[[], nn.Module],
    desk: Tensor,
    pictures: Mapping[int, Tensor],
) -> None:
    """A worker's life, until the parent hangs up, however it ended. Nothing of the parent's is tidied up here."""
    if inherited:  # the parent's end: it would keep the line up when the parent is gone. Older workers' ends go with this one
        inherited.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    eager: Eager | None = None
    try:
        while True:
            images, given, how, key = line.recv()
            models: list[Tensor] = []
            try:
                eager = eager or Eager(build, CPU)
                if isinstance(given, dict):
                    lesson = Lesson(**{"images": pictures[images], **{k: torch.from_numpy(v) for k, v in given.items()}})
                    fitted = eager.fit(Fit(desk[0], lesson, how, key))
                    models = [fitted.w] if fitted.anchor is fitted.w else [fitted.w, fitted.anchor]
                    for row, model in zip(desk, models, strict=False):
                        row.copy_(model)
                    answer: Any = fitted.loss.numpy(), None if fitted.p_u is None else fitted.p_u.numpy()
                else:
                    passes, shift = how
                    shift = None if shift is None else torch.from_numpy(shift)
                    job = Predict(desk[0], pictures[images], torch.from_numpy(given), passes, key, shift)
                    answer = eager.predict(job).numpy()
            except Exception as error:
                error.add_note(f"In a worker process:\n{traceback.format_exc()}")
                answer = own.blamed(error)
            line.send((len(models), answer))
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)


def _dismiss(crew: list[Worker], parent: int) -> None:
    """End the workers. They hold nothing that is not the parent's, so there is nothing to wait for."""
    if os.getpid() != parent:
        return  # a fork of the parent: they are not its children
    for worker in crew:
        worker.process.kill()
    for worker in crew:
        worker.process.join()
        worker.process.close()
        worker.line.close()
    crew.clear()


def _model_of(job: Job[Any]) -> Tensor:
    assert isinstance(job, (Fit, Predict))
    return job.w


def _pictures_of(job: Job[Any]) -> Tensor:
    assert isinstance(job, (Fit, Predict))
    return job.lesson.images if isinstance(job, Fit) else job.images
