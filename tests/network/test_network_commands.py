"""The federation's file and the commands: every mistake is named, with its remedy, and code 2."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import shutil
import socket
import ssl
import stat
import subprocess
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kithkin import processes
from kithkin.cli import main
from kithkin.errors import KithkinError
from kithkin.network import commands, demo, joining, keys, programs
from kithkin.network.commands import check_same, init, reread
from kithkin.network.keys import check_public_key, check_server_papers, make_authority
from kithkin.network.papers import Papers, host_and_port, on_this_machine, read_papers, write_papers
from kithkin.network.programs import alone
from kithkin.network.terms import FederationFile, read_federation, terms_from

GOOD = """
name = "x"
classes = ["a", "b"]
shape = [1, 8, 8]
places = 3
[run]
method = "um"
rounds = 4
helpers = 2
candidates = 1
"""
KEY = "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBFvbki5iVVkKZQmeXMQmUUTbdeUuUtIX82wL8CNleH3"
KEY += "HPTizbLDTh9YBlmpk7AlYavozDVXyhhEUWgtUNmuBadBkKOADS0yqBp8TcVVsP/kQ8iKwyUZmAlXNBBWCVvKPlw=="

Capsys = pytest.CaptureFixture[str]


def written(folder: Path, text: str) -> Path:
    path = folder / "FEDERATION.toml"
    path.write_text(text)
    return path


def test_a_good_file_and_its_terms_on_the_way(tmp_path: Path):
    file = read_federation(written(tmp_path, GOOD + f'[[sites]]\nnumber = 2\nname = "north"\nkey = "{KEY} me@home"\n'))
    terms = file.terms
    assert (terms.places, terms.config.rounds, terms.settings.helpers, terms.wire, terms.aliases) == (3, 4, 2, "fp32", True)
    assert terms_from(terms.as_text()) == terms
    assert file.seat(2).name == "north"
    assert file.run == tmp_path / "server" / "run"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("shape = [1, 8, 8]", ""), "does not say 'shape'"),
        (("places = 3", "placs = 3"), "placs"),
        (("rounds = 4", "rounds = 4\nalpha = 0.5"), "'alpha'"),
        (("rounds = 4", 'rounds = 4\nflip = "yes"'), "'flip'"),
        (("rounds = 4", "runds = 4"), "runds"),
        (('method = "um"', 'method = "fedavg-sl"'), "setting of fedavg-sl"),
        (("rounds = 4", 'rounds = 4\nmodel = "mine:net"'), "mine:net is not of kithkin"),
        (("helpers = 2", "helpers = 9"), "--helpers"),
        (('["a", "b"]', '["a", "a"]'), "classes"),
        (('["a", "b"]', r'["a", "b\u001b[2J"]'), r"The class 'b\x1b[2J' has control characters"),
        (('["a", "b"]', '"abc"'), "classes = 'abc'. Write it as a list"),
        (("[1, 8, 8]", '"188"'), "shape = '188'. Write it as a list"),
        (("[1, 8, 8]", "[2, 8, 8]"), "shape"),
        (("[1, 8, 8]", "[1, 0, 8]"), "8 to 64 pixels"),
        (("[1, 8, 8]", '[1, "8", 8]'), "8 to 64 pixels"),
        (("places = 3", "places = 3\nserver = 5"), "--server is 5"),
        (("places = 3", "places = 3\nfolder = 5"), "--folder is 5"),
        (("places = 3", "places = 3\nsites = [5]"), "is not as it should be"),
        (("places = 3", 'places = 3\nsites = [{number = "x"}]'), "is not as it should be"),
        (("places = 3", "places = 3\nsites = [{number = inf}]"), "is not as it should be"),
        (("places = 3", 'places = 3\nwire = "fp8"'), "fp8"),
        (("places = 3", "places = 3\nleast = 4"), "least"),
        (("places = 3", "places = 3\ndeadline = 0"), "deadline"),
        (("places = 3", "places = 3\ndeadline = inf"), "deadline is inf"),
        (("places = 3", "places = -1"), "places is -1"),
        (("name", "name = ["), "cannot be read"),
    ],
)
def test_every_mistake_in_the_file_is_named(
    change: tuple[str, str], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = written(tmp_path, GOOD.replace(*change, 1))
    with pytest.raises(SystemExit) as caught:
        main(["federation", "status", str(path)])
    assert caught.value.code == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("twin", [(0, "b", "k x"), (1, "a", "k x"), (1, "b", "k y z")])
def test_two_sites_with_the_same_number_name_or_key_are_named(twin: tuple[int, str, str], tmp_path: Path):
    sites = [f"[[sites]]\nnumber = {n}\nname = '{name}'\nkey = '{key}'\n" for n, name, key in ((0, "a", "k y"), twin)]
    with pytest.raises(KithkinError, match="have the same"):
        read_federation(written(tmp_path, GOOD + "".join(sites)))


def test_sites_without_keys_are_told_apart_by_their_numbers(tmp_path: Path):
    sites = "".join(f"[[sites]]\nname = 'site-{k}'\n" for k in range(2))
    assert [(s.number, s.key) for s in read_federation(written(tmp_path, GOOD + sites)).sites] == [(0, ""), (1, "")]


def test_a_number_beyond_the_places_is_named(tmp_path: Path):
    with pytest.raises(KithkinError, match="has number 3"):
        read_federation(written(tmp_path, GOOD + "[[sites]]\nnumber = 3\nname = 'a'\n"))


@pytest.mark.parametrize("name", ["a\x1b]0;owned\a", "b\r", "c\x9b2J", "d\n"])
def test_a_site_takes_no_class_from_a_server_that_would_move_its_cursor(name: str, tmp_path: Path):
    told = json.loads(read_federation(written(tmp_path, GOOD)).terms.as_text())
    assert terms_from(json.dumps(told | {"classes": ["néoplasie", "نمی\u200cدانم"]})).classes[0] == "néoplasie"
    with pytest.raises(KithkinError, match="has control characters") as caught:
        terms_from(json.dumps(told | {"classes": ["a", name]}))
    assert str(caught.value).isprintable()


def test_a_run_keeps_its_terms_but_may_wait_longer(tmp_path: Path):
    path = written(tmp_path, GOOD)
    before = json.loads(read_federation(path).terms.as_text())
    path.write_text(GOOD.replace("places = 3", "places = 3\ndeadline = 5\nleast = 1"))
    check_same(before, read_federation(path).terms, path)
    path.write_text(GOOD.replace("rounds = 4", "rounds = 5"))
    with pytest.raises(KithkinError, match="rounds = 5, but the run began with 4"):
        check_same(before, read_federation(path).terms, path)
    path.write_text(GOOD.replace("places = 3", "places = 3\nflip = true"))  # which a run's config has, too
    with pytest.raises(KithkinError, match="flip = True, but the run began with False"):
        check_same(before, read_federation(path).terms, path)


def test_a_run_keeps_its_terms_in_a_version_that_knows_more_settings(tmp_path: Path):
    path = written(tmp_path, GOOD)
    before = json.loads(read_federation(path).terms.as_text())
    del before["settings"]["refresh_every"], before["config"]["momentum"]
    check_same(before, read_federation(path).terms, path)
    path.write_text(GOOD + "refresh_every = 3\n")
    with pytest.raises(KithkinError, match="refresh_every = 3, but the run began with 10"):
        check_same(before, read_federation(path).terms, path)


@pytest.mark.parametrize(("places", "helpers", "candidates"), [(1, 1, 0), (4, 4, 0), (6, 5, 1), (9, 5, 2)])
def test_few_places_need_no_flags(places: int, helpers: int, candidates: int, tmp_path: Path):
    text = GOOD.replace("places = 3", f"places = {places}\nleast = 1").replace("helpers = 2\ncandidates = 1\n", "")
    settings = read_federation(written(tmp_path, text)).terms.settings
    assert (settings.helpers, settings.candidates) == (helpers, candidates)


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("ec2-203-0-113-25.eu-central-1.compute.amazonaws.com", "ec2-203-0-113-25.eu-central-1.compute.amazonaws.com"),
        (f"{'a' * 60}.{'b' * 60}.org", f"{'a' * 60}.{'b' * 60}.org"),
        ("müller.de", "xn--mller-kva.de"),
    ],
)
def test_a_certificate_is_for_a_host_of_any_lawful_name(host: str, named: str, tmp_path: Path):
    from cryptography import x509

    make_authority(tmp_path, host)
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [named, "localhost"]
    assert [str(own) for own in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    valid = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert valid == datetime.timedelta(days=2 * 365, hours=1), "as docs/deploy.md has it"


def test_a_host_that_cannot_be_is_named(tmp_path: Path):
    with pytest.raises(KithkinError, match="no host's name"):
        make_authority(tmp_path, "a..b")


def authority(folder: Path, monkeypatch: pytest.MonkeyPatch, **years: int) -> Path:
    """A federation's folder whose certificates are valid for so many years."""
    monkeypatch.setattr(keys, "YEARS", {"ca": 10, "server": 2} | years)
    folder.mkdir()
    make_authority(folder, "localhost")
    return written(folder, GOOD)


