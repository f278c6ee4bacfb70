"""`kithkin serve` and `kithkin federation`: the server's side."""

from __future__ import annotations

import json
import math
import os
import secrets
import signal
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kithkin.config import RunConfig, as_json
from kithkin.disk import disk_errors, write_json
from kithkin.errors import KithkinError
from kithkin.methods import entry_of
from kithkin.network import programs
from kithkin.network.keys import check_public_key, check_server_papers, make_authority
from kithkin.network.papers import host_and_port, on_this_machine
from kithkin.network.programs import NO_ROOM, alone, plain, private, say, until_stopped
from kithkin.network.terms import FederationFile, Terms, changed_at, key_digest, read_federation
from kithkin.own import expanded
from kithkin.processes import is_alive, this_process
from kithkin.record import Folder


@private()
def serve(file: Path, insecure: bool = False) -> None:
    """Run a federation's server until stopped (Ctrl-C); a run that was started goes on by itself.

    Args:
        file: The federation's file, FEDERATION.toml.
        insecure: No TLS and no keys: only where server and sites are on this machine.
    """
    federation = checked_file(file, insecure)
    if not insecure:
        check_server_papers(federation.ca, federation.certificate, federation.key)
    if wanted(federation):  # it would go on with other terms
        check_same(begun(federation), federation.terms, federation.path)
    if not on_this_machine(federation.listen):
        remedy = f"Listen at {BEHIND_PROXY}, behind a proxy (docs/deploy.md)."
        say(f"Beware: whoever reaches {federation.listen} can run code here. {remedy}")
    with disk_errors(federation.folder, "Mend that, then serve again."):
        federation.folder.mkdir(parents=True, exist_ok=True)
    remedy = "Stop that one first, or name another folder in a file of its own."
    with alone(federation.folder / ".serving", f"{federation.path} is served already", remedy):
        until_stopped(lambda: _serve(federation, insecure))


def checked_file(path: Path, insecure: bool) -> FederationFile:
    federation = read_federation(path)
    programs.check_secure(insecure, federation.server, federation.listen)
    if not insecure:
        for seat in federation.sites:
            check_public_key(seat.key, seat.name)
    return federation


def _serve(file: FederationFile, insecure: bool) -> None:
    anew = file.flower / ANEW
    while True:
        programs.check_port(file.listen)  # or whoever listens there would be taken for ours
        with disk_errors(file.folder, "Mend that, then serve again."):
            file.flower.mkdir(parents=True, exist_ok=True)
            (file.folder / "serving.json").unlink(missing_ok=True)
            for path in [*file.flower.glob("state.db*"), file.flower / "registered.json", anew] if anew.exists() else []:
                path.unlink(missing_ok=True)
            if status_of(file).get("state") == "running":  # of a server that was killed: its process may be another's by now
                (file.folder / "status.json").unlink()
        with (
            (file.folder / "server.log").open("ab", buffering=0) as log,
            programs.running(programs.superlink(file, insecure), programs.server_environment(file), log) as link,
        ):
            programs.wait_for_port(file.listen, link)
            changed = changed_at(file.path)
            if not insecure:
                register(file)
            write_json(file.folder / "serving.json", this_process())  # from here on sites are let in
            say(f"Serving at {file.listen}; what happens is in {file.folder / 'server.log'}")
            tried = seen = -math.inf  # when the run was handed over, and when it was at work last
            silent = False  # whether it was handed over, and has not said yet that it is there
            while link.poll() is None and not anew.exists():
                if (now := changed_at(file.path)) not in (None, changed):  # a site came, or left for good
                    changed = now
                    file = reread(file, insecure)
                state = status_of(file).get("state")
                silent = silent and not state
                ready = max(tried + (120 if silent else 10), seen + (60 if state == NO_ROOM else 0))
                if at_work(file):
                    seen = time.monotonic()
                    if "flower" not in read_json(file.folder / "started.json"):  # stopped, and perhaps started again since
                        with suppress(ProcessLookupError, KeyError):
                            os.kill(status_of(file)["pid"], signal.SIGTERM)
                elif wanted(file) and time.monotonic() > ready:
                    tried, silent = time.monotonic(), False
                    try:
                        silent = submit(file, insecure)
                    except (KithkinError, OSError) as e:
                        say(f"The run could not be handed to Flower; once more in 10 s: {e}")
                time.sleep(0.5)
        if not anew.exists():
            say(f"The server's program ended with code {link.returncode}; once more in 5 s")
            time.sleep(5)


