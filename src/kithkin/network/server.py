"""The server app: the same run as on one machine, with sites instead of clients, and its folder on the server's disk."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from kithkin.config import RunConfig, some
from kithkin.disk import disk_errors, is_full, write_json
from kithkin.errors import KithkinError
from kithkin.federation import Ledger, World, cohort
from kithkin.methods import Method
from kithkin.methods.base import Labels, Parcel
from kithkin.methods.fedavg import Global
from kithkin.methods.um import Newest, Pool
from kithkin.methods.um_plus import Commons, pool_in
from kithkin.network.courier import FlowerCourier, added, without_list
from kithkin.network.programs import FILE, FOLDER, NO_ROOM, plain
from kithkin.network.roster import Roster
from kithkin.network.terms import FederationFile, Terms, craft_of, read_federation, terms_from
from kithkin.network.wire import Wire
from kithkin.processes import die_with_parent, this_process
from kithkin.record import Display, Folder, Result, checkpoint
from kithkin.record.assembling import manifest_of
from kithkin.record.run import go_on, read_result, rounds_on_record

LOOK = 1.0  # seconds between two looks for sites while too few are there


@dataclass(frozen=True, eq=False)
class Company:
    """A run whose clients are sites."""

    terms: Terms
    method: Method
    w0: Tensor
    courier: FlowerCourier
    kept: Path  # what only the server knows: the secret that makes the aliases, and sizes of sites
    split: str | None = None  # the split's hash, where sites are simulated

    @property
    def config(self) -> RunConfig:
        return self.terms.config

    @property
    def names(self) -> tuple[str, ...]:
        return self.terms.classes

    @property
    def picture(self) -> tuple[int, ...]:
        return self.terms.shape

    @property
    def client_names(self) -> tuple[str, ...]:
        file = self.courier.roster.file
        seats = {seat.number: seat.name for seat in file.sites} if file else {}
        return tuple(seats.get(k, str(k)) for k in range(self.terms.places)) if seats else ()

    def ready(self, world: World) -> World:
        """Wait until enough sites are there. Who came back with nothing gets its own model again, and a new list."""
        roster = self.courier.roster
        roster.look()
        told = False
        while len(roster.guests) < self.terms.least:
            if not told:
                self.courier.say("the server", f"waits: {len(roster.guests)} of at least {self.terms.least} sites are here")
                told = True
            time.sleep(LOOK)
            roster.look()
        if told:
            self.courier.say("the server", f"goes on: {len(roster.guests)} sites are here")
        kept = json.loads(self.kept.read_text())
        if kept["sites"] != (sites := {str(k): sizes for k, sizes in roster.known.items()}):
            with disk_errors(self.kept, "Free some room."):
                write_json(self.kept, kept | {"sites": sites})
        self._name_all()
        if isinstance(world.server, Global):  # who has no numbers of its own any more gets all of the server's
            settled = tuple(k for k in world.server.settled if not (k in roster.guests and roster.guests[k].cold))
            return replace(world, server=replace(world.server, settled=settled))
        pool = pool_in(world.server)
        if pool is None:
            return world
        self.courier.lost.clear()
        for k, guest in roster.guests.items():
            newest = pool.models[k]
            if guest.cold and newest.version:
                self.courier.say(guest.seat.name, "has lost its state, and gets its last model back")
                self.courier.lost[k] = Parcel("refresh", k, newest.version, newest.w, newest.w.numel(), evidence(world, k))
                pool = replace(pool, holds=without_list(pool.holds, k))
        if roster.file and roster.file.sites:  # who is no longer in the file helps nobody any more
            seats = {seat.number for seat in roster.file.sites}
            models = tuple(m if j in seats else Newest(0, self.w0) for j, m in enumerate(pool.models))
            pool = replace(pool, models=models)
        return replace(world, server=with_pool(world.server, pool))

    def _name_all(self) -> None:
        """In the manifest, who came after it was written is named too; who left for good keeps its name there."""
        folder = Folder(self.kept.parent)
        manifest = folder.read_manifest()
        before: list[str] = manifest["client_names"]
        names = [old if new == str(k) else new for k, (old, new) in enumerate(zip(before, self.client_names, strict=False))]
        if names not in ([], before):
            with disk_errors(folder.manifest, "Free some room."):
                write_json(folder.manifest, manifest | {"client_names": names})

    def trained(self, round: int, world: World) -> set[int]:
        """A cohort of those who are there, and everyone who is new."""
        here = sorted(self.courier.roster.guests)
        if round == 0:
            return set(here)
        pool = pool_in(world.server)
        new = {k for k in here if pool and not any(h.version for h in pool.holds[k])}
        return new | cohort(self.config.seed, round, here, some(self.config.sample_rate))

    def audited(self, labels: dict[int, Labels]) -> dict[str, Any]:
        return added([self.courier.counts[k] for k in sorted(self.courier.counts)])

    def sizes(self) -> list[dict[str, Any]]:
        none = {"labelled": 0, "unlabelled": 0, "val": 0, "test": 0, "label_ratio": 0.0}
        return [self.courier.roster.known.get(k, none) for k in range(self.terms.places)]

    def digest(self) -> str | None:
        return self.split

    def machine(self) -> dict[str, Any]:
        return {"device": "network", "compute": "flower", "processes": self.terms.places}

    def save_models(self, folder: Folder, world: World) -> None:
        """Nothing: every site keeps its own."""


def with_pool(server: Any, pool: Pool) -> Any:
    return replace(server, pool=pool) if isinstance(server, Commons) else pool


def evidence(world: World, k: int) -> int:
    return world.server.evidence[k] if isinstance(world.server, Commons) else 0


class Log:
    """What happens, line by line: in events.jsonl for `federation status`, and on whatever shows the run."""

    def __init__(self, folder: Folder, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.events, self.sites = (folder.path / f"{name}.jsonl" for name in ("events", "sites"))
        self.tell = tell

    def mend(self, round: int) -> None:
        """Take away a last line that a power cut or a full disk has torn, and rounds after this one, which are played again."""
        self.folder.cut(self.events, 0)  # which tell no round
        self.folder.cut(self.sites, round)

    def say(self, site: str, what: str) -> None:
        site, what = plain(site), plain(what)
        self.tell(f"{site} {what}")
        line = {"time": round(time.time(), 1), "site": site, "what": what}
        self.folder.append(self.events, line)

    def note(self, line: dict[str, Any]) -> None:
        self.folder.append(self.sites, line)


def serve(
    grid: Grid,
    terms: Terms,
    folder: Folder,
    file: FederationFile | None,
    display: Display,
    split: str | None = None,
) -> Result:
    """Play the run in this folder, from its last round on."""
    craft = craft_of(terms, torch.device("cpu"))
    log = Log(folder, display.say)
    wire = Wire(terms, craft)
    roster = Roster(grid, terms, file, wire, log.say)
    with alone_in(folder.path):
        if folder.summary.exists():
            return read_result(folder)
        keep = folder.path / "server.json"
        kept = json.loads(keep.read_text())
        roster.known = {int(k): sizes for k, sizes in kept["sites"].items()}
        courier = FlowerCourier(grid, terms, wire, roster, kept["secret"], log.say, log.note)
        company = Company(terms, craft.method, craft.w0, courier, keep, split)
        if not folder.manifest.exists():
            with disk_errors(folder.manifest, "Free some room."):
                write_json(folder.manifest, manifest_of(company, terms.settings) | {"terms": json.loads(terms.as_text())})
        world = checkpoint.load(
            folder.checkpoints, lambda tensor: craft.w0.device, display.say, rounds_on_record(folder, terms.config)
        )
        start = -1 if craft.method.opening_round else 0
        if world is None:
            world = World(start, craft.method.open(terms.places, craft.w0), (None,) * terms.places, Ledger())
        log.mend(world.round)
        log.say("the server", f"goes on after round {world.round}" if world.round > start else "begins")
        result = go_on(company, folder, world, display)
        log.say("the server", "is done")
        return result


@contextmanager
def alone_in(folder: Path) -> Generator[None, None, None]:
    """One server app at a time: after a kill the new one waits until the old one is really gone."""
    with (folder / ".lock").open("w") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    from kithkin.display import Lines

    die_with_parent()  # its successor waits for the folder's lock
    file = replace(read_federation(Path(os.environ[FILE])), folder=Path(os.environ[FOLDER]))
    terms = terms_from(str(context.run_config["terms"]))
    folder = Folder(file.run)
    status = file.folder / "status.json"
    write_json(status, this_process() | {"state": "running"})
    try:
        serve(grid, terms, folder, file, Lines(""))
        write_json(status, this_process() | {"state": "finished"})
    except KithkinError as e:
        state, error = (NO_ROOM, e.problem) if is_full(e) else ("failed", str(e))
        write_json(status, this_process() | {"state": state, "error": error})
        raise
