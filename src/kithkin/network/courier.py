"""The server's side of the network: who is there, and how briefs reach them and replies come back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.superlink.grid import http_grid
from torch import Tensor

import kithkin
from kithkin import rng
from kithkin.errors import KithkinError
from kithkin.federation import Ledger, Marks
from kithkin.federation.ledger import UP
from kithkin.methods import Method
from kithkin.methods.base import Brief, Held, Parcel, Reply
from kithkin.methods.mix import Mix
from kithkin.methods.um_plus import um_in
from kithkin.network.terms import FederationFile, Seat, Terms, changed_at, key_digest, read_federation
from kithkin.network.wire import RefusedError, Wire, count, parcel_lines, parcels_from
from kithkin.record.audit import BINS
from kithkin.record.pack import pack

POLL = 0.2  # seconds between two looks for replies
PATIENCE = 30.0  # seconds between two tries at most, where nobody answers
GRACE = 10.0  # seconds that Flower keeps a message after its deadline, so that the deadline is ours to tell
ASK_AGAIN = 300.0  # seconds until who was not let in is asked again: its operator may have mended it
FAULTS = (KeyError, TypeError, ValueError, AttributeError, OverflowError)  # of a note that is not as it should be

Say = Callable[[str, str], None]
"""Takes a site's name and what happened."""

Note = Callable[[dict[str, Any]], None]
"""Takes a line a round: who was asked, and how many seconds those who answered worked."""


@dataclass
class Guest:
    """A site that is there."""

    seat: Seat
    node: int
    sizes: dict[str, Any]
    cold: bool  # it holds nothing of this run
    lost: bool = False  # and did hold something


@dataclass
class Roster:
    """Who is there. Sites are known by their key where there are keys, else by the number they claim."""

    grid: Grid
    terms: Terms
    file: FederationFile | None
    wire: Wire
    say: Say
    guests: dict[int, Guest] = field(default_factory=dict[int, Guest])  # by number
    asked: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])  # message: node, until
    shunned: dict[int, tuple[float, str]] = field(default_factory=dict[int, tuple[float, str]])  # node: until when, and why
    known: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])  # sizes of all that ever came
    read: float | None = None  # when the file was last changed

    def look(self) -> None:
        """See who has come and who has gone; newcomers are asked who they are, and counted when they have said so."""
        self._reread()
        nodes = {int(n.node_id): n for n in self.grid.get_nodes()}
        for k, guest in list(self.guests.items()):
            if guest.node not in nodes:
                del self.guests[k]
                self.say(guest.seat.name, "is gone")
        now = time.monotonic()
        self.shunned = {node: found for node, found in self.shunned.items() if node in nodes}
        shunned = {node for node, (until, _) in self.shunned.items() if until > now}
        self.asked = {m: (node, until) for m, (node, until) in self.asked.items() if until > now and node in nodes}
        busy = {guest.node for guest in self.guests.values()} | {node for node, _ in self.asked.values()}
        for node in nodes.keys() - busy - shunned:
            ttl = self.terms.deadline
            content = RecordDict({"kithkin": ConfigRecord({"run": self.terms.run})})
            (sent,) = self.grid.push_messages([Message(content, dst_node_id=node, message_type="query.hello", ttl=ttl)])
            self.asked[sent] = (node, now + ttl)
        for reply in pulled(self.grid, list(self.asked), now + GRACE) if self.asked else []:
            node, _ = self.asked.pop(reply.metadata.reply_to_message_id)
            self._greet(node, bytes(nodes[node].public_key), reply)

    def _reread(self) -> None:
        """The file may have been changed, for a site that joins or leaves."""
        if self.file and (changed := changed_at(self.file.path)) not in (None, self.read):
            self.read = changed
            with suppress(KithkinError):  # `kithkin serve` tells what is wrong with it
                self.file = read_federation(self.file.path)
                self.shunned.clear()

    def _greet(self, node: int, key: bytes, reply: Message) -> None:
        """Let a newcomer in, if it is who it may be; its key says who that is, whatever it answers."""
        name = "a newcomer"
        try:
            seat = self._keyed(key)
            name = seat.name if seat else name
            if reply.has_error():
                raise RefusedError(f"It does not answer: {reply.error.reason}.", "")
            note, _ = self.wire.open(reply.content, name, most=0)
            if "refused" in note:
                raise RefusedError(str(note["refused"]), "")
            seat = seat or self._claimed(note)
            there = self.guests.get(seat.number)
            if there:
                raise RefusedError(f"{seat.name!r} has number {seat.number}, which {there.seat.name!r} has.", "")
            if note["kithkin"] != kithkin.__version__:
                raise RefusedError(f"It has kithkin {note['kithkin']}, the server {kithkin.__version__}.", "")
            sizes: dict[str, Any] = {size: count(note["sizes"][size]) for size in ("labelled", "unlabelled", "val", "test")}
            sizes["label_ratio"] = sizes["labelled"] / max(1, sizes["labelled"] + sizes["unlabelled"])
            done = None if note["round"] is None else count(note["round"])
        except (RefusedError, *FAULTS) as e:
            why = e.problem if isinstance(e, RefusedError) else f"Its greeting is not as it should be ({e!r})."
            _, told = self.shunned.get(node, (0.0, ""))
            self.shunned[node] = time.monotonic() + ASK_AGAIN, why
            if why != told:
                self.say(name, f"is not let in: {why}")
            return
        self.shunned.pop(node, None)
        self.guests[seat.number] = Guest(seat, node, sizes, cold=done is None)
        self.known[seat.number] = sizes
        self.say(seat.name, "is here" + ("" if done is None else f", and has done round {done}"))

    def _keyed(self, key: bytes) -> Seat | None:
        """Whose key it is, where the file has keys."""
        keyed = {key_digest(s.key): s for s in (self.file.sites if self.file else ()) if s.key}
        seat = keyed.get(key_digest(ssh_form(key))) if keyed else None
        if keyed and seat is None:
            raise RefusedError("A key that is registered, but not in the federation's file.", "")
        return seat

    def _claimed(self, note: Mapping[str, Any]) -> Seat:
        """Who it says it is, where nothing can prove it."""
        number = note.get("number")
        if not isinstance(number, int) or not 0 <= number < self.terms.places:
            raise RefusedError(f"{note.get('name')!r} has number {number}; there are {self.terms.places} places.", "")
        return Seat(number, str(note.get("name"))[:64])