def refusal(capsys: Capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_server_does_not_start_with_papers_that_tls_would_refuse(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
):
    for name in ("ca", "server"):
        path = authority(tmp_path / name, monkeypatch, **{name: 0})
        with (path.parent / "server.crt").open("ab") as chain:
            chain.write((path.parent / "ca.crt").read_bytes())
        with pytest.raises(KithkinError, match=f"{name}.crt is valid from"):
            check_server_papers(*(path.parent / paper for paper in ("ca.crt", "server.crt", "server.key")))
        assert f"{name}.crt is valid from" in refusal(capsys, "serve", str(path))
        assert not (path.parent / "server").exists()
    path = authority(tmp_path / "f", monkeypatch)
    with monkeypatch.context() as set_back:
        yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        clock = SimpleNamespace(now=lambda zone: yesterday)
        set_back.setattr(keys, "datetime", SimpleNamespace(datetime=clock, UTC=datetime.UTC))
        assert "ca.crt is valid from" in refusal(capsys, "serve", str(path))
    (path.parent / "server.key").write_bytes((tmp_path / "ca" / "server.key").read_bytes())
    assert "server.key is not the key of" in refusal(capsys, "serve", str(path))
    (path.parent / "server.key").write_text("x")
    assert "server.key is damaged" in refusal(capsys, "serve", str(path))
    (path.parent / "server.crt").write_text("x")
    assert "server.crt is no certificate" in refusal(capsys, "serve", str(path))
    (path.parent / "ca.crt").unlink()
    assert "There is no file" in refusal(capsys, "serve", str(path))


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl here")
def test_a_certificate_is_renewed_as_the_docs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = authority(tmp_path / "f", monkeypatch, server=0).parent
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("openssl ")]
    assert len(lines) == 2
    for line in lines:
        subprocess.run(shlex.split(line), cwd=folder, check=True, capture_output=True)
    check_server_papers(folder / "ca.crt", folder / "renewed.crt", folder / "server.key")
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "renewed.crt", folder / "server.key")
    to, fro = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(fro, to, server_hostname="localhost")
    theirs = server.wrap_bio(to, fro, server_side=True)
    for side in (ours, theirs, ours, theirs):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert ours.getpeercert(), "a client that knows the CA and the host's name takes it"


