"""What can be asked of a compute, and how visits that ask are run together."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

Answer = TypeVar("Answer")
Outcome = TypeVar("Outcome")


class Job(Generic[Answer]):
    """Work for a compute. `await job` in a visit gives its answer."""

    def __await__(self) -> Generator[Sequence[Job[Any]], list[Any], Answer]:
        return (yield (self,))[0]


class all_of(Generic[Answer]):  # noqa: N801 - read at its call: await all_of(jobs)
    """Several jobs at once: `await all_of(jobs)` gives their answers in order."""

    def __init__(self, jobs: Iterable[Job[Answer]]) -> None:
        self.jobs = tuple(jobs)

    def __await__(self) -> Generator[Sequence[Job[Any]], list[Any], list[Answer]]:
        return (yield self.jobs) if self.jobs else []


@dataclass(frozen=True)
class Recipe:
    """How a model is trained in a fit. A method may have several: for its start, for clients that it knows, before evaluation.

    `alternate` passes over the labelled data, then over the unlabelled data with soft targets (Algorithm 1); `weighted` takes
    both losses in one step, mu_k and 1 - mu_k (1), `sum` both as they are; so does `fixmatch`, with labels of its own from
    weakly augmented pictures.
    """

    objective: Literal["alternate", "weighted", "sum", "fixmatch"]
    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.9
    prox: float = 0.0  # pull towards the anchor: FedProx's mu, pFedMe's lambda
    inner_steps: int = 1  # steps on each batch (pFedMe's K)
    anchor_rate: float = 0.0  # how far the anchor follows after each batch (pFedMe's eta * lambda); 0: it stays
    threshold: float = 0.95
    lambda_u: float = 1.0
    flip: bool = False
    views: Literal["plain", "weak", "strong"] = "plain"  # how given targets' pictures are shown; labelled ones at most weakly
    moved: float = 1.0  # the share of pictures that weak views of given targets move; the others stay as they are


@dataclass(frozen=True, eq=False)
class Lesson:
    """The data of one fit: rows of `images`, with classes for the labelled and soft targets for the unlabelled ones."""

    images: Tensor  # uint8 [N, C, H, W]
    labelled: Tensor  # int64 [n_s]: rows of images
    classes: Tensor  # int64 [n_s]
    unlabelled: Tensor  # int64 [n_u]
    targets: Tensor | None = None  # [n_u, C]; fixmatch finds its own
    weights: Tensor | None = None  # [n_u]: how much each target counts; None: fully


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit gives."""

    w: Tensor  # the trained model
    anchor: Tensor  # where an anchor that follows ended (pFedMe's local copy of w); `w` itself where none does
    loss: Tensor  # mean over the steps, a scalar that stays on the device
    p_u: Tensor | None = None  # [n_u, C]: what FixMatch took each unlabelled picture for when it last trained with it


@dataclass(frozen=True, eq=False)
class Fit(Job[Fitted]):
    """Train from `w` on a lesson. `key` addresses every random draw in it."""

    w: Tensor
    lesson: Lesson
    recipe: Recipe
    key: int


@dataclass(frozen=True, eq=False)
class Predict(Job[Tensor]):
    """Class probabilities [n, C]; with `passes` the mean over that many dropout passes (9).

    `shift` [C] is added to the logits: a client's own log prior, say, on a model that many share.
    """

    w: Tensor
    images: Tensor
    rows: Tensor
    passes: int = 0
    key: int = 0
    shift: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Read(Job[list[float]]):
    """Numbers [n] for the host. Those that several visits want are read in one go: the device is waited for once."""

    numbers: Tensor


def cost(job: Job[Any]) -> float:
    """About how much there is to do: pictures that go forward through the network. A step backward counts for two."""
    if isinstance(job, Fit):
        return 3 * (len(job.lesson.labelled) + len(job.lesson.unlabelled)) * job.recipe.epochs * job.recipe.inner_steps
    assert isinstance(job, Predict)
    return len(job.rows) * (1 + job.passes / 8)  # the trunk runs once


class Compute(Protocol):
    """A place where jobs are done."""

    def work(self, jobs: Sequence[Job[Any]]) -> list[Any]:
        """Do all the jobs, in any order or at once; answers in the order of the jobs."""
        ...


@runtime_checkable
class Ticking(Protocol):
    """A compute that says after every job how many of how many are done."""

    tick: Callable[[int, int], None]


def together(visits: Sequence[Coroutine[Any, Any, Outcome]], work: Callable[[Sequence[Job[Any]]], list[Any]]) -> list[Outcome]:
    """Run visits in step: all that they wait for at one moment is worked on at once."""
    outcomes: dict[int, Outcome] = {}
    answers: dict[int, list[Any] | None] = dict.fromkeys(range(len(visits)))
    try:
        while answers:
            asked: dict[int, Sequence[Job[Any]]] = {}
            for i, answer in answers.items():
                try:
                    asked[i] = visits[i].send(answer)
                except StopIteration as end:
                    outcomes[i] = end.value
            jobs = [job for jobs in asked.values() for job in jobs]
            reads = [job for job in jobs if isinstance(job, Read)]
            others = [job for job in jobs if not isinstance(job, Read)]
            done, told = iter(work(others) if others else []), iter(_read(reads))
            answers = {i: [next(told if isinstance(job, Read) else done) for job in jobs] for i, jobs in asked.items()}
    finally:
        for visit in visits:
            visit.close()
    return [outcomes[i] for i in range(len(visits))]


def _read(reads: Sequence[Read]) -> list[list[float]]:
    if not reads:
        return []
    parts = torch.cat([job.numbers for job in reads]).cpu().split([len(job.numbers) for job in reads])
    return [cast(list[float], part.tolist()) for part in parts]  # pyright: ignore[reportUnknownMemberType]