def pulled(grid: Grid, messages: list[str], until: float) -> list[Message]:
    """The replies that are there. For the rest of one whose sender was cut off, Flower would wait beyond all others' time.

    What is no message, or answers what nobody asked, would end the run; left away here, Flower itself calls the answer
    unavailable at the next look, and so its sender is named.
    """
    flower: Any = http_grid
    whole, inflate = flower.pull_objects, flower.inflate_object_from_contents

    def in_time(*args: Any, **more: Any) -> dict[str, bytes]:
        return whole(*args, **more, max_time=max(0.0, until - time.monotonic()), backoff_cap=1.0)

    def read(*args: Any) -> Any:
        with suppress(Exception):  # whatever a hostile message makes Flower raise
            found = inflate(*args)
            if isinstance(found, Message):
                return found
        return SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=None))

    flower.pull_objects, flower.inflate_object_from_contents = in_time, read
    try:
        return [reply for reply in grid.pull_messages(messages) if reply.metadata.reply_to_message_id in messages]
    finally:
        flower.pull_objects, flower.inflate_object_from_contents = whole, inflate


def ssh_form(key: bytes) -> str:
    """A public key as the federation's file has it."""
    from cryptography.hazmat.primitives import serialization

    if not key:
        return ""
    public = serialization.load_pem_public_key(key)
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