def test_a_damaged_key_or_ca_ends_a_site_at_once(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch):
    site = tmp_path / "site"
    main(["site", "init", str(site), "--data", "digits", "--device", "cpu"])
    capsys.readouterr()
    ca = str(authority(tmp_path / "f", monkeypatch).with_name("ca.crt"))
    (site / "site.key").write_text("x")
    assert "site.key is damaged" in refusal(capsys, "site", "join", str(site), "--server", "127.0.0.1:9", "--ca", ca)
    ca = str(authority(tmp_path / "g", monkeypatch, ca=0).with_name("ca.crt"))
    assert "ca.crt is valid from" in refusal(capsys, "site", "join", str(site), "--ca", ca)


def test_addresses():
    assert host_and_port("fl.example.org:8443") == ("fl.example.org", 8443)
    assert host_and_port("[::1]:9") == ("::1", 9)
    assert [on_this_machine(a) for a in ("127.0.0.1:1", "localhost:1", "[::1]:1", "10.0.0.1:1", "example.org:1")] == [
        True
    ] * 3 + [False] * 2
    for bad in ("host", "host:", ":1", "host:0", "host:65536", "host:x", 'a"b:1', "a b:1"):
        with pytest.raises(KithkinError, match="no address"):
            host_and_port(bad)


def test_insecure_is_for_one_machine_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    programs.check_secure(True, "127.0.0.1:1")
    programs.check_secure(False, "example.org:1")
    path = written(tmp_path, GOOD.replace("places", 'server = "0.0.0.0:9000"\nplaces'))
    with pytest.raises(SystemExit):
        main(["serve", str(path), "--insecure"])
    assert "0.0.0.0:9000 is another" in capsys.readouterr().err


