"""The server's side of the network: how briefs reach sites, and replies come back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from kithkin import rng
from kithkin.federation import Ledger, Marks
from kithkin.federation.ledger import UP
from kithkin.methods import Method
from kithkin.methods.base import SERVER, Brief, Held, Parcel, Reply
from kithkin.methods.mix import Mix
from kithkin.methods.um_plus import um_in
from kithkin.network.roster import FAULTS, GRACE, Roster, Say, pulled
from kithkin.network.terms import Terms
from kithkin.network.wire import RefusedError, Wire, count, parcel_lines, parcels_from
from kithkin.record.audit import BINS
from kithkin.record.pack import pack

POLL = 0.2  # seconds between two looks for replies
PATIENCE = 30.0  # seconds between two tries at most, where nobody answers

Content = Callable[[], RecordDict]
"""Makes what is sent to a site, as it is sent: the models of a round, once for each site, would fill the memory."""

Note = Callable[[dict[str, Any]], None]
"""Takes a line a round: who was asked, and how many seconds those who answered worked."""


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
        self.called: dict[int, dict[int, int]] = {}  # whom each site may have in its list, by what it calls them
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
        contents: dict[int, Content] = {}
        for k, brief in briefs.items():
            parcels = [*brief.parcels, *([self.lost[k]] if k in self.lost else [])]
            called = {k: k} | {p.client: self.alias(k, p.client) for p in parcels if p.client != SERVER}
            self.called.setdefault(k, {}).update((alias, j) for j, alias in called.items())
            note = {"train": brief.train, "parcels": parcel_lines(parcels, called)}
            contents[k] = partial(self.wire.seal, self._head(k, t) | note, [(p.w, p.size) for p in parcels])
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
            held = {h.client for h in replies[k].holds}
            self.called[k] = {alias: j for alias, j in self.called[k].items() if j in held}
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
        back = partial(self.meant, k)
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
            holds = tuple(Held(back(h), count(version), float(relation)) for h, version, relation in note["holds"])
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

    def _counts(self, audit: Mapping[str, Any], back: Callable[[int], int], most: int) -> dict[str, Any]:
        """What a site tells of its pseudo labels, `most` of them, if it can be."""
        counts = {name: count(audit[name]) for name in ("asked", "taken", "wrong")}
        tables = {name: [[count(n) for n in row] for row in audit[name]] for name in ("by_class", "by_entropy")}
        helpers = {str(back(int(j))): [count(n) for n in row] for j, row in audit["by_helper"].items()}
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
            contents = {k: partial(self.wire.seal, self._head(k, round) | {"shown": shown}, models) for k in able}
            self.ledger = self.ledger.add({"exam": size * len(contents)} if size else {})
            for k, (note, _) in self.ask("evaluate.exam", contents, round, 0).items():
                for name, values in (("val", marks.val), ("test", marks.test)):
                    mark = note.get(name)
                    if isinstance(mark, int | float) and 0 <= mark <= 1:
                        values[k] = float(mark)
            if any(mark is not None for mark in marks.test):
                return marks
            pause = self._wait(pause)  # a round that nobody examines cannot be recorded

    def ask(
        self, kind: str, contents: Mapping[int, Content], round: int, most: int
    ) -> dict[int, tuple[dict[str, Any], list[Tensor]]]:
        """Send, and wait until all have answered, with `most` models each, or the time is up. A later answer is not read."""
        ttl = self.terms.deadline
        waiting: dict[str, int] = {}
        for k, content in contents.items():
            node = self.roster.guests[k].node
            message = Message(content(), dst_node_id=node, message_type=kind, ttl=ttl + GRACE, group_id=str(round))
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

    def alias(self, k: int, j: int) -> int:
        """What site k calls site j: itself by its number, everyone else by a number that only the server can undo."""
        return j if j == k or not self.terms.aliases else 2**32 + rng.key(self.secret, k, j) % 2**48

    def meant(self, k: int, alias: int) -> int:
        """Whom site k calls so: one whose model it got, or any of all, where that was before this server app began."""
        called = self.called[k]
        if alias not in called:
            called |= {self.alias(k, j): j for j in range(self.terms.places)}
        return called[alias]

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
