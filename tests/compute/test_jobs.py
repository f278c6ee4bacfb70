"""Visits that are run together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from kithkin.compute import Read, all_of, together
from kithkin.compute.jobs import Job


@dataclass(frozen=True)
class Twice(Job[int]):
    number: int


class Desk:
    """Doubles numbers, and remembers what came at once."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def work(self, jobs: Sequence[Twice]) -> list[int]:
        self.batches.append([job.number for job in jobs])
        return [2 * job.number for job in jobs]


async def in_turn(*numbers: int) -> list[int]:
    return [await Twice(n) for n in numbers]


async def at_once(*numbers: int) -> list[int]:
    return await all_of([Twice(n) for n in numbers])


async def in_two_steps(n: int) -> int:
    (once,) = await in_turn(n)
    return sum(await at_once(once, n))


async def fail(*before: int) -> None:
    await in_turn(*before)
    raise ZeroDivisionError("in a visit")


def test_answers_come_in_the_order_of_the_visits():
    desk = Desk()
    assert together([in_turn(1), in_turn(2), in_turn(3)], desk.work) == [[2], [4], [6]]
    assert desk.batches == [[1, 2, 3]]


def test_visits_of_different_lengths_end_when_they_end():
    desk = Desk()
    assert together([in_turn(1, 2, 3), in_turn(), in_turn(10), in_turn(20, 21)], desk.work) == [[2, 4, 6], [], [20], [40, 42]]
    assert desk.batches == [[1, 10, 20], [2, 21], [3]]


def test_all_of_asks_for_everything_at_once():
    desk = Desk()
    assert together([at_once(1, 2, 3), in_turn(7), at_once(4, 5)], desk.work) == [[2, 4, 6], [14], [8, 10]]
    assert desk.batches == [[1, 2, 3, 7, 4, 5]]


def test_an_empty_all_of_asks_for_nothing():
    desk = Desk()
    assert together([at_once(), in_turn(1), at_once()], desk.work) == [[], [2], []]
    assert desk.batches == [[1]]
    assert together([at_once()], desk.work) == [[]]
    assert desk.batches == [[1]]


def test_an_answer_can_be_asked_about():
    desk = Desk()
    assert together([in_two_steps(1), in_two_steps(5)], desk.work) == [4 + 2, 20 + 10]
    assert desk.batches == [[1, 5], [2, 1, 10, 5]]


def test_what_visits_read_at_one_moment_is_read_in_one_go(monkeypatch: pytest.MonkeyPatch):
    went: list[list[float]] = []
    to_host = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: (went.append(x.tolist()), to_host(x))[1])

    async def read(*numbers: float) -> list[float]:
        return await Read(torch.tensor(numbers))

    desk = Desk()
    assert together([read(1, 2), in_turn(3, 4), read(5)], desk.work) == [[1, 2], [6, 8], [5]]
    assert desk.batches == [[3], [4]]
    assert went == [[1, 2, 5]]


def test_no_visits_no_work():
    desk = Desk()
    assert together([], desk.work) == []
    assert desk.batches == []


def test_all_of_takes_any_iterable_once():
    async def visit() -> list[int]:
        return await all_of(Twice(n) for n in range(3))

    assert together([visit()], Desk().work) == [[0, 2, 4]]


@pytest.mark.parametrize("before", [(), (1,), (1, 2)])
def test_an_error_in_a_visit_comes_out(before: tuple[int, ...]):
    with pytest.raises(ZeroDivisionError, match="in a visit"):
        together([in_turn(1, 2, 3), fail(*before)], Desk().work)


def test_an_error_in_the_first_visit_leaves_no_other_unawaited():
    """Python warns of a coroutine that is dropped before it began; warnings are errors here."""
    others = [in_turn(1), in_turn(2)]
    with pytest.raises(ZeroDivisionError):
        together([fail(), *others], Desk().work)
    open_ones = [visit for visit in others if visit.cr_frame]
    for visit in open_ones:
        visit.close()  # so that the warning does not fall on some later test
    assert not open_ones


def test_an_error_in_the_work_comes_out():
    def work(jobs: Sequence[Twice]) -> list[int]:
        raise MemoryError("too many jobs")

    with pytest.raises(MemoryError, match="too many jobs"):
        together([in_turn(1), in_turn(2)], work)