def served(path: Path) -> Path:
    """What a server at work has on disk."""
    folder = path.parent / "server"
    folder.mkdir()
    (folder / "serving.json").write_text('{"pid": 1}')
    (folder / "status.json").write_text('{"pid": 1, "state": "running"}')
    return folder


@pytest.mark.parametrize("died", ["in a power cut", "as a process whose number another has"])
def test_a_process_that_only_has_the_number_of_a_server_that_died_is_not_taken_for_it(
    died: str, tmp_path: Path, capsys: Capsys
):
    path = written(tmp_path, GOOD)
    folder = served(path)
    boot, began = processes.this_process()["born"].split()
    born = f"another-boot {began}" if died == "in a power cut" else f"{boot} {int(began) - 1}"
    for name in ("serving.json", "status.json"):
        (folder / name).write_text(json.dumps({"pid": os.getpid(), "born": born, "state": "running"}))
    (folder / "started.json").write_text('{"run": "x"}')
    main(["federation", "status", str(path)])
    assert "server down, run waiting for its server, round 0" in capsys.readouterr().out
    assert "The server is not up." in refusal(capsys, "federation", "start", str(path))
    main(["federation", "stop", str(path)])
    assert "Stopped after round 0." in capsys.readouterr().out
    (folder / "serving.json").write_text(json.dumps(processes.this_process()))
    main(["federation", "start", str(path)])
    assert "Started" in capsys.readouterr().out


def test_a_file_is_served_by_one_server_alone(tmp_path: Path, capsys: Capsys):
    path = written(tmp_path, GOOD)
    folder = served(path)
    with alone(folder / ".serving", "", ""):
        for _ in range(2):
            with pytest.raises(SystemExit) as caught:
                main(["serve", str(path), "--insecure"])
            assert caught.value.code == 2
            assert f"is served already by process {os.getpid()}." in capsys.readouterr().err.replace("\n", " ")
    assert (folder / "serving.json").exists()
    assert (folder / "status.json").exists()
    with alone(folder / ".serving", "", ""):
        pass


def test_a_site_takes_part_once_at_a_time(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch):
    joined: list[str] = []
    monkeypatch.setattr(joining, "_join", lambda folder, papers, insecure: joined.append(papers.server))
    write_papers(tmp_path, Papers("north", "digits", server="127.0.0.1:9"))
    with alone(tmp_path / ".joined", "", ""):
        told = refusal(capsys, "site", "join", str(tmp_path), "--server", "127.0.0.1:10", "--insecure")
        assert f"{tmp_path} takes part already by process {os.getpid()}. Stop that one first." in told
        assert read_papers(tmp_path).server == "127.0.0.1:9"
    main(["site", "join", str(tmp_path), "--insecure"])
    assert joined == ["127.0.0.1:9"]


