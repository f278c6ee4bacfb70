"""What Flower's programs are told, and what becomes of what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509

from kithkin.disk import disk_errors
from kithkin.errors import KithkinError
from kithkin.network import commands, joining, programs, server
from kithkin.network.keys import make_authority, make_site_key
from kithkin.network.papers import Papers, read_papers, write_papers
from kithkin.network.terms import FederationFile, read_federation
from kithkin.processes import this_process


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:9", "127.0.0.1:9"),
        ("0.0.0.0:9", "127.0.0.1:9"),
        ("fl.example.org:9", "fl.example.org:9"),
        ("[::1]:9", "[::1]:9"),
        ("[::]:9", "[::1]:9"),
    ],
)
def test_a_server_is_reached_where_it_listens(listen: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(programs, "program", lambda name: name)
    done = SimpleNamespace(returncode=0, stdout='{"success": true}', stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    file: Any = SimpleNamespace(flower=tmp_path, ca=tmp_path / "ca.crt", listen=listen, path=tmp_path / "FEDERATION.toml")
    programs.flwr(file, False, "supernode", "list")
    assert tomllib.loads((tmp_path / "config.toml").read_text())["superlink"][programs.LINK]["address"] == address


def test_a_certificate_is_for_the_servers_own_machine_by_either_protocol(tmp_path: Path):
    make_authority(tmp_path, "fl.example.org")
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["127.0.0.1", "::1"]


@pytest.mark.parametrize(("before", "first"), [("", []), ("example.org", ["example.org"])])
def test_programs_of_one_machine_reach_each_other_without_the_proxy_that_leads_outside(
    before: str, first: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", before)
    env = programs.environment(tmp_path)
    assert env["NO_PROXY"].split(",") == env["no_proxy"].split(",") == [*first, "127.0.0.1", "::1", "localhost"]


def test_what_a_program_says_is_written_with_the_time_and_moves_no_cursor(tmp_path: Path):
    says = r"import sys; print('\x1b[92mINFO\x1b[0m: one'); print('\x1b[2Jtwo\x9b1A', file=sys.stderr); print('three', end='')"
    with (
        (tmp_path / "log").open("ab", buffering=0) as log,
        programs.running([sys.executable, "-u", "-c", says], programs.environment(tmp_path), log) as process,
    ):
        assert process.wait() == 0
    lines = (tmp_path / "log").read_text().splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", "", line) for line in lines] == ["INFO: one", " [2Jtwo 1A", "three"]


def test_a_program_whose_log_is_on_a_full_disk_goes_on(tmp_path: Path):
    with (
        Path("/dev/full").open("ab", buffering=0) as log,
        programs.running([sys.executable, "-c", "print('x' * 10**6)"], programs.environment(tmp_path), log) as process,
    ):
        assert process.wait() == 0


def test_a_site_ends_where_flowers_heartbeat_does_so_that_it_is_started_again():
    """Flower's program would stay, and the server take it for gone for good: after a full disk at the server, say."""
    dies = "node.flower_supernode = lambda: (threading.Thread(target=lambda: 1 / 0).start(), time.sleep(999))"
    says = f"import threading, time; from kithkin.network import node; {dies}; node.main()"
    done = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_a_site_is_flowers_program_that_ends_with_its_heartbeat(tmp_path: Path):
    command = programs.supernode(tmp_path, Papers("north", "digits", server="127.0.0.1:9"), True, "127.0.0.1:10")
    assert command[1:3] == ["-m", "kithkin.network.node"]


