"""Worker processes: who does what, what they see, and how they end."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kithkin
from kithkin.compute import Eager, Fit, Lesson, Predict, Recipe, Workers, choose, cores
from kithkin.compute.workers import Worker, start_method
from kithkin.errors import KithkinError
from kithkin.nets import ResNet9, initial_vector

CHOOSE = sys.modules["kithkin.compute.choose"]  # the package names its function, not the module
CPU = torch.device("cpu")
RECIPE = Recipe("alternate", epochs=2, batch_size=4, lr=0.1)
PICTURES = torch.arange(40, dtype=torch.uint8).view(10, 1, 2, 2)
forked = pytest.mark.skipif(start_method() != "fork", reason="workers are not forked here")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


def predict(n: int, by: float = 0.0) -> Predict:
    return Predict(initial_vector(linear, 0) + by, PICTURES, torch.arange(n))


def fit(n: int, by: float = 0.0) -> Fit:
    rows = torch.arange(n)
    return Fit(initial_vector(linear, 0) + by, Lesson(PICTURES, rows, rows % 3, rows[:0]), RECIPE, n)


@pytest.fixture
def hire() -> Iterator[Callable[..., Workers]]:
    """Makes workers whose processes are gone after the test."""
    made: list[Workers] = []

    def two(build: Callable[[], nn.Module] = linear, count: int = 2) -> Workers:
        made.append(Workers(build, count))
        return made[-1]

    yield two
    for workers in made:
        workers.close()
    assert multiprocessing.active_children() == []


def processes(workers: Workers) -> list[int]:
    return [worker.process.pid for worker in workers._crew]


def gone(pid: int, patience: float = 300) -> bool:
    """Whether a process ends before long. One that nobody has waited for yet counts as ended."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{pid}/status")
        if status.exists() and "State:\tZ" in status.read_text():
            return True
        time.sleep(0.01)
    return False


# -- who does what ------------------------------------------------------------------------------------------------------------


@forked
def test_answers_come_in_the_order_of_the_jobs(hire: Callable[..., Workers]):
    workers, eager = hire(), Eager(linear, CPU)
    jobs = [predict(2), fit(9), predict(0), predict(10, by=1), fit(1, by=1), predict(3), fit(0)]
    for mine, theirs in zip(workers.work(jobs), eager.work(jobs), strict=True):
        parts = [(mine, theirs)] if isinstance(mine, Tensor) else [(getattr(mine, p), getattr(theirs, p)) for p in vars(mine)]
        assert all(torch.equal(a, b) and a.dtype == b.dtype and a.shape == b.shape for a, b in parts if a is not b)
    assert workers.work([]) == []


@forked
def test_longest_jobs_are_taken_first(hire: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch):
    given: list[Any] = []
    give = Worker.give
    monkeypatch.setattr(Worker, "give", lambda self, job: (given.append(job), give(self, job))[1])
    jobs = [predict(2), fit(3), predict(9), fit(8), predict(4)]
    hire(count=1).work(jobs)
    assert [jobs.index(job) for job in given] == [3, 1, 2, 4, 0]


class Patient(nn.Module):
    """Answers for ten pictures only once it may."""

    def __init__(self, may: Any) -> None:
        super().__init__()
        self.may = may
        self.inner = linear()

    def forward(self, x: Tensor) -> Tensor:
        assert len(x) < 10 or self.may.wait(30), "everybody waits for the longest job"
        return self.inner(x)


@forked
def test_whoever_is_free_takes_the_next_job(hire: Callable[..., Workers]):
    may = multiprocessing.get_context("fork").Event()
    workers = hire(lambda: Patient(may))
    ticks: list[tuple[int, int]] = []

    def tick(done: int, jobs: int) -> None:
        ticks.append((done, jobs))
        if done == 6:
            may.set()  # all but the longest are done

    workers.tick = tick
    assert [len(p) for p in workers.work([predict(n) for n in (1, 2, 3, 10, 4, 5, 6)])] == [1, 2, 3, 10, 4, 5, 6]
    assert ticks == [(done, 7) for done in range(1, 8)]


@forked
def test_more_workers_than_jobs_will_do(hire: Callable[..., Workers]):
    assert [len(p) for p in hire(count=4).work([predict(3)])] == [3]


# -- what they see ------------------------------------------------------------------------------------------------------------


@forked
def test_workers_look_at_the_pictures_where_they_lie(hire: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Eager, "predict", lambda self, job: torch.tensor([job.images.data_ptr(), os.getpid()]))
    others = PICTURES.clone()
    workers = hire()
    for images in (PICTURES, others):  # other pictures are seen too
        seen = workers.work([Predict(initial_vector(linear, 0), images, torch.arange(3)) for _ in range(6)])
        assert {int(address) for address, _ in seen} == {images.data_ptr()}
        assert os.getpid() not in {int(pid) for _, pid in seen}