def test_a_port_that_is_taken_is_named_before_a_file_is_touched(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(programs, "LETTING_GO", 0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        path = written(tmp_path, GOOD.replace("places", f'server = "127.0.0.1:{port}"\nplaces'))
        folder = served(path)
        with pytest.raises(SystemExit) as caught:
            main(["serve", str(path), "--insecure"])
    assert caught.value.code == 2
    assert f"Port {port} is taken. Change `listen` in the file" in capsys.readouterr().err
    assert (folder / "serving.json").exists()
    assert (folder / "status.json").exists()
    programs.check_port(f"127.0.0.1:{port}")
    with pytest.raises(KithkinError, match="Cannot listen at 192"):
        programs.check_port("192.0.2.1:9000")


def test_a_server_that_is_up_keeps_its_folder_address_and_certificates(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
):
    registered: list[int] = []
    monkeypatch.setattr(commands, "register", lambda file: registered.append(len(file.sites)))
    file = read_federation(written(tmp_path, GOOD))
    for name, value in (("folder", "b"), ("listen", "127.0.0.1:9"), ("ca", "b"), ("certificate", "b"), ("key", "b")):
        written(tmp_path, GOOD.replace("rounds = 4", "rounds = 5").replace("places", f'{name} = "{value}"\nplaces'))
        assert reread(file, insecure=False) is file
        assert f"another {name} takes effect when `kithkin serve` is started again" in capsys.readouterr().out
    written(tmp_path, GOOD.replace("rounds = 4", "rounds = 5"))
    file.folder.mkdir()
    handed(file)
    assert reread(file, insecure=False) is file
    assert "name another folder in the file, and start `kithkin serve` again" in capsys.readouterr().out
    assert not registered
    written(tmp_path, GOOD + f"[[sites]]\nname = 'north'\nkey = '{KEY}'\n")
    assert [seat.name for seat in reread(file, insecure=False).sites] == ["north"]
    assert registered == [1]


def handed(file: FederationFile) -> None:
    """Flower has the run, which has not said anything yet."""
    started = {"run": "x", "flower": 1, "terms": json.loads(file.terms.as_text())}
    (file.folder / "started.json").write_text(json.dumps(started))


def test_a_run_that_has_just_been_handed_over_is_not_started_with_other_terms(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commands, "check_serving", lambda file: None)
    file = read_federation(path := written(tmp_path, GOOD))
    file.folder.mkdir()
    handed(file)
    written(tmp_path, GOOD.replace("rounds = 4", "rounds = 5"))
    assert "rounds = 5, but the run began with 4" in refusal(capsys, "federation", "start", str(path))


def test_until_a_run_begins_its_terms_may_change_while_a_server_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commands, "register", lambda file: None)
    file = read_federation(written(tmp_path, GOOD))
    file.folder.mkdir()
    (file.folder / "started.json").write_text('{"run": "x"}')  # which Flower has not been handed yet
    written(tmp_path, GOOD.replace("rounds = 4", "rounds = 5"))
    assert reread(file, insecure=False).terms.config.rounds == 5


def test_a_run_does_not_go_on_with_other_terms_when_its_server_is_started_again(tmp_path: Path, capsys: Capsys):
    path = written(tmp_path, GOOD)
    folder = served(path)
    (folder / "run").mkdir()
    terms = json.loads(read_federation(path).terms.as_text())
    (folder / "run" / "manifest.json").write_text(json.dumps({"terms": terms}))
    (folder / "started.json").write_text('{"run": "x", "flower": 1}')
    path.write_text(GOOD.replace("rounds = 4", "rounds = 5"))
    assert "rounds = 5, but the run began with 4" in refusal(capsys, "serve", str(path), "--insecure")
    (folder / "started.json").unlink()
    with alone(folder / ".serving", "", ""):
        assert "is served already" in refusal(capsys, "serve", str(path), "--insecure"), "`start` tells"


def test_a_run_that_goes_on_is_not_started_twice(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch):
    """Of two server apps one waits, and is the one that `stop` would end."""
    monkeypatch.setattr(commands, "check_serving", lambda file: None)
    path = written(tmp_path, GOOD)
    main(["federation", "start", str(path)])
    folder = tmp_path / "server"
    token = json.loads((folder / "started.json").read_text())["run"]
    (folder / "started.json").write_text(json.dumps({"run": token, "flower": 1}))
    (folder / "status.json").write_text(json.dumps(processes.this_process() | {"state": "running"}))
    main(["federation", "start", str(path)])
    assert "Started already: um, 4 rounds" in capsys.readouterr().out
    assert "flower" in json.loads((folder / "started.json").read_text())
    assert (folder / "status.json").exists()
    for again in ("failed", "deleted"):
        (folder / "status.json").write_text(json.dumps({"state": again}))
        if again == "deleted":
            shutil.rmtree(folder / "run")
        (folder / "started.json").write_text('{"run": "x", "flower": 1}')
        main(["federation", "start", str(path)])
        assert "flower" not in json.loads((folder / "started.json").read_text())


def test_a_disk_that_fails_while_the_file_changes_does_not_end_the_server(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
):
    def full(file: FederationFile) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(commands, "register", full)
    file = read_federation(written(tmp_path, GOOD))
    assert reread(file, insecure=False) is file
    assert "is not used: [Errno 28] No space left" in capsys.readouterr().out


def test_status_shows_what_sites_say_as_it_is(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "150")
    path = written(tmp_path, GOOD + f"[[sites]]\nname = '[bold]'\nkey = '{KEY}'\n")
    run = served(path) / "run"
    run.mkdir()
    said = [{"time": 0, "site": who, "what": "is left out: [/old] \x1b[2J"} for who in ("[bold]", "[/a stranger]")]
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in said))
    main(["federation", "status", str(path)])
    out = capsys.readouterr().out
    assert "[bold]" in out
    assert "[/a stranger]: " in out
    assert out.count("is left out: [/old]  [2J") == 2


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_status_tells_that_a_run_waits_for_as_long_as_it_does(state: str, tmp_path: Path, capsys: Capsys):
    path = written(tmp_path, GOOD)
    folder = served(path)
    (folder / "run").mkdir()
    said = [{"time": 0, "site": "the server", "what": what} for what in ("begins", "waits: 1 of at least 2 sites are here")]
    (folder / "run" / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in said))
    if state == "running":
        (folder / "status.json").write_text(json.dumps(processes.this_process() | {"state": "running"}))
    main(["federation", "status", str(path)])
    out = capsys.readouterr().out
    assert f"run {state}, round 0 of 4" in out
    assert ("waits: 1 of at least 2" in out, "begins" in out) == (state == "running", state == "stopped")


