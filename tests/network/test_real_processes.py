"""Real programs, real kills: faults and refusals, several in one federation, since starting one takes half a minute."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from fleet import Fleet, environment, kill

from kithkin.network.joining import REFUSED
from kithkin.network.papers import read_papers
from kithkin.network.programs import free_address, program
from kithkin.report.gather import gather

pytestmark = pytest.mark.xdist_group("network")


@pytest.fixture
def fleets(tmp_path: Path) -> Generator[list[Fleet], None, None]:
    made: list[Fleet] = []
    yield made
    for fleet in made:
        fleet.close()


def own_version(fleet: Fleet, number: int) -> int:
    """How often a site has trained, as the server's last record of helper lists says."""
    row = fleet.lines("lists.jsonl")[-1]["helpers"][number]
    return next(version for client, version, _ in row if client == number)


def test_kills_of_sites_and_server_late_joins_twins_and_goodbyes(tmp_path: Path, fleets: list[Fleet]):
    fleet = Fleet(tmp_path, places=4, least=2, rounds=6, deadline=20)
    fleets.append(fleet)
    for k in range(4):
        fleet.init_site(k)
    fleet.init_site(0, "twin")
    serving = fleet.serve()
    sites = {k: fleet.join(k) for k in (0, 1)}
    sites[2] = fleet.join(2, "2:hang")
    log = fleet.file.parent / "server" / "server.log"
    fleet.wait(lambda: log.exists() and log.read_text().count("Activated node") >= 3, "three sites")
    fleet.start()

    # A site is killed in mid-round: the round ends without it.
    (state,) = waited(fleet, lambda: list(fleet.site(2).glob("state/run-*/hanging")))
    kill(sites[2])
    fleet.wait_round(2)
    fleet.wait_said("is left out of round 2")

    # One leaves for good, so that too few are there, and the server is killed, too.
    sites[1].terminate()
    assert sites[1].wait(60) == 0
    fleet.wait_said("site-1 is gone")
    fleet.wait_said("waits: 1 of at least 2")
    rounds = len(fleet.lines("metrics.jsonl"))
    assert 2 <= rounds <= 4
    kill(serving)

    # It comes back, and goes on when there are three again: not by one that claims another's number, but by the killed one,
    # with what it had, and by a new one.
    fleet.file.write_text(fleet.file.read_text().replace("least = 2", "least = 3"))
    fleet.serve()
    fleet.wait_said(f"the server goes on after round {rounds}")
    fleet.join("twin")
    fleet.join(2)
    fleet.wait_said("site-2 is here, and has done round 1")
    fleet.wait_said("is not let in")
    assert any("number 0" in what and "site-twin" in what for what in fleet.said())
    fleet.join(3)
    summary = fleet.wait_end()
    assert [line["round"] for line in fleet.lines("metrics.jsonl")] == list(range(1, 7)), "each round once"
    assert summary["bytes_by_cause"]["upload"] > 0
    trained = {k: [line["round"] for line in fleet.lines("sites.jsonl") if str(k) in line["seconds"]] for k in (0, 2)}
    assert trained[0][-6:] == list(range(1, 7)), "it was always there, but perhaps for the warm-up"
    assert trained[2][-(6 - rounds) - 1 :] == [1, *range(rounds + 1, 7)], "round 1, and all rounds since it came back"
    for k, rounds_of_it in trained.items():
        assert own_version(fleet, k) == len(rounds_of_it), "none of them twice"
    late = [line["helpers"][3] for line in fleet.lines("lists.jsonl")]
    first = next(row for row in late if row[0][1] or len(row) > 1)
    assert any(client != 3 for client, *_ in first), "helpers at once"
    assert state.exists()
    (page,) = gather([fleet.run])["runs"]
    assert page["finished"]
    assert page["curve"]["round"] == list(range(1, 7))
    table = fleet.call("federation", "status", str(fleet.file))
    assert "run finished, round 6 of 6" in table


def waited(fleet: Fleet, found):
    fleet.wait(found, "a file")
    return found()


def test_bad_models_cut_messages_a_full_disk_and_a_slow_site(tmp_path: Path, fleets: list[Fleet]):
    """Site 1 sends what cannot be, the server once sends site 0 what cannot be, site 2 has a full disk, then is slow."""
    fleet = Fleet(tmp_path, places=3, rounds=7, deadline=20)
    fleets.append(fleet)
    for k in range(3):
        fleet.init_site(k)
    fleet.serve("2:nan:0")
    fleet.join(0)
    fleet.join(1, "1:nan 2:norm 3:size 4:dtype 5:altered 6:cut")
    fleet.join(2, "3:full 5:slow30")
    fleet.start()
    fleet.wait_end()
    said = "\n".join(fleet.said())
    for what in (
        "site-1 is left out of round 1: A model of site-1 has NaN",
        "site-1 is left out of round 2: A model of site-1 has norm",
        "site-1 is left out of round 3: A model of site-1 has shape",
        "site-1 is left out of round 4: A model of site-1 has numbers of type float64",
        "site-1 is left out of round 5: The message of site-1 was cut or altered",
        "site-1 is left out of round 6: The message of site-1 was cut or altered",
        "site-0 is left out of round 2: A model of the server has NaN",
        "site-2 is left out of round 3: Cannot write: the disk is full",
        "site-2 is left out of round 5: no answer within 20 s",
    ):
        assert what in said, said
    assert str(tmp_path) not in said, "no path of a site's disk"
    assert [line["round"] for line in fleet.lines("metrics.jsonl")] == list(range(1, 8))
    assert own_version(fleet, 0) == 7, "seven rounds and the warm-up, but for the one it could not read"
    assert own_version(fleet, 2) == 7, "the full disk cost it a round; the slow one it has trained all the same"
    assert not list(fleet.site(2).glob("state/run-*/.*.draft")), "no half-written file is left"