@forked
def test_other_pictures_beside_known_ones_need_new_processes_and_fewer_do_not(hire: Callable[..., Workers]):
    workers, jobs = hire(), [predict(3), replace(predict(3), images=PICTURES.clone())]
    workers.work(jobs[:1])
    before = processes(workers)
    assert torch.equal(*workers.work(jobs))
    after = processes(workers)
    assert not {*before} & {*after}
    workers.work(jobs[1:])
    assert processes(workers) == after


@forked
def test_the_same_pictures_need_no_new_processes(hire: Callable[..., Workers]):
    workers = hire()
    workers.work([predict(3)])
    before = processes(workers)
    workers.work([fit(3)])
    assert processes(workers) == before
    workers.work([Predict(initial_vector(linear, 0), PICTURES.clone(), torch.arange(3))])
    assert not {*processes(workers)} & {*before}


@forked
def test_answers_stay_what_they_were(hire: Callable[..., Workers]):
    workers, eager = hire(), Eager(linear, CPU)
    rounds = [[fit(n, by=t / 10) for n in (3, 5, 8)] + [predict(n, by=t / 10) for n in (2, 4)] for t in range(20)]
    held = [workers.work(jobs) for jobs in rounds]
    for mine, jobs in zip(held, rounds, strict=True):
        theirs = eager.work(jobs)
        assert all(torch.equal(m.w, e.w) and torch.equal(m.anchor, e.anchor) for m, e in zip(mine[:3], theirs[:3], strict=True))
        assert all(torch.equal(m, e) for m, e in zip(mine[3:], theirs[3:], strict=True))
    desks = {worker.desk.untyped_storage().data_ptr() for worker in workers._crew}
    assert not desks & {f.w.untyped_storage().data_ptr() for answers in held for f in answers[:3]}


@forked
def test_a_job_is_left_as_it_was(hire: Callable[..., Workers]):
    job = fit(5)
    before = job.w.clone()
    (fitted,) = hire().work([job])
    assert torch.equal(job.w, before)
    assert not torch.equal(fitted.w, before)
    assert not job.lesson.labelled.is_shared()  # a client's small tensors have no file each


def test_spawned_workers_give_the_same_and_share_the_pictures(hire: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["kithkin.compute.workers"], "start_method", lambda: "spawn")
    build = partial(ResNet9, 1, 3, 2)
    w, images = initial_vector(build, 0), torch.arange(320, dtype=torch.uint8).view(5, 1, 8, 8)
    n = torch.arange(5)
    jobs = [Fit(w, Lesson(images, n, n % 3, n[:0]), RECIPE, 3), Predict(w, images, n, 2, 7)]
    fitted, p = hire(build).work(jobs)
    theirs, their_p = Eager(build, CPU).work(jobs)
    assert torch.equal(fitted.w, theirs.w)
    assert torch.equal(p, their_p)
    assert images.is_shared()


# -- how they end -------------------------------------------------------------------------------------------------------------


@forked
@pytest.mark.parametrize("moment", ["at work", "idle"])
def test_a_killed_worker_is_an_error_with_a_remedy_and_no_hang(hire: Callable[..., Workers], moment: str):
    may = multiprocessing.get_context("fork").Event()
    workers = hire(lambda: Patient(may))
    jobs = [predict(10), *[predict(3) for _ in range(4)]]

    def kill(done: int, jobs: int) -> None:
        for pid in processes(workers):
            os.kill(pid, signal.SIGKILL)

    if moment == "at work":
        workers.tick = kill  # one of them still has the longest job
    else:
        workers.work([predict(3)])
        kill(0, 0)
        assert all(gone(pid) for pid in processes(workers))
    with pytest.raises(KithkinError, match="SIGKILL") as caught:
        workers.work(jobs)
    assert "--compute eager" in caught.value.remedy
    assert multiprocessing.active_children() == []
    workers.tick = lambda done, jobs: None
    assert len(workers.work([predict(3)])[0]) == 3  # new ones


class Moody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 2:
            raise ZeroDivisionError("two pictures")
        if len(x) == 3:
            raise KithkinError("Three pictures.", "Bring four.")
        return self.inner(x)


@forked
def test_an_error_at_work_comes_back_as_itself(hire: Callable[..., Workers]):
    workers = hire(Moody)
    with pytest.raises(ZeroDivisionError, match="two pictures") as caught:
        workers.work([predict(5), predict(2), predict(4)])
    assert "in forward" in caught.value.__notes__[0]
    with pytest.raises(KithkinError) as told:
        workers.work([predict(3)])
    assert (told.value.problem, told.value.remedy) == ("Three pictures.", "Bring four.")
    assert multiprocessing.active_children() == []
    eager = Eager(Moody, CPU)
    jobs = [predict(4), predict(5)]
    assert all(torch.equal(a, b) for a, b in zip(workers.work(jobs), eager.work(jobs), strict=True))  # not the lost answers


