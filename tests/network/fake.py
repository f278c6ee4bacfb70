"""Flower without a network: a grid in this process whose nodes are sites, each with a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from kithkin.flags import settle
from kithkin.network.client import app_for
from kithkin.network.server import serve
from kithkin.network.site import Holdings, Site, share_of_one_machine
from kithkin.network.terms import Terms
from kithkin.record import Folder, Result, run
from kithkin.record.assembling import assemble
from kithkin.record.run import Quiet

TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # Flower stamps messages with them

TINY = {"data": "digits", "clients": 3, "rounds": 3, "epochs": 1, "batch_size": 64, "width": 2, "device": "cpu"}
TINY |= {"compute": "eager", "checkpoint_every": 1, "save_models": False}
HELPERS = {"helpers": 2, "candidates": 1, "warmup_epochs": 1, "mc_samples": 2}


def flags_of(method: str, **more: Any) -> dict[str, Any]:
    return TINY | {"method": method} | (HELPERS if method in ("um", "um-plus") else {}) | more


def terms_of(
    method: str, wire: str = "fp32", aliases: bool = False, least: int = 3, deadline: float = 60, **more: Any
) -> Terms:
    config, settings = settle(flags_of(method, **more))
    config = assemble(config, settings).config
    classes = tuple("0123456789")
    terms = Terms(config, settings, classes, (1, 8, 8), "r1", False, wire, 100.0, deadline, least, aliases, True)  # type: ignore[arg-type]
    return terms.checked()


@lru_cache(maxsize=64)
def share(method: str, flags: str, number: int) -> Holdings:
    config, settings = settle(json.loads(flags))
    return share_of_one_machine(Terms(config, settings, tuple("0123456789"), (1, 8, 8)), number)


class Node:
    """A site, as a node of Flower's: `answer` may be replaced by something worse."""

    def __init__(self, terms: Terms, folder: Path, number: int, flags: dict[str, Any]) -> None:
        self.node_id = 100 + number
        self.public_key = b""
        data = partial(share, terms.config.method, json.dumps(flags), number)
        self.site = Site(terms, folder, data, f"site-{number}", number=number)
        self.app = app_for(lambda context: self.site)

    def answer(self, message: Message) -> Message | None:
        context = Context(1, self.node_id, {}, RecordDict(), {})
        return self.app(message, context)


@dataclass
class FakeGrid:
    nodes: dict[int, Node]
    before: Callable[[Message], None] = lambda message: None  # told of every message on its way
    sent: list[Message] = field(default_factory=list[Message])
    replies: dict[str, Message] = field(default_factory=dict[str, Message])

    def get_nodes(self) -> list[Node]:
        return list(self.nodes.values())

    def push_messages(self, messages: list[Message]) -> list[str]:
        names: list[str] = []
        for message in messages:
            name = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent.append(message)
            self.before(message)
            node = self.nodes.get(message.metadata.dst_node_id)
            reply = node.answer(message) if node else Message(Error(5, "gone"), reply_to=message)
            if reply is not None:
                self.replies[name] = reply
            names.append(name)
        return names

    def pull_messages(self, names: list[str]) -> list[Message]:
        return [self.replies.pop(name) for name in names if name in self.replies]


class Federation:
    """A whole federation in this process: terms, sites, a run folder."""

    def __init__(self, home: Path, method: str, sites: int = 3, **terms: Any) -> None:
        self.home = home
        known = {"wire", "aliases", "least", "deadline"}
        self.flags = flags_of(method, **{k: v for k, v in terms.items() if k not in known})
        self.terms = terms_of(method, **terms)
        self.folder = Folder(home / "run")
        self.folder.path.mkdir(parents=True)
        self.kept = self.folder.path / "server.json"
        self.kept.write_text(json.dumps({"run": "r1", "secret": "s", "sites": {}}))
        self.file: Any = None
        self.grid = FakeGrid({})
        for k in range(sites):
            self.join(k)

    def join(self, number: int) -> Node:
        node = Node(self.terms, self.home / f"site-{number}", number, self.flags)
        self.grid.nodes[node.node_id] = node
        return node

    def node(self, number: int) -> Node:
        return self.grid.nodes[100 + number]

    def serve(self) -> Result:
        return serve(self.grid, self.terms, self.folder, self.file, Quiet())  # type: ignore[arg-type]

    def said(self) -> list[str]:
        return [f"{line['site']} {line['what']}" for line in self.folder.read_lines(self.folder.path / "events.jsonl")]


def local(method: str, out: Path, **more: Any) -> Result:
    config, settings = settle(flags_of(method, **more))
    return run(config, settings, out)


def figures(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in metrics]