def test_status_of_a_run_whose_file_has_more_places_by_now(tmp_path: Path, capsys: Capsys):
    path = written(tmp_path, GOOD.replace("places = 3", "places = 4"))
    run = served(path) / "run"
    run.mkdir()
    (run / "marks.jsonl").write_text('{"round": 1, "val": [0, 0, 0], "test": [0.25, null, 0.5]}\n')
    main(["federation", "status", str(path)])
    out = capsys.readouterr().out
    assert "0.250" in out
    assert "site-3" in out


def test_status_tells_why_a_run_failed(tmp_path: Path, capsys: Capsys):
    path = written(tmp_path, GOOD)
    (served(path) / "status.json").write_text('{"state": "failed", "error": "The disk is full. Free some room."}')
    main(["federation", "status", str(path)])
    out = capsys.readouterr().out
    assert "run failed, round 0 of 4\nThe disk is full. Free some room. Mend that, then `kithkin federation start" in out


def test_nothing_phones_home(tmp_path: Path):
    env = programs.environment(tmp_path)
    assert (env["FLWR_TELEMETRY_ENABLED"], env["FLWR_DISABLE_UPDATE_CHECK"], env["RAY_USAGE_STATS_ENABLED"]) == ("0", "1", "0")
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


def test_a_site_is_not_made_for_a_device_that_is_not_there(tmp_path: Path):
    with pytest.raises(SystemExit) as caught:
        main(["site", "init", str(tmp_path / "site"), "--data", "digits", "--device", "banana"])
    assert caught.value.code == 2
    assert not (tmp_path / "site").exists()