def test_only_the_keys_in_the_file_are_let_in_and_only_over_tls_while_the_file_changes(tmp_path: Path, fleets: list[Fleet]):
    fleet = Fleet(tmp_path, places=3, least=2, secure=True, rounds=7, deadline=20)
    fleets.append(fleet)
    for k in range(2):
        fleet.seat(k, fleet.init_site(k))
    fleet.init_site(0, "stranger")
    fleet.serve()
    fleet.wait(lambda: "Serving" in (tmp_path / "serve.out").read_text(), "a server")
    assert "only for one machine" not in fleet.call(
        "site", "join", str(fleet.site(0)), "--server", "example.org:1", "--insecure", code=2
    )

    other = tmp_path / "other"
    fleet.call("federation", "init", str(other))
    ca, server = str(fleet.file.parent / "ca.crt"), fleet.server
    refusal = fleet.call("site", "join", str(fleet.site("stranger")), "--server", server, "--ca", ca, code=2)
    assert "does not let site-stranger in" in refusal
    (fleet.site("stranger") / "state").mkdir()  # as if it had been let in before
    refusal = fleet.call("site", "join", str(fleet.site("stranger")), "--ca", str(other / "ca.crt"), code=2)
    assert "does not vouch for" in refusal
    assert "once more" not in refusal, "told at once"

    node = [program("flower-supernode"), "--superlink", server, "--isolation", "process", "--max-wait-time", "5"]
    node += ["--port", free_address().split(":")[1]]
    env = environment() | {"FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    for flags in (["--root-certificates", ca], ["--insecure"]):  # no key; no TLS
        done = subprocess.run([*node, *flags], env=env, capture_output=True, timeout=600)
        assert done.returncode == 1, done.stderr
        assert b"SuperNode ID" not in done.stdout + done.stderr, "which the server gives to whom it lets in"

    for k in range(2):
        fleet.join(k)
    fleet.start()
    fleet.wait_round(1)
    assert sorted(what for what in fleet.said() if what.endswith("is here")) == ["0 is here", "1 is here"]
    assert read_papers(fleet.site(0)).ca == ca, "remembered"

    # The run is stopped, and goes on.
    assert "Stopped after round" in fleet.call("federation", "stop", str(fleet.file))
    rounds = len(fleet.lines("metrics.jsonl"))
    assert f"run stopped, round {rounds} of 7" in fleet.call("federation", "status", str(fleet.file))
    fleet.start()
    fleet.wait_said(f"the server goes on after round {rounds}")
    fleet.wait_round(rounds + 1)

    # A site is taken out of the file: it is refused from then on, and too few are there.
    log = fleet.site(1) / "site.log"
    assert REFUSED not in log.read_bytes()
    fleet.unseat(1)
    fleet.wait_said("1 is gone")
    fleet.wait_said("waits: 1 of at least 2")
    fleet.wait(lambda: REFUSED in log.read_bytes(), "a refusal")
    rounds = len(fleet.lines("metrics.jsonl"))
    assert rounds < 7

    # Another is put into it: it joins, gets helpers, but not the model of the one that left, and the run ends.
    fleet.seat(2, fleet.init_site(2))
    fleet.wait(lambda: (tmp_path / "serve.out").read_text().count("2 sites may join") == 1, "a key that is registered")
    fleet.join(2)
    fleet.wait_end()
    assert [line["round"] for line in fleet.lines("metrics.jsonl")] == list(range(1, 8)), "each round once"
    lists = [line["helpers"] for line in fleet.lines("lists.jsonl")]
    assert {client for client, *_ in lists[rounds][2]} == {0, 2}, "helpers at once"
    assert all(client != 1 for row in lists for client, *_ in row[2])
    copies = [[version for client, version, _ in row[0] if client == 1] for row in lists]
    assert all(copy in ([], copies[rounds - 1]) for copy in copies[rounds:]), "no newer one was sent"
    assert [mark is None for mark in fleet.lines("marks.jsonl")[-1]["test"]] == [False, True, False]
    held = json.loads((fleet.run / "server.json").read_text())
    assert set(held["sites"]) == {"0", "1", "2"}, "and no stranger"