@forked
def test_a_network_that_cannot_be_built_is_told_too(hire: Callable[..., Workers]):
    with pytest.raises(KithkinError, match="AlphaDropout"):
        hire(lambda: nn.Sequential(nn.AlphaDropout(), linear())).work([predict(3)])


@forked
def test_no_room_for_a_process_is_an_error_with_a_remedy(hire: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch):
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    with pytest.raises(KithkinError, match="temporarily unavailable"):
        hire().work([predict(3)])


@forked
def test_ctrl_c_is_the_parents(hire: Callable[..., Workers]):
    """What a terminal sends to all is not heard by workers; what the parent raises ends them."""
    workers = hire()
    workers.work([predict(3)])
    for pid in processes(workers):
        os.kill(pid, signal.SIGINT)
    before = processes(workers)
    assert len(workers.work([predict(3)])[0]) == 3
    assert processes(workers) == before

    def interrupt(done: int, jobs: int) -> None:
        raise KeyboardInterrupt

    workers.tick = interrupt
    with pytest.raises(KeyboardInterrupt):
        workers.work([predict(3), predict(4), predict(5)])
    assert all(gone(pid) for pid in before)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def open_files() -> set[str]:
    """By name (`pipe:[4711]`), since numbers are given again: others may close theirs meanwhile, and that is no leak."""
    names: set[str] = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            names.add(os.readlink(link))
    return names


@forked
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts files in /proc")
def test_nothing_is_left_of_workers_that_nobody_holds():
    def once() -> None:
        workers = Workers(linear, 2)
        workers.work([fit(n) for n in range(6)])
        pids.extend(processes(workers))

    pids: list[int] = []
    once()
    gc.collect()
    before = open_files()
    for _ in range(3):
        once()
    gc.collect()
    assert len({*pids}) == 8
    assert all(gone(pid) for pid in pids)
    assert multiprocessing.active_children() == []
    assert open_files() - before == set()


PARENT = """
import os, signal, sys, time, torch
from torch import nn
from kithkin.compute import Predict, Workers
def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
workers = Workers(build, 3)
workers.work([Predict(torch.zeros(15), torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.arange(5))])
print(*(worker.process.pid for worker in workers._crew), flush=True)
if sys.argv[1] == "waits":
    time.sleep(60)
"""


@forked
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None], ids=["killed", "terminated", "done"])
def test_workers_end_with_their_parent_however_it_ended(how: signal.Signals | None):
    env = {**os.environ, "PYTHONPATH": str(Path(kithkin.__file__).parents[1]), "PYTHONWARNINGS": "default"}
    words = [sys.executable, "-c", PARENT, "waits" if how else "ends"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 3
        if how:
            assert not any(gone(pid, 0.05) for pid in pids)
            parent.send_signal(how)
        assert parent.wait(60) == (-how if how else 0)
        assert all(gone(pid) for pid in pids)
        assert parent.stderr
        assert parent.stderr.read() == ""


# -- who gets them ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def taken(name: Any) -> tuple[str, int]:
    compute = choose(name, linear, CPU, 3, "bf16")
    return type(compute).__name__, getattr(compute, "count", 1)


@pytest.mark.usefixtures("four_threads")
def test_auto_takes_a_worker_a_core_where_there_are_several(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CHOOSE, "start_method", lambda: "fork")
    for many, expected in ((1, ("Eager", 1)), (2, ("Workers", 2)), (8, ("Workers", 4))):  # no more than torch has threads
        monkeypatch.setattr(CHOOSE, "cores", lambda many=many: many)
        assert taken("auto") == expected
        assert taken("eager") == ("Eager", 1)
        assert taken("workers") == ("Workers", min(many, 4))
    torch.set_num_threads(1)  # as beside other runs
    assert taken("auto") == ("Eager", 1)


@pytest.mark.usefixtures("four_threads")
def test_auto_never_spawns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CHOOSE, "cores", lambda: 4)
    monkeypatch.setattr(CHOOSE, "start_method", lambda: "spawn")
    assert taken("auto") == ("Eager", 1)
    monkeypatch.setattr(CHOOSE, "start_method", lambda: "fork")
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})  # which may have no children
    assert taken("auto") == ("Eager", 1)


def test_workers_are_refused_on_a_gpu_and_graphs_on_a_cpu():
    with pytest.raises(KithkinError, match="workers needs the CPU"):
        choose("workers", linear, torch.device("cuda"), 3, "bf16")
    with pytest.raises(KithkinError, match="graphs needs a CUDA"):
        choose("graphs", linear, CPU, 3, "bf16")


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("9900000 100000", 8), (None, 8)],
)
def test_a_containers_quota_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str | None, expected: int):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    if quota:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(CHOOSE, "Path", lambda path: tmp_path / Path(path).name)
    assert cores() == expected