class FlowerCourier:
    """One message to each site and round, and a deadline: who does not answer by then is left out."""

    def __init__(self, grid: Grid, terms: Terms, wire: Wire, roster: Roster, secret: str, say: Say, note: Note) -> None:
        self.grid = grid
        self.terms = terms
        self.wire = wire
        self.roster = roster
        self.secret = secret
        self.say = say
        self.note = note
        self.counts: dict[int, dict[str, Any]] = {}  # pseudo labels of the last round
        self.seconds: dict[int, float] = {}  # that the sites worked in the last round
        self.left_out: dict[int, tuple[int, str]] = {}  # who was, of which round and why, and has not answered since
        self.lost: dict[int, Parcel] = {}  # own models of sites that came back without theirs
        self.ledger = Ledger()

    def visit(self, method: Method, states: Sequence[Any], briefs: Mapping[int, Brief]) -> dict[int, Reply]:
        """The replies to these briefs. Where all are asked and nobody has done the round, it is asked for again."""
        t = next(iter(briefs.values())).round if briefs else 0
        pause = POLL
        while True:
            here = {k: replace(guest) for k, guest in self.roster.guests.items()}
            asked = {k: brief for k, brief in briefs.items() if k in here}
            replies = self._visit(method, asked, t)
            if replies or len(asked) < len(here):
                break
            pause = self._wait(pause)
            if self.roster.guests != here:  # who is new, or has lost its state, is seen to before the next round
                break
        self.note({"round": t, "asked": sorted(asked), "seconds": {str(k): s for k, s in sorted(self.seconds.items())}})
        return replies

    def _wait(self, pause: float) -> float:
        """Where nobody has answered; how long to wait the next time."""
        time.sleep(pause)
        self.roster.look()
        return min(2 * pause, PATIENCE)

    def _visit(self, method: Method, briefs: Mapping[int, Brief], t: int) -> dict[int, Reply]:
        contents: dict[int, RecordDict] = {}
        for k, brief in briefs.items():
            parcels = [*brief.parcels, *([self.lost[k]] if k in self.lost else [])]
            note = {"train": brief.train, "parcels": parcel_lines(parcels, self.names(k))}
            contents[k] = self.wire.seal(self._head(k, t) | note, [(p.w, p.size) for p in parcels])
            self.ledger = self.ledger.count(parcels, self.wire.bytes)
        self.counts, self.seconds = {}, {}
        replies: dict[int, Reply] = {}
        uploads = uploads_of(method)
        for k, (note, models) in self.ask("train.round", contents, t, uploads[-1]).items():
            try:
                replies[k] = self._reply(k, t, note, models, uploads)
            except RefusedError as e:
                self._leave_out(k, t, e.problem)
                continue
            if self.left_out.pop(k, None):
                self.say(self.name(k), f"is back in round {t}")
            self.roster.guests[k].cold = self.roster.guests[k].lost = False
            self.ledger = self.ledger.count(replies[k].parcels, self.wire.bytes)
        return replies

    def _head(self, k: int, t: int) -> dict[str, Any]:
        """What every message to a site says; `known`: that it has done something before, and should still have it."""
        return {"client": k, "round": t, "known": not self.roster.guests[k].cold}

    def _leave_out(self, k: int, t: int, why: str) -> None:
        """Told once, however often it is asked."""
        if self.left_out.get(k) != (t, why):
            self.left_out[k] = t, why
            self.say(self.name(k), f"is left out of round {t}: {why}")

    def _reply(self, k: int, t: int, note: Mapping[str, Any], models: list[Tensor], uploads: range) -> Reply:
        """A site's answer, if it is one: its own model and its own list, nothing else."""
        name = self.name(k)
        parcels = parcels_from(note.get("parcels"), models, name)
        back = {alias: j for j, alias in self.names(k).items()}
        sizes = self.roster.guests[k].sizes
        try:
            if (note["client"], note["round"]) != (k, t):
                raise ValueError(f"it answers for client {note['client']}, round {note['round']}")
            if any(p.cause not in UP or p.client != k for p in parcels):
                raise ValueError("it sends models that are not its own")
            if len(parcels) not in uploads:
                raise ValueError(f"it sends {len(parcels)} models")
            if any(p.size not in (p.w.numel(), *self.wire.masks) or p.evidence > sizes["labelled"] for p in parcels):
                raise ValueError("it says more of its model than is so")
            examples = count(note["examples"])
            if examples > sizes["labelled"] + sizes["unlabelled"]:
                raise ValueError(f"it has learnt from {examples} pictures, more than it said it has")
            holds = tuple(Held(back[h], count(version), float(relation)) for h, version, relation in note["holds"])
            if len({h.client for h in holds}) < len(holds):
                raise ValueError("it holds a helper twice")
            seconds = float(note["seconds"])
            if any(not math.isfinite(v) for v in (seconds, *(h.relation for h in holds))):
                raise ValueError("a number in it is not finite")
            if note["audit"]:
                self.counts[k] = self._counts(note["audit"], back, sizes["unlabelled"])
            self.seconds[k] = seconds
        except FAULTS as e:
            raise RefusedError(f"The answer of {name} is not as it should be ({e}).", "") from None
        if note.get("again"):
            self.say(name, f"had done round {t} before, and sent what it had")
        return Reply(None, parcels, examples, holds)

    def _counts(self, audit: Mapping[str, Any], back: Mapping[int, int], most: int) -> dict[str, Any]:
        """What a site tells of its pseudo labels, `most` of them, if it can be."""
        counts = {name: count(audit[name]) for name in ("asked", "taken", "wrong")}
        tables = {name: [[count(n) for n in row] for row in audit[name]] for name in ("by_class", "by_entropy")}
        helpers = {str(back[int(j)]): [count(n) for n in row] for j, row in audit["by_helper"].items()}
        rows = [*tables["by_class"], *tables["by_entropy"], *helpers.values()]
        if not counts["wrong"] <= counts["taken"] <= counts["asked"] <= most or any(wrong > n for n, wrong in rows):
            raise ValueError("its counts of labels cannot be")
        lengths = len(tables["by_class"]), len(tables["by_entropy"])
        if lengths not in ((0, 0), (len(self.terms.classes), BINS)):
            raise ValueError(f"it counts labels of {lengths[0]} classes in {lengths[1]} bins")
        return {**counts, **tables, "by_helper": helpers}

    def examine(self, method: Method, server: Any, states: Sequence[Any], round: int) -> Marks:
        """Every site that is there examines its personal model; what the server adds to it travels, and is counted."""
        K = len(states)
        marks = Marks([None] * K, [None] * K)
        tensors: dict[str, Tensor] = {}
        shown = pack(method.shown(server), tensors)
        models = [(w, w.numel()) for w in tensors.values()]
        size = sum(w.numel() for w in tensors.values()) * self.wire.bytes
        pause = POLL
        while True:
            guests = self.roster.guests
            able = [k for k, guest in guests.items() if not guest.lost] or list(guests)
            content = {k: self.wire.seal(self._head(k, round) | {"shown": shown}, models) for k in able}
            self.ledger = self.ledger.add({"exam": size * len(content)} if size else {})
            for k, (note, _) in self.ask("evaluate.exam", content, round, 0).items():
                for name, values in (("val", marks.val), ("test", marks.test)):
                    mark = note.get(name)
                    if isinstance(mark, int | float) and 0 <= mark <= 1:
                        values[k] = float(mark)
            if any(mark is not None for mark in marks.test):
                return marks
            pause = self._wait(pause)  # a round that nobody examines cannot be recorded

    def ask(
        self, kind: str, contents: Mapping[int, RecordDict], round: int, most: int
    ) -> dict[int, tuple[dict[str, Any], list[Tensor]]]:
        """Send, and wait until all have answered, with `most` models each, or the time is up. A later answer is not read."""
        ttl = self.terms.deadline
        waiting: dict[str, int] = {}
        for k, content in contents.items():
            node = self.roster.guests[k].node
            message = Message(content, dst_node_id=node, message_type=kind, ttl=ttl + GRACE, group_id=str(round))
            (sent,) = self.grid.push_messages([message])
            waiting[sent] = k
        answers: dict[int, tuple[dict[str, Any], list[Tensor]]] = {}
        until = time.monotonic() + ttl  # from when all are on their way
        last = False
        while waiting and not last:
            last = time.monotonic() > until
            for reply in pulled(self.grid, list(waiting), until):
                k = waiting.pop(reply.metadata.reply_to_message_id)
                try:
                    if reply.has_error():
                        raise RefusedError(f"{reply.error.reason or 'no answer'} (code {reply.error.code}).", "")
                    note, models = self.wire.open(reply.content, self.name(k), most)
                    if "refused" in note:
                        if note.get("lost") is True:
                            self.roster.guests[k].cold = self.roster.guests[k].lost = True
                        raise RefusedError(str(note["refused"])[:1000], "")
                    answers[k] = note, models
                except RefusedError as e:
                    self._leave_out(k, round, e.problem)
            if waiting:
                time.sleep(POLL)
        for k in waiting.values():
            self._leave_out(k, round, f"no answer within {ttl:g} s")
        return answers

    def name(self, k: int) -> str:
        guest = self.roster.guests.get(k)
        return guest.seat.name if guest else f"site {k}"

    def names(self, k: int) -> dict[int, int]:
        """What site k calls the others: itself by its number, everyone else by a number that only the server can undo."""
        others = range(self.terms.places)
        if not self.terms.aliases:
            return {j: j for j in others}
        return {j: j if j == k else 2**32 + rng.key(self.secret, k, j) % 2**48 for j in others}

    def bill(self) -> dict[str, int]:
        moved, self.ledger = self.ledger.moved, Ledger()
        return moved