ANEW = "anew"  # a file that says that Flower's database is to be made anew
LASTING = ("folder", "listen", "ca", "certificate", "key")  # what a server that is up keeps


def reread(file: FederationFile, insecure: bool) -> FederationFile:
    """The file as it is now, if it is in order."""
    try:
        after = checked_file(file.path, insecure)
        for name in LASTING:
            if getattr(after, name) != getattr(file, name):
                raise KithkinError(
                    f"another {name} takes effect when `kithkin serve` is started again.", "Until then all is as it was."
                )
        check_same(begun(file), after.terms, file.path)
        if not insecure:
            register(after)
    except (KithkinError, OSError) as e:
        say(f"{file.path.name} was changed, but is not used: {e}")
        return file
    say(f"{file.path.name} was changed: {len(after.sites)} sites may join.")
    return after


def register(file: FederationFile) -> None:
    """Let in whom the file names, and nobody else."""
    record = file.flower / "registered.json"
    registered: dict[str, int] = read_json(record)
    seats = {key_digest(seat.key): seat for seat in file.sites}
    for digest in registered.keys() - seats.keys():
        try:
            programs.flwr(file, False, "supernode", "unregister", str(registered[digest]), programs.LINK)
        except KithkinError as e:
            if "not found" not in e.problem:  # as it is where a server was killed before it could write this down
                raise
        del registered[digest]
        write_json(record, registered)
    for digest in seats.keys() - registered.keys():
        key = file.flower / "site.pub"
        key.write_text(seats[digest].key + "\n")
        try:
            answer = programs.flwr(file, False, "supernode", "register", str(key), programs.LINK, "--name", seats[digest].name)
        except KithkinError as e:
            if "already in use" not in e.problem:
                raise
            (file.flower / ANEW).touch()  # Flower remembers keys that were taken out, and never takes one twice
            return say(f"{plain(seats[digest].name)} was let in before, and is again: Flower starts anew.")
        registered[digest] = int(answer["node-id"])
        write_json(record, registered)


def wanted(file: FederationFile) -> bool:
    """Whether a run was started, and has neither been stopped nor finished."""
    return (file.folder / "started.json").exists() and status_of(file).get("state") not in ("finished", "failed")


def status_of(file: FederationFile) -> dict[str, Any]:
    return read_json(file.folder / "status.json")


def read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def at_work(file: FederationFile) -> bool:
    """Whether the run's own process is there."""
    status = status_of(file)
    return status.get("state") == "running" and is_alive(status)


def is_served(file: FederationFile) -> bool:
    """Whether a server is up, and lets sites in."""
    return is_alive(read_json(file.folder / "serving.json"))


def submit(file: FederationFile, insecure: bool) -> bool:
    """Hand the run to Flower, if it still is to be; the server app picks up where its folder ends."""
    run = read_json(started := file.folder / "started.json").get("run")
    if not run:
        return False  # stopped since it was looked for
    write_json(started, {"run": run})
    app = programs.write_app(file.folder, replace(file.terms, run=run))
    (file.folder / "status.json").unlink(missing_ok=True)
    began = programs.flwr(file, insecure, "run", str(app), programs.LINK)
    if started.exists():  # else it was stopped meanwhile, and is ended as soon as it says that it is there
        write_json(started, {"run": run, "flower": began["run-id"], "terms": json.loads(file.terms.as_text())})
    return True


