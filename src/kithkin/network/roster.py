"""Who is there: sites come and go, and say who they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.superlink.grid import http_grid

import kithkin
from kithkin.errors import KithkinError
from kithkin.network.terms import FederationFile, Seat, Terms, changed_at, key_digest, read_federation
from kithkin.network.wire import RefusedError, Wire, count

GRACE = 10.0  # seconds that Flower keeps a message after its deadline, so that the deadline is ours to tell
ASK_AGAIN = 300.0  # seconds until who was not let in is asked again: its operator may have mended it
FAULTS = (KeyError, TypeError, ValueError, AttributeError, OverflowError)  # of a note that is not as it should be

Say = Callable[[str, str], None]
"""Takes a site's name and what happened."""


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
        if seat and seat.number >= self.terms.places:  # the file was changed under a run, which keeps its terms
            raise RefusedError(f"{seat.name!r} has number {seat.number}; this run has {self.terms.places} places.", "")
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