def uploads_of(method: Method) -> range:
    """How many models a site's answer may bring: where helpers are kept, none from who was only asked about them."""
    n = len(method.methods) if isinstance(method, Mix) else 1
    return range(0 if um_in(method) else n, n + 1)


def without_list(holds: Sequence[tuple[Held, ...]], k: int) -> tuple[tuple[Held, ...], ...]:
    """What is known of lists, with client k's own model alone in its list."""
    return tuple((Held(k, 0, 0.0),) if j == k else held for j, held in enumerate(holds))


def added(audits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The counts of all sites together, as `audit` would have counted them."""
    total: dict[str, Any] = {"asked": 0, "taken": 0, "wrong": 0, "by_class": [], "by_entropy": [], "by_helper": {}}
    for audit in audits:
        for name in ("asked", "taken", "wrong"):
            total[name] += audit[name]
        for name in ("by_class", "by_entropy"):
            old, new = (table or [[0, 0]] * len(total[name] or audit[name]) for table in (total[name], audit[name]))
            total[name] = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(old, new, strict=True)]
        for j, row in audit["by_helper"].items():
            old = total["by_helper"].get(j, [0, 0])
            total["by_helper"][j] = [a + b for a, b in zip(old, row, strict=True)]
    total["by_helper"] = {j: total["by_helper"][j] for j in sorted(total["by_helper"], key=int)}
    return total