BEHIND_PROXY = "127.0.0.1:9443"
FILE = """# A federation of kithkin; docs/deploy.md explains every line.
name = "our federation"
server = "{server}"
listen = "{listen}"  # where the server listens: on its own machine, since not all that it offers asks for a key
classes = ["first class", "second class"]  # the same names as the sites' sub-folders
shape = [1, 28, 28]  # channels, height, width of every picture
places = 10  # sites that can ever join this run
least = 2  # sites that must be there for a round to begin
deadline = 900  # seconds that a site has for its part of a round

[run]
method = "um"
rounds = 50

# For every site, the line that `kithkin site init` printed there:
# [[sites]]
# number = 0
# name = "north"
# key = "ecdsa-sha2-nistp384 AAAA..."
"""


@private()
def init(folder: Path, server: str = "127.0.0.1:8443") -> None:
    """Make a federation's folder: its file to fill in, its CA, and the server's certificate.

    Args:
        folder: The new folder.
        server: HOST:PORT under which sites reach the server.
    """
    host, _ = host_and_port(server)
    folder = expanded(folder).resolve()
    path = folder / "FEDERATION.toml"
    with disk_errors(folder, "Give another folder."):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise KithkinError(f"The folder {folder} is not empty.", "Give another one.")
        make_authority(folder, host)
        path.write_text(FILE.format(server=server, listen=server if on_this_machine(server) else BEHIND_PROXY))
    say(f"Fill in {path}, give {folder / 'ca.crt'} to every site, and keep {folder / 'ca.key'} to yourself, off this machine.")


NEW_RUN = "For a new run name another folder in the file, and start `kithkin serve` again."


@private()
def start(file: Path, follow: bool = False) -> None:
    """Start a federation's run, or go on with it; the server must be up.

    Args:
        file: The federation's file, FEDERATION.toml.
        follow: Show what happens until the run is done.
    """
    federation = read_federation(file)
    check_serving(federation)
    folder = Folder(federation.run)
    if folder.summary.exists():
        raise KithkinError(f"The run in {folder.path} is finished.", NEW_RUN)
    check_same(begun(federation), federation.terms, federation.path)
    kept = federation.run / "server.json"
    known = kept.exists()
    token = read_json(kept).get("run") or secrets.token_hex(4)
    with disk_errors(federation.run, "Mend that, then start again."):
        federation.run.mkdir(parents=True, exist_ok=True)
        going = wanted(federation) and known  # a second server app would hide the first
        if not known:
            write_json(kept, {"run": token, "secret": secrets.token_hex(16), "sites": {}})
        if not going:
            if not at_work(federation):  # or `serve`, which ends that one first, would not know of it
                (federation.folder / "status.json").unlink(missing_ok=True)
            write_json(federation.folder / "started.json", {"run": token})
    began = "Started already" if going else "Started"
    say(f"{began}: {federation.terms.config.method}, {federation.terms.config.rounds} rounds, in {federation.run}")
    if follow:
        _follow(federation)


def check_serving(file: FederationFile) -> None:
    if not is_served(file):
        raise KithkinError("The server is not up.", f"Start it with `kithkin serve {file.path}`.")


def begun(file: FederationFile) -> dict[str, Any]:
    """The terms that the run began with, if it did."""
    folder = Folder(file.run)
    if folder.manifest.exists():
        return folder.read_manifest().get("terms", {})
    return read_json(file.folder / "started.json").get("terms", {})  # with which it was handed to Flower, a moment ago


def check_same(before: dict[str, Any], now: Terms, path: Path) -> None:
    """A run keeps its terms; what may change is how long it waits, and for how many."""
    after = json.loads(now.as_text())
    usual = {"config": as_json(RunConfig()), "settings": asdict(entry_of(now.config.method).settings)}
    pairs: dict[tuple[str, str], tuple[Any, Any]] = {}
    for name in before.keys() - {"run", "deadline", "least", "norm_limit"}:
        was, now_is = ({name: terms.get(name)} if name not in usual else terms[name] for terms in (before, after))
        was = {**usual.get(name, {}), **was}  # what is newer than the run had its usual value
        pairs |= {(name, k): (v, now_is.get(k)) for k, v in was.items()}
    for (_, name), (was, now_is) in pairs.items():
        if was != now_is:
            raise KithkinError(f"{path} says {name} = {now_is}, but the run began with {was}.", f"Change it back. {NEW_RUN}")


