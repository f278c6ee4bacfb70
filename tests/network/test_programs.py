"""What Flower's programs are told, and what becomes of what they say."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509

from kithkin.network import programs
from kithkin.network.keys import make_authority


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