@pytest.mark.parametrize(("code", "asks"), [(0, True), (1, False)])
def test_a_site_whose_signatures_the_server_does_not_take_is_asked_for_its_clock(
    code: int, asks: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    @contextmanager
    def running(*_: Any) -> Generator[Any, None, None]:
        yield SimpleNamespace(poll=lambda: code, returncode=code)

    def ended(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(programs, "running", running)
    monkeypatch.setattr(joining.time, "sleep", ended)
    write_papers(tmp_path, Papers("north", "digits", server="127.0.0.1:9"))
    joining.site_join(tmp_path, insecure=True)
    assert ("is this machine's clock right?" in capsys.readouterr().out) == asks


SSL = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate (_ssl.c:1006)"


@pytest.mark.parametrize(("before", "attempts"), [([], 1), (["lost", "key"], 4)])
def test_a_server_that_the_ca_does_not_vouch_for_is_told_at_once_by_a_site_that_was_there_before(
    before: list[str], attempts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Unless it was trusted a moment ago: then its certificate may be being renewed, and there is some patience."""
    said = {"lost": "", "key": "Exit Code: 305\nunknown key\n", "ca": f"Exit Code: 305\nno connection\n{SSL}\n"}
    now, tried = [0.0], list[str]()

    @contextmanager
    def running(command: list[str], env: Any, log: Any) -> Generator[Any, None, None]:
        if "kithkin.network.node" in command:
            tried.append(before[len(tried)] if len(tried) < len(before) else "ca")
            log.write(said[tried[-1]].encode())
        yield SimpleNamespace(poll=lambda: 1, returncode=1)

    monkeypatch.setattr(programs, "running", running)
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + 40))
    monkeypatch.setattr(joining, "time", clock)
    make_authority(tmp_path, "localhost")
    make_site_key(tmp_path)
    (tmp_path / "state").mkdir()
    papers = Papers("north", "digits", server="127.0.0.1:9", ca=str(tmp_path / "ca.crt"))
    write_papers(tmp_path, papers)
    with pytest.raises(KithkinError) as caught:
        joining.site_join(tmp_path)
    assert caught.value.problem == f"{papers.ca} does not vouch for 127.0.0.1:9 (unable to get local issuer certificate)."
    assert "--ca" in caught.value.remedy
    assert len(tried) == attempts


def handed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any) -> Path:
    commands.init(tmp_path / "f", "127.0.0.1:9")
    file = read_federation(tmp_path / "f" / "FEDERATION.toml")
    file.folder.mkdir()
    started = file.folder / "started.json"
    started.write_text('{"run": "x", "flower": "an earlier one"}')
    monkeypatch.setattr(programs, "flwr", lambda *_: answer(started))
    with suppress(KithkinError):
        commands.submit(file, insecure=True)
    return started


def test_a_run_that_was_handed_over_is_on_record_with_its_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    started = json.loads(handed(tmp_path, monkeypatch, lambda _: {"run-id": "7"}).read_text())
    assert (started["run"], started["flower"], started["terms"]["config"]["rounds"]) == ("x", "7", 50)


def test_a_run_that_is_stopped_while_it_is_handed_to_flower_stays_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert not handed(tmp_path, monkeypatch, lambda started: started.unlink() or {"run-id": "7"}).exists()


def test_a_run_that_flower_did_not_take_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuses(_: Path) -> None:
        raise KithkinError("Internal server error.", "")

    assert json.loads(handed(tmp_path, monkeypatch, refuses).read_text()) == {"run": "x"}


Happens = dict[float, Callable[[FederationFile], object]]


def played(folder: Path, monkeypatch: pytest.MonkeyPatch, happens: Happens) -> list[str]:
    """When a server to which this happens hands over, and ends, a run that is started at 0; nothing of it takes time."""
    commands.init(folder, "127.0.0.1:9")
    file = read_federation(folder / "FEDERATION.toml")
    now, log = [0.0], list[str]()

    def flwr(*_: Any) -> dict[str, Any]:
        log.append(f"handed over at {now[0]:g}")
        return {"run-id": "7"}

    def kill(pid: int, how: int) -> None:
        log.append(f"ended at {now[0]:g}")
        says(file, "running", born="before")  # as one that is gone

    def sleep(seconds: float) -> None:
        now[0] += seconds
        happens.get(now[0], bool)(file)
        if now[0] > max(happens) + 150:
            raise KeyboardInterrupt

    @contextmanager
    def running(*_: Any) -> Generator[Any, None, None]:
        yield SimpleNamespace(poll=lambda: None, returncode=0)

    for name, stand_in in (("flwr", flwr), ("running", running), ("check_port", str), ("wait_for_port", lambda *_: None)):
        monkeypatch.setattr(programs, name, stand_in)
    monkeypatch.setattr(commands, "check_serving", lambda file: None)
    monkeypatch.setattr(commands, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(commands, "os", SimpleNamespace(kill=kill))
    commands.start(file.path)
    commands.serve(file.path, insecure=True)
    return log


def says(file: FederationFile, state: str, **more: str) -> None:
    """What the server app does, which is this process."""
    (file.folder / "status.json").write_text(json.dumps(this_process() | {"state": state} | more))


@pytest.mark.parametrize("again", [None, 5, 23])
def test_a_run_that_is_stopped_and_started_before_it_has_said_anything_is_ended_before_it_is_handed_over_again(
    again: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two server apps would play one run: of those, the one that waits for the other is seen, and ended, alone."""
    happens: Happens = {2: lambda file: commands.stop(file.path)}
    happens[20] = lambda file: says(file, "running")
    if again:
        happens |= {again: lambda file: commands.start(file.path), 30: lambda file: says(file, "running")}
    log = played(tmp_path / "f", monkeypatch, happens)
    assert log == ["handed over at 0", "ended at 20", *([f"handed over at {max(20.5, again):g}"] if again else [])]


def test_a_run_whose_servers_disk_is_full_is_handed_over_again_after_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    happens: Happens = {5: lambda file: says(file, "running")}
    happens |= {50: lambda file: says(file, programs.NO_ROOM), 120: lambda file: says(file, "failed")}
    assert played(tmp_path / "f", monkeypatch, happens) == ["handed over at 0", "handed over at 110"]


@pytest.mark.parametrize("number", [28, 13])
def test_a_server_app_tells_a_full_disk_from_what_must_be_mended_first(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    commands.init(tmp_path / "f", "127.0.0.1:9")
    file = read_federation(tmp_path / "f" / "FEDERATION.toml")
    file.folder.mkdir()
    (file.folder / "started.json").write_text('{"run": "x", "flower": "7"}')

    def fails(*_: Any) -> None:
        try:
            with disk_errors(tmp_path, "Free some room."):
                raise OSError(number, "Permission denied")
        except KithkinError as e:
            raise KithkinError(e.problem, "There is no checkpoint yet.") from e  # as the checkpoints' does

    monkeypatch.setattr(server, "serve", fails)
    monkeypatch.setattr(server, "die_with_parent", lambda: None)
    monkeypatch.setenv(programs.FILE, str(file.path))
    monkeypatch.setenv(programs.FOLDER, str(file.folder))
    context: Any = SimpleNamespace(run_config={"terms": file.terms.as_text()})
    with pytest.raises(KithkinError):
        server.main(None, context)  # type: ignore[arg-type]
    capsys.readouterr()
    commands.status(file.path)
    out = capsys.readouterr().out
    assert commands.wanted(file) == (number == 28)
    assert ("waiting for room" in out, "run failed" in out) == (number == 28, number != 28)
    assert ("the disk is full. Free some room: then it goes on by itself." in out) == (number == 28)
    assert ("Permission denied. There is no checkpoint yet. Mend that, then" in out) == (number != 28)
    commands.stop(file.path)
    capsys.readouterr()
    commands.status(file.path)
    assert ("run stopped" in capsys.readouterr().out) == (number == 28)


def test_a_run_that_is_there_is_not_lost_sight_of_by_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    commands.init(tmp_path / "f", "127.0.0.1:9")
    file = read_federation(tmp_path / "f" / "FEDERATION.toml")
    file.folder.mkdir()
    monkeypatch.setattr(commands, "check_serving", lambda file: None)
    status = file.folder / "status.json"
    status.write_text(json.dumps(this_process() | {"state": "running"}))
    commands.start(file.path)
    assert commands.at_work(file)
    status.write_text(json.dumps({"state": "failed"}))
    (file.folder / "started.json").unlink()
    commands.start(file.path)
    assert not status.exists()


def test_a_server_listens_to_its_own_machine_unless_told_otherwise_and_then_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commands, "until_stopped", lambda work: None)
    commands.init(tmp_path / "far", "fl.example.org:8443")
    commands.init(tmp_path / "near", "127.0.0.1:8443")
    file = tmp_path / "far" / "FEDERATION.toml"
    assert read_federation(file).listen == "127.0.0.1:9443"
    assert read_federation(tmp_path / "near" / "FEDERATION.toml").listen == "127.0.0.1:8443"
    commands.serve(file)
    assert "Beware" not in capsys.readouterr().out
    file.write_text(file.read_text().replace("127.0.0.1:9443", "0.0.0.0:8443"))
    commands.serve(file)
    assert "Beware: whoever reaches 0.0.0.0:8443 can run code here." in capsys.readouterr().out


def test_a_sites_papers_are_written_whole_and_only_where_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(joining, "until_stopped", lambda work: None)
    held: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: held.append(Path(os.readlink(f"/proc/self/fd/{fd}")).read_text()))
    write_papers(tmp_path, Papers("north", "digits", server="127.0.0.1:9"))
    paper = tmp_path / "site.toml"
    assert held == [paper.read_text()]
    paper.write_text("# ours\n" + paper.read_text())
    joining.site_join(tmp_path, insecure=True)
    assert paper.read_text().startswith("# ours")
    joining.site_join(tmp_path, server="127.0.0.1:10", insecure=True)
    assert read_papers(tmp_path).server == "127.0.0.1:10"


@pytest.mark.parametrize(("answer", "goes_on"), [("Node ID not found for account.", True), ("Internal server error.", False)])
def test_a_server_that_was_killed_as_it_took_a_site_out_can_be_started_again(
    answer: str, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    commands.init(tmp_path / "f", "127.0.0.1:9")
    file = read_federation(tmp_path / "f" / "FEDERATION.toml")
    file.flower.mkdir(parents=True)
    record = file.flower / "registered.json"
    record.write_text('{"a key": 7}')

    def flwr(*_: Any) -> None:
        raise KithkinError(f"Flower's `supernode unregister` did not work: [code: 24] {answer}.", "")

    monkeypatch.setattr(programs, "flwr", flwr)
    with nullcontext() if goes_on else pytest.raises(KithkinError, match=answer):
        commands.register(file)
    assert json.loads(record.read_text()) == ({} if goes_on else {"a key": 7})


def test_a_site_that_was_taken_out_of_the_file_can_be_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    commands.init(tmp_path / "f", "127.0.0.1:9")
    path = tmp_path / "f" / "FEDERATION.toml"
    path.write_text(path.read_text() + "\n[[sites]]\nname = 'north'\nkey = 'k y'\n")
    file = read_federation(path)
    file.flower.mkdir(parents=True)
    for name in ("state.db", "state.db-wal", "registered.json"):
        (file.flower / name).write_text("{}")
    starts: list[list[str]] = []

    def flwr(*_: Any) -> dict[str, Any]:
        if (file.flower / "state.db").exists():
            raise KithkinError("Flower's `supernode register` did not work: Public key already in use.", "")
        return {"node-id": "7"}

    @contextmanager
    def running(command: list[str], *_: Any) -> Generator[Any, None, None]:
        starts.append(command)
        yield SimpleNamespace(poll=lambda: 0, returncode=0)

    def ended(seconds: float) -> None:
        raise KeyboardInterrupt

    for name, stand_in in (("flwr", flwr), ("running", running), ("check_port", str), ("wait_for_port", lambda *_: None)):
        monkeypatch.setattr(programs, name, stand_in)
    monkeypatch.setattr(commands, "check_public_key", lambda *_: None)
    monkeypatch.setattr(commands.time, "sleep", ended)
    commands.serve(file.path)
    assert len(starts) == 2
    assert list(json.loads((file.flower / "registered.json").read_text()).values()) == [7]
    assert not [*file.flower.glob("state.db*"), *file.flower.glob(commands.ANEW)]