def _follow(file: FederationFile) -> None:
    events, metrics = file.run / "events.jsonl", Folder(file.run).metrics
    seen = [0, 0]
    while True:
        state = status_of(file)
        for i, (path, show) in enumerate(((events, describe_event), (metrics, describe_round))):
            lines = Folder(file.run).read_lines(path)
            for line in lines[seen[i] :]:
                say(show(line))
            seen[i] = max(seen[i], len(lines))
        if state.get("state") == "finished":
            return
        if state.get("state") == "failed":
            raise KithkinError(
                f"The run failed: {state.get('error')}", f"Mend that, then `kithkin federation start {file.path}`."
            )
        check_serving(file)
        time.sleep(0.5)


def describe_event(line: dict[str, Any]) -> str:
    return plain(f"{time.strftime('%H:%M:%S', time.localtime(line['time']))}  {line['site']} {line['what']}")


def describe_round(line: dict[str, Any]) -> str:
    val = "" if line["val_mean"] is None else f"  val {line['val_mean']:.3f}"
    moved = (line["up_bytes"] + line["down_bytes"]) / 1e6
    return f"          round {line['round']}{val}  {moved:,.2f} MB  {line['seconds']:.1f} s"


def stop(file: Path) -> None:
    """Stop a federation's run; `kithkin federation start` goes on with it.

    Args:
        file: The federation's file, FEDERATION.toml.
    """
    federation = read_federation(file)
    (federation.folder / "started.json").unlink(missing_ok=True)
    until = time.monotonic() + 30
    while at_work(federation) and time.monotonic() < until:
        time.sleep(0.2)
    if at_work(federation):
        raise KithkinError("The run goes on.", f"Is `kithkin serve {federation.path}` running?")
    say(f"Stopped after round {rounds_of(federation)}.")


def rounds_of(file: FederationFile) -> int:
    return max([line["round"] for line in Folder(file.run).read_lines(Folder(file.run).metrics)], default=0)


def status(file: Path) -> None:
    """Show how far a federation's run is, who is there, and what happened last.

    Args:
        file: The federation's file, FEDERATION.toml.
    """
    federation = read_federation(file)
    told = status_of(federation)
    state = told.get("state", "not started")
    if state == "running" and not at_work(federation):
        state = "waiting for its server" if wanted(federation) else "stopped"
    elif state == NO_ROOM and not wanted(federation):
        state = "stopped"
    elif state == "not started" and wanted(federation):
        state = "starting"
    folder = Folder(federation.run)
    events = folder.read_lines(folder.path / "events.jsonl")
    up = "up" if is_served(federation) else "down"
    say(f"server {up}, run {state}, round {rounds_of(federation)} of {federation.terms.config.rounds}")
    if state in ("failed", NO_ROOM):
        mend = f"Mend that, then `kithkin federation start {federation.path}`."
        say(plain(f"{told.get('error')} {'Free some room: then it goes on by itself.' if state == NO_ROOM else mend}", 2000))
    last: dict[str, str] = {}
    left: dict[str, int] = {}
    for event in events:
        if event["what"].startswith("waits:") and state != "running":
            continue  # it did
        last[event["site"]] = f"{time.strftime('%m-%d %H:%M:%S', time.localtime(event['time']))}  {event['what']}"
        left[event["site"]] = left.get(event["site"], 0) + event["what"].startswith("is left out")
    tests = dict(enumerate(marks[-1]["test"] if (marks := folder.read_lines(folder.marks)) else []))
    table = Table("site", "number", "test", "left out", "last heard of")
    for seat in federation.sites or [federation.seat(k) for k in range(federation.terms.places)]:
        test = tests.get(seat.number)  # none of a number that was given since the run began
        row = (f"{test:.3f}" if test is not None else "-", str(left.pop(seat.name, 0)), last.pop(seat.name, "never"))
        table.add_row(*(Text(plain(cell)) for cell in (seat.name, str(seat.number), *row)))  # no markup of a site's
    Console().print(table)
    for who, what in last.items():
        say(plain(f"{who}: {what}"))