def test_keys_are_secret_and_a_site_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", images=rng.integers(0, 255, (20, 8, 8), np.uint8), labels=np.array(["a", "b"] * 10))
    np.savez(tmp_path / "two.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array(["a", "b"]))
    site = tmp_path / "site"
    main(["site", "init", str(site), "--data", str(tmp_path / "d.npz"), "--name", "north"])
    key = capsys.readouterr().out.splitlines()[-1]
    check_public_key(key, "north")
    assert stat.S_IMODE(os.stat(site / "site.key").st_mode) == 0o600
    papers = read_papers(site)
    assert (papers.name, papers.data, papers.label_ratio) == ("north", str(tmp_path / "d.npz"), 1.0)
    for argv, what in (
        (["site", "init", str(site), "--data", str(tmp_path / "d.npz")], "is a site already"),
        (["site", "init", str(tmp_path / "b"), "--data", str(tmp_path / "none.npz")], "no file or folder"),
        (["site", "init", str(tmp_path / "b")], "No data is named"),
        (["site", "init", str(tmp_path / "b"), "--data", str(tmp_path / "two.npz")], "too few pictures: 2"),
        (["site", "join", str(site)], "No server is named"),
        (["site", "join", str(site), "--server", "a:1"], "no CA certificate"),
        (["site", "join", str(tmp_path / "b"), "--server", "a:1"], "no file"),
        (["federation", "start", str(written(tmp_path, GOOD))], "server is not up"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        assert caught.value.code == 2
        assert what in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("line", ["server = 7", "label_ratio = 'all'", "number = 'one'", "seed = true"])
def test_a_wrong_line_in_a_sites_papers_is_named(line: str, tmp_path: Path, capsys: Capsys):
    name = line.split()[0].replace("_", "-")
    (tmp_path / "site.toml").write_text(f"name = 'a'\ndata = 'b'\n{line}\n")
    assert f"site.toml, --{name} is" in refusal(capsys, "site", "join", str(tmp_path), "--insecure")


def test_what_a_federation_writes_is_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = os.umask(0o022)
    try:
        main(["site", "init", str(tmp_path / "site"), "--data", "digits", "--device", "cpu"])
        main(["federation", "init", str(tmp_path / "f")])
        path = written(tmp_path / "f", GOOD)
        monkeypatch.setattr(commands, "check_serving", lambda file: None)
        main(["federation", "start", str(path)])
        monkeypatch.setattr(commands, "_serve", lambda file, insecure: (file.flower / "state").mkdir(parents=True))
        main(["serve", str(path), "--insecure"])
        monkeypatch.setattr(joining, "_join", lambda folder, papers, insecure: (folder / "state").mkdir())
        main(["site", "join", str(tmp_path / "site"), "--server", "127.0.0.1:9", "--insecure"])
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    found = [p for home in ("site", "f") for p in (tmp_path / home, *(tmp_path / home).rglob("*")) if p != path]
    assert {"site.toml", "state", "flower", "server.json", ".serving", "started.json"} <= {p.name for p in found}
    assert [p for p in found if p.stat().st_mode & 0o077] == []


def test_a_secret_is_its_owners_alone_whatever_the_umask_and_is_never_replaced(tmp_path: Path):
    before = os.umask(0)
    try:
        keys.write_secret(tmp_path / "site.key", b"mine")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "site.key").st_mode) == 0o600
    with pytest.raises(FileExistsError):
        keys.write_secret(tmp_path / "site.key", b"another's")
    assert (tmp_path / "site.key").read_bytes() == b"mine"


def test_a_site_that_a_full_disk_kept_from_being_made_can_be_made_later(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
):
    words = ["site", "init", str(tmp_path / "site"), "--data", "digits", "--device", "cpu"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", lambda handle, how: os.close(handle) or FileIO("/dev/full", "w"))
        assert "the disk is full" in refusal(capsys, *words)
    main(words)
    assert (tmp_path / "site" / "site.key").stat().st_size > 0


def test_a_lock_on_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(KithkinError, match=r"Cannot write .*\.joined: the disk is full"), alone(tmp_path / ".joined", "", ""):
        pass


def test_a_federation_folder_has_an_authority_whose_key_is_secret(tmp_path: Path):
    init(tmp_path / "f", "fl.example.org:8443")
    assert read_federation(tmp_path / "f" / "FEDERATION.toml").server == "fl.example.org:8443"
    for name in ("ca.key", "server.key"):
        assert stat.S_IMODE(os.stat(tmp_path / "f" / name).st_mode) == 0o600
    with pytest.raises(KithkinError, match="not empty"):
        init(tmp_path / "f")
    other = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    for key in ("ssh-rsa AAAA", other.decode()):
        with pytest.raises(KithkinError, match="no public key"):
            check_public_key(key, "north")


@pytest.mark.parametrize(("wrong", "told"), [({"method": "nope"}, "Unknown method 'nope'"), ({"rounds": 0}, "--rounds is 0")])
def test_the_demo_names_a_wrong_flag_before_it_starts_a_server(wrong: dict[str, Any], told: str, tmp_path: Path):
    with pytest.raises(KithkinError, match=told):
        demo.demo(**wrong, out=tmp_path / "demo")
    assert not (tmp_path / "demo/demo.log").exists()


def test_the_demo_wants_an_empty_folder(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(KithkinError, match="is no empty folder"):
            demo.demo(out=taken)


@pytest.mark.parametrize("unit", ["kithkin-server", "kithkin-site"])
def test_the_documented_services_can_work_with_what_the_steps_above_them_make(unit: str):
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    text = page.split(f"# /etc/systemd/system/{unit}.service\n")[1].split("```")[0]
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    program, home = said["ExecStart"].split()[0], said["ReadWritePaths"]
    assert f"{program}'" in page, "where step 1 installs it"
    assert f"useradd --system --home-dir {home} --shell /usr/sbin/nologin {said['User']}\n" in page
    assert f"install -d -o {said['User']} -g {said['User']} -m 700 {home}\n" in page
    assert home in said["ExecStart"]
    assert said["ProtectSystem"] != "strict" or said["PrivateTmp"] == "true", "Python needs a folder for temporary files"
