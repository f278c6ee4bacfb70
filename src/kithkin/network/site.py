"""A site: its data from its own disk, its model and helpers in its own folder, and its part of a round.

What it did last is kept beside its state, in one file that appears by rename: a round that is asked for again is answered from
there, so nothing is trained twice, and a site that is killed in the middle of a round has lost that round and nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

import kithkin
from kithkin.compute import Compute, choose, one_thread, together
from kithkin.config import RunConfig, as_json
from kithkin.data import Dataset, deal, load
from kithkin.data.own import read_unlabelled
from kithkin.disk import behind, disk_errors, reason, write_json, write_text
from kithkin.errors import KithkinError
from kithkin.federation import Exam, Ledger, World, sit
from kithkin.methods import STATES, Client
from kithkin.methods.base import Brief, Labels, Parcel, Reply
from kithkin.network.papers import Papers, read_papers
from kithkin.network.terms import Craft, Terms, craft_of
from kithkin.network.wire import Answer, RefusedError, Wire, parcel_lines, parcels_from
from kithkin.record import checkpoint
from kithkin.record.assembling import Federation, assemble, pick_device
from kithkin.record.audit import audit
from kithkin.record.models import Pooled, write_models
from kithkin.record.pack import unpack

CLASSES = (*checkpoint.CLASSES, Answer, Parcel)
CPU = torch.device("cpu")


class LostError(RefusedError):
    """What the server believes to be here is lost: trained from nothing, it would replace what the server still has."""


@dataclass(frozen=True, eq=False)
class Holdings:
    """A site's pictures, dealt."""

    images: Tensor
    labelled: Tensor
    classes: Tensor
    unlabelled: Tensor
    truth: Tensor  # of the unlabelled pictures, for the record alone; -1 where nobody knows
    exam: Exam
    fingerprint: str = ""  # of all this, where it lies with a site, whose pictures may change

    def client(self, number: int, seed: int) -> Client:
        return Client(number, self.images, self.labelled, self.classes, self.unlabelled, seed)

    def sizes(self) -> dict[str, int]:
        labelled, unlabelled, val = len(self.labelled), len(self.unlabelled), self.exam.val
        return {"labelled": labelled, "unlabelled": unlabelled, "val": val, "test": len(self.exam.rows) - val}


def own_holdings(papers: Papers, terms: Terms, device: torch.device) -> Holdings:
    """The data that site.toml names, in the federation's classes: 70/10/20, then labelled or not."""
    dataset = named_as(load(papers.data), terms)
    share = deal(dataset.labels, 1, 1.0, papers.seed, papers.label_ratio, dataset.name).shares[0]
    images, truth = dataset.images, dataset.labels
    unlabelled = share.unlabelled
    if papers.unlabelled:
        more = read_unlabelled(Path(papers.unlabelled), terms.shape)
        unlabelled = np.concatenate([unlabelled, len(images) + np.arange(len(more))])
        images, truth = np.concatenate([images, more]), np.concatenate([truth, np.full(len(more), -1)])
    examined = np.concatenate([share.val, share.test])
    sha = hashlib.sha256()
    for part in (images, truth, share.labelled, unlabelled, examined):
        sha.update(f"{part.shape}".encode())
        sha.update(np.ascontiguousarray(part).data)
    labels = torch.from_numpy(truth).to(device)
    s, u, both = (torch.from_numpy(rows).to(device) for rows in (share.labelled, unlabelled, examined))
    exam = Exam(both, labels[both], len(share.val))
    pictures = torch.from_numpy(np.ascontiguousarray(images)).to(device)
    return Holdings(pictures, s, labels[s], u, labels[u], exam, sha.hexdigest())


def named_as(dataset: Dataset, terms: Terms) -> Dataset:
    """The data set with the federation's numbering of classes; it may lack some of them."""
    if tuple(dataset.images.shape[1:]) != terms.shape:
        found, asked = list(dataset.images.shape[1:]), list(terms.shape)
        raise RefusedError(f"The pictures have shape {found}, the federation's {asked}.", f"Convert those of {dataset.name}.")
    strange = [name for name in dataset.classes if name not in terms.classes]
    if strange:
        names = ", ".join(terms.classes)
        problem = f"{len(strange)} of its {len(dataset.classes)} classes are not the federation's ({names})."
        raise RefusedError(problem, f"Rename or take away '{strange[0]}' in {dataset.name}.")  # no name leaves the site
    numbers = np.array([terms.classes.index(name) for name in dataset.classes], np.int64)
    return replace(dataset, labels=numbers[dataset.labels], classes=terms.classes)


