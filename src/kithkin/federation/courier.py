"""How clients are reached. The local courier has them all in this process."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from kithkin.compute import Compute, Fit, Predict, all_of, together
from kithkin.compute.jobs import Job
from kithkin.errors import KithkinError
from kithkin.federation.ledger import Ledger
from kithkin.methods.base import Brief, Client, Method, Reply


@dataclass(frozen=True, eq=False)
class Exam:
    """A client's validation and test pictures, which no method ever sees."""

    rows: Tensor  # validation, then test
    classes: Tensor
    val: int  # how many of them are for validation


class DivergedError(KithkinError):
    """A loss or an answer is no number any more. Whoever goes on with such a run meets the same again."""


def diverged(what: str) -> DivergedError:
    remedy = "Give a smaller --lr (or --finetune-lr, --tune-lr); `kithkin resume` would meet the same again."
    return DivergedError(f"{what} is not a number: training diverged.", remedy)


@dataclass(frozen=True)
class Marks:
    """Each client's accuracy; None where it has no such pictures."""

    val: list[float | None]
    test: list[float | None]


class Courier(Protocol):
    """Brings briefs to clients and their replies back, and has every client examine its personal model."""

    def visit(self, method: Method, states: Sequence[Any], briefs: Mapping[int, Brief]) -> dict[int, Reply]:
        """The replies of all clients that have a brief and could be reached."""
        ...

    def examine(self, method: Method, server: Any, states: Sequence[Any], round: int) -> Marks:
        """Every client's accuracy after a round."""
        ...

    def bill(self) -> dict[str, int]:
        """Bytes moved since the last bill, by cause."""
        ...


class LocalCourier:
    """All clients in this process, on one compute."""

    def __init__(self, clients: Sequence[Client], exams: Sequence[Exam], compute: Compute, size: int | None = None) -> None:
        self.clients = clients
        self.exams = exams
        self.compute = compute
        self.size = size  # of a model, where it is known
        self.ledger = Ledger()

    def work(self, jobs: Sequence[Job[Any]]) -> list[Any]:
        """What the compute answers. Of a tensor that is no model it would say nothing, or nothing that helps."""
        for shape in {job.w.shape for job in jobs if isinstance(job, Fit | Predict)}:
            if self.size and shape != (self.size,):
                problem = f"The method gives a model of shape {list(shape)}; those of this network have [{self.size}]."
                raise KithkinError(problem, "Let `merge` and `visit` keep a model's size (docs/write-a-method.md).")
        return self.compute.work(jobs)

    def visit(self, method: Method, states: Sequence[Any], briefs: Mapping[int, Brief]) -> dict[int, Reply]:
        visits = [expect(Coroutine, method.visit(self.clients[k], states[k], brief), "visit") for k, brief in briefs.items()]
        replies = dict(zip(briefs, together(visits, self.work), strict=True))
        for reply in replies.values():
            expect(Reply, reply, "visit")
        parcels = [p for k, reply in replies.items() for p in (*briefs[k].parcels, *reply.parcels)]
        self.ledger = Ledger().count(parcels)
        return replies

    def bill(self) -> dict[str, int]:
        """What would have travelled: models lie in one memory here, so an exam costs nothing."""
        moved, self.ledger = self.ledger.moved, Ledger()
        return moved

    def examine(self, method: Method, server: Any, states: Sequence[Any], round: int) -> Marks:
        each = zip(self.clients, states, self.exams, strict=True)
        sittings = [sit(method, server, client, state, exam, round) for client, state, exam in each]
        marks = torch.stack([marks for _, marks in together(sittings, self.work)]).tolist()
        for client, (_, _, sound) in zip(self.clients, marks, strict=True):
            if not sound:
                raise diverged(f"What the model of client {client.number} answers in round {round}")
        val, test, _ = ([None if v != v else v for v in part] for part in zip(*marks, strict=True))
        return Marks(val, test)


async def sit(method: Method, server: Any, client: Client, state: Any, exam: Exam, round: int) -> tuple[list[Tensor], Tensor]:
    """A client's personal models, its validation and test accuracy, and whether all its answers are numbers."""
    models = expect(Sequence, await expect(Coroutine, method.personal(server, client, state, round), "personal"), "personal")
    for w in models or [None]:
        expect(Tensor, w, "personal")
    answers = await all_of([Predict(w, client.images, exam.rows) for w in models])
    answer = torch.stack(answers).mean(0)
    right = (answer.argmax(1) == exam.classes).float()
    return models, torch.stack([right[: exam.val].mean(), right[exam.val :].mean(), answer.isfinite().all().float()])


def expect(kind: type[Any], given: Any, where: str) -> Any:
    """What a method gives, which may be somebody's own: refused where it is nothing to work with."""
    if isinstance(given, kind):
        return given
    wanted = {Reply: "a Reply", Brief: "a Brief, or None"}.get(kind, "a list of models, at least one")
    remedy = f"Write it as `async def {where}`" if kind is Coroutine else f"Let it return {wanted}"
    raise KithkinError(f"The method's `{where}` gives a {type(given).__name__}.", f"{remedy} (docs/write-a-method.md).")