def share_of_one_machine(terms: Terms, number: int) -> Holdings:
    """What client `number` has in a run on one machine."""
    federation = _whole(terms.config, terms.settings)
    client = federation.clients[number]
    truth = federation.truth[number]
    return Holdings(client.images, client.labelled, client.classes, client.unlabelled, truth, federation.courier.exams[number])


@lru_cache(maxsize=2)
def _whole(config: RunConfig, settings: Any) -> Federation:
    return assemble(replace(config, device="cpu", compute="eager"), settings)


class Site:
    """One site under one federation's terms."""

    def __init__(
        self,
        terms: Terms,
        state: Path,
        data: Callable[[], Holdings],
        name: str,
        device: torch.device = CPU,
        number: int | None = None,  # that it claims
    ) -> None:
        self.terms, self.name, self.device, self.number = terms, name, device, number
        self.state = state / f"run-{terms.run}"
        self.fingerprint = self.state / "pictures.sha256"
        self.data = data
        self.craft: Craft = craft_of(terms, self.device)
        self.wire = Wire(terms, self.craft)

    @classmethod
    def at(cls, folder: Path, terms: Terms) -> Site:
        papers = read_papers(folder)
        device = pick_device(papers.device)
        return cls(terms, folder / "state", partial(own_holdings, papers, terms, device), papers.name, device, papers.number)

    def holdings(self) -> Holdings:
        """The site's pictures, which stay as they are: dealt anew, what it trained on would be tested on."""
        held = self.data()
        with suppress(FileNotFoundError, NotADirectoryError):
            if self.fingerprint.read_text() != held.fingerprint:
                problem = f"The pictures of {self.name}, or how they are dealt, have changed since the run began."
                raise RefusedError(problem, "Bring those of then back; new ones can be in the next run.")
        return held

    def hello(self) -> RecordDict:
        """Who is here, with how many pictures, and how far it has come."""
        last = self.last()
        sizes = self.holdings().sizes()
        note = {"name": self.name, "number": self.number, "sizes": sizes, "round": last.round if last else None}
        return self.wire.seal(note | {"kithkin": kithkin.__version__})

    def round(self, content: RecordDict) -> RecordDict:
        """The site's part of a round: from disk if it was done before."""
        began = time.perf_counter()
        note, models = self.wire.open(content, "the server")
        brief, k = self._brief(note, models)
        with self.at_work():
            last = self.last_known(note)
            answer = last.server if last else None
            if isinstance(answer, Answer) and answer.client != k:
                raise RefusedError(
                    f"{self.name} was client {answer.client} of this run and is now called {k}.", "Keep its number."
                )
            again = isinstance(answer, Answer) and answer.round >= brief.round
            if not again:
                answer = self._visit(brief, k, last, began)
        assert isinstance(answer, Answer)
        reply = {
            "client": k,
            "round": brief.round,
            "again": again,
            "parcels": parcel_lines(answer.parcels),
            "examples": answer.examples,
            "holds": [[h.client, h.version, h.relation] for h in answer.holds],
            "audit": answer.audit,
            "seconds": answer.seconds,
        }
        return self.wire.seal(reply, [(p.w, p.size) for p in answer.parcels])

    def _brief(self, note: dict[str, Any], models: list[Tensor]) -> tuple[Brief, int]:
        parcels = parcels_from(note.get("parcels"), models, "the server")
        return Brief(note["round"], note["train"], parcels), note["client"]

    def _visit(self, brief: Brief, k: int, last: World | None, began: float) -> Answer:
        held = self.holdings()
        if held.fingerprint and not self.fingerprint.exists():
            with self.disk():
                write_text(self.fingerprint, held.fingerprint)
        client = held.client(k, self.terms.config.seed)
        state = last.states[0] if last else self.craft.method.greet(client, self.craft.w0)
        with one_thread(self.device):
            (reply,) = together([self.craft.method.visit(client, state, brief)], self._compute().work)
        if reply.loss is not None and not reply.loss.isfinite():
            raise RefusedError(f"Training at {self.name} diverged in round {brief.round}.", "Agree on a smaller lr.")
        seconds = round(time.perf_counter() - began, 3)
        answer = Answer(k, brief.round, reply.parcels, reply.examples, reply.holds, self._audited(k, reply, held), seconds)
        self._keep(World(brief.round, answer, (reply.state,), Ledger()))
        return answer

    def _audited(self, k: int, reply: Reply, held: Holdings) -> dict[str, Any] | None:
        """Counts of pseudo labels, over the pictures whose label is known here."""
        known = held.truth >= 0
        if reply.labels is None or not known.any():
            return None
        who = reply.labels.who
        parts = (reply.labels.classes, reply.labels.taken, reply.labels.entropy)
        classes, taken, doubt = (part[known] for part in parts)
        labels = Labels(classes, taken, doubt, None if who is None else who[known])
        counts = audit({k: labels}, {k: held.truth[known]}, len(self.terms.classes))
        return counts if self.terms.details else counts | {"by_class": [], "by_entropy": [], "by_helper": {}}

    def examine(self, content: RecordDict) -> RecordDict:
        """Accuracy of the personal model, which is kept: `kithkin predict` and `export` take the state folder as a run's."""
        note, models = self.wire.open(content, "the server")
        with self.at_work():
            held, last = self.holdings(), self.last_known(note)
            client = held.client(note["client"], self.terms.config.seed)
            state = last.states[0] if last else self.craft.method.greet(client, self.craft.w0)
            server = unpack(note["shown"], {str(i): w for i, w in enumerate(models)}, STATES)
            with one_thread(self.device):
                sitting = sit(self.craft.method, server, client, state, held.exam, note["round"])
                ((own, marks),) = together([sitting], self._compute().work)
            val, test, sound = marks.tolist()
            if not sound:
                raise RefusedError(f"Training at {self.name} diverged by round {note['round']}.", "Agree on a smaller lr.")
            with self.disk():
                write_models(self.state / "models.safetensors", {client.number: own}, Pooled())
                write_json(self.state / "manifest.json", self._manifest())
        val, test = (None if mark != mark else mark for mark in (val, test))
        return self.wire.seal({"client": note["client"], "round": note["round"], "val": val, "test": test})

    def _manifest(self) -> dict[str, Any]:
        terms = self.terms
        told = {"settings": asdict(terms.settings), "seed": terms.config.seed, "model_numbers": self.craft.w0.numel()}
        return {
            "config": as_json(terms.config),
            **told,
            "classes": list(terms.classes),
            "picture": list(terms.shape),
            "site": self.name,
        }

    def refuse(self, e: Exception) -> RecordDict:
        """A word to the server instead of an answer: only what was written for it, since other texts name files."""
        told = e.problem if isinstance(e, RefusedError) else f"{self.name} failed ({type(e).__name__}); its site.log says why."
        return self.wire.seal({"refused": told, "lost": isinstance(e, LostError)})

    def _compute(self) -> Compute:
        terms = self.terms
        return choose(
            "eager" if self.device.type == "cpu" else "auto",
            self.craft.build,
            self.device,
            len(terms.classes),
            terms.config.precision,
        )

    def last(self) -> World | None:
        """What this site did last in this run: its answer as `server`, its state as the one state."""
        return checkpoint.load(self.state, lambda tensor: self.device, print, classes=CLASSES)

    def last_known(self, note: dict[str, Any]) -> World | None:
        """The same, unless the server takes this site for one that has done something, and its disk is empty."""
        last = self.last()
        if last is None and note.get("known"):
            raise LostError(f"{self.name} has nothing of this run any more.", "It gets its own last model with the next round.")
        return last

    def _keep(self, world: World) -> None:
        with self.disk():
            checkpoint.save(self.state, world)

    @contextmanager
    def disk(self) -> Generator[None, None, None]:
        remedy = f"Free some room at {self.name}; it keeps what it had."
        try:
            with disk_errors(self.state, remedy):
                yield
        except KithkinError as e:
            cause = behind(e)
            if not cause:
                raise
            why = reason(cause) if cause.errno else type(cause).__name__  # without a number its text may have a path
            raise RefusedError(f"Cannot write: {why}.", f"{remedy} ({e.problem})") from e

    @contextmanager
    def at_work(self) -> Generator[None, None, None]:
        """One message at a time: a round that is late must not run beside the next one, nor hold up all that follow."""
        with self.disk():
            self.state.mkdir(parents=True, exist_ok=True)
            lock = (self.state / ".lock").open("w")
        with lock:
            came = time.monotonic()
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if time.monotonic() - came > self.terms.deadline:
                raise RefusedError(f"{self.name} was still at what it was asked before.", "Nobody waits for this any more.")
            for draft in self.state.glob(".*.draft"):  # of one that was killed
                draft.unlink(missing_ok=True)
            yield
