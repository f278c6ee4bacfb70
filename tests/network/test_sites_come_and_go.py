"""Sites that are slow, lose their state, come late, leave, or pretend: the round is that of the others."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fake import Federation, figures, terms_of
from flwr.app import Error, Message
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError
from flwr.superlink.grid import http_grid
from torch import Tensor

from kithkin import rng
from kithkin.federation import Ledger, World
from kithkin.methods.base import Held
from kithkin.methods.um import Newest, Pool, UmState
from kithkin.methods.um_plus import Commons, pool_in
from kithkin.network import courier
from kithkin.network.courier import FlowerCourier
from kithkin.network.roster import ASK_AGAIN, Guest, Roster
from kithkin.network.server import Company
from kithkin.network.site import Site
from kithkin.network.terms import FederationFile, Seat, read_federation
from kithkin.network.wire import Answer, RefusedError, Wire
from kithkin.record import checkpoint


class StopError(Exception):
    """The server is gone."""


def is_round(message: Message, t: int, kind: str = "train.round") -> bool:
    return message.metadata.message_type == kind and message.metadata.group_id == str(t)


def at_round(federation: Federation, t: int, do: Any, kind: str = "train.round") -> None:
    """Once, before the first message of round t is delivered."""
    done: list[int] = []

    def before(message: Message) -> None:
        if is_round(message, t, kind) and not done:
            done.append(t)
            do()

    federation.grid.before = before


def pool_of(federation: Federation) -> World:
    world = checkpoint.load(federation.folder.checkpoints, lambda tensor: tensor.device, print)
    assert world is not None
    assert isinstance(world.server, Pool)
    return world


def state_of(federation: Federation, k: int) -> tuple[Answer, UmState]:
    world = federation.node(k).site.last()
    assert world is not None
    return world.server, world.states[0]


@pytest.mark.parametrize("aliases", [False, True])
def test_a_server_that_dies_goes_on_and_nobody_trains_twice(aliases: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = Federation(tmp_path / "whole", "um", aliases=aliases, rounds=3, sample_rate=1.0)
    expected = whole.serve()
    federation = Federation(tmp_path / "broken", "um", aliases=aliases, rounds=3, sample_rate=1.0)
    trained: list[tuple[str, int]] = []
    visit = Site._visit

    def counting(self: Site, brief: Any, *more: Any) -> Answer:
        trained.append((self.name, brief.round))
        return visit(self, brief, *more)

    monkeypatch.setattr(Site, "_visit", counting)
    examine = FlowerCourier.examine

    def dying(self: FlowerCourier, method: Any, server: Any, states: Any, round: int) -> Any:
        if round == 2:
            raise StopError
        return examine(self, method, server, states, round)

    with monkeypatch.context() as patch:
        patch.setattr(FlowerCourier, "examine", dying)  # round 2 is played, but not on record
        with pytest.raises(StopError):
            federation.serve()
    result = federation.serve()
    assert figures(result.metrics) == figures(expected.metrics)
    assert result.summary["bytes_by_cause"] == expected.summary["bytes_by_cause"]
    assert federation.folder.lists.read_text() == whole.folder.lists.read_text()
    assert len(trained) == len(set(trained)) == 3 * 4
    assert "the server goes on after round 1" in federation.said()
    assert sum("had done round 2 before" in what for what in federation.said()) == 3
    asked = len(federation.grid.sent)
    assert federation.serve().summary == result.summary
    assert len(federation.grid.sent) == asked, "what is finished is only read"


def test_a_checkpoint_of_the_server_whose_rounds_are_not_on_record_is_not_used(tmp_path: Path):
    federation = Federation(tmp_path, "fixavg", rounds=3, sample_rate=1.0)

    def stop() -> None:
        raise StopError

    at_round(federation, 3, stop)
    with pytest.raises(StopError):
        federation.serve()
    metrics = federation.folder.metrics
    metrics.write_text(metrics.read_text().splitlines(keepends=True)[0])
    federation.grid.before = lambda message: None
    assert [line["round"] for line in federation.serve().metrics] == [1, 2, 3]
    assert "the server goes on after round 1" in federation.said()


def test_who_does_not_answer_is_left_out_named_and_back_in_the_next_round(tmp_path: Path):
    federation = Federation(tmp_path, "um", rounds=2, sample_rate=1.0, least=2, deadline=0.3)
    node, answer = federation.node(1), federation.node(1).answer
    node.answer = lambda m: None if is_round(m, 1) else answer(m)  # type: ignore[method-assign]
    federation.serve()
    assert "site-1 is left out of round 1: no answer within 0.3 s" in federation.said()
    assert [h.version for h in state_of(federation, 1)[1].helpers if h.client == 1] == [2], "warm-up and round 2"
    lists = federation.folder.read_lines(federation.folder.lists)
    assert [v for j, v, _ in lists[0]["helpers"][1] if j == 1] == [1]
    assert [v for j, v, _ in lists[1]["helpers"][1] if j == 1] == [2]


@pytest.mark.parametrize("kind", ["query.hello", "train.round", "evaluate.exam"])
def test_a_site_that_is_cut_off_while_it_sends_keeps_the_others_waiting_until_the_deadline_and_no_longer(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for room in ("courier", "roster"):
        monkeypatch.setattr(f"kithkin.network.{room}.GRACE", 1.5)
    federation = Federation(tmp_path, "local", least=2, deadline=1.5, rounds=1)
    pull, tries = federation.grid.pull_messages, [0]

    def rest(name: str) -> bytes:
        tries[0] += 1
        assert tries[0] < 5, "it waits, and waits"
        raise ObjectUnavailableError(name)

    def cut(names: list[str]) -> list[Message]:
        replies = pull(names)
        asked = {m.metadata.message_id: m for m in federation.grid.sent}
        for i, message in enumerate(asked[reply.metadata.reply_to_message_id] for reply in replies):
            if (message.metadata.dst_node_id, message.metadata.message_type) == (102, kind) and not tries[0]:
                try:
                    vars(http_grid)["pull_objects"](["a part"], rest)
                except ObjectPullError as e:
                    replies[i] = Message(Error(3, str(e)), reply_to=message)
        return replies

    monkeypatch.setattr(federation.grid, "pull_messages", cut)
    federation.serve()
    assert tries[0] > 1
    (told,) = [what for what in federation.said() if "a part" in what]
    assert told.startswith("a newcomer is not let in" if kind == "query.hello" else "site-2 is left out of round")


def test_a_message_is_made_as_it_is_sent_so_that_those_of_all_sites_never_lie_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    federation = Federation(tmp_path, "fixavg", rounds=1, sample_rate=1.0)
    server: list[str] = []
    seal = Wire.seal

    def counting(self: Wire, note: Any, *more: Any) -> Any:
        if "known" in note:  # as in all that the server sends
            server.append("made")
        return seal(self, note, *more)

    monkeypatch.setattr(Wire, "seal", counting)
    federation.grid.before = lambda message: server.append("sent") if "hello" not in message.metadata.message_type else None
    federation.serve()
    assert server == ["made", "sent"] * 2 * 3


def test_a_file_system_without_locks_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    federation = Federation(tmp_path, "fixavg", rounds=1, sample_rate=1.0)
    assert federation.serve().metrics[0]["test_mean"] is not None
    assert not [what for what in federation.said() if "left out" in what]


def test_a_late_answer_is_dropped(tmp_path: Path):
    federation = Federation(tmp_path, "um", rounds=2, sample_rate=1.0, least=2, deadline=0.3)
    node, answer = federation.node(1), federation.node(1).answer
    late: list[Message] = []

    def slow(message: Message) -> Message | None:
        reply = answer(message)
        if is_round(message, 1):
            late.append(reply)  # type: ignore[arg-type]
            return None
        if late:
            old = late.pop()
            federation.grid.replies[old.metadata.reply_to_message_id] = old
        return reply

    node.answer = slow  # type: ignore[method-assign]
    federation.serve()
    lists = federation.folder.read_lines(federation.folder.lists)
    assert [[v for j, v, _ in line["helpers"][1] if j == 1] for line in lists] == [[1], [3]], "round 1 never came"


def test_a_site_that_lost_its_disk_gets_its_model_back_and_a_new_list(tmp_path: Path):
    federation = Federation(tmp_path, "um", rounds=3, sample_rate=1.0)

    def lose() -> None:
        shutil.rmtree(tmp_path / "site-1")
        node = federation.grid.nodes.pop(101)
        node.node_id = 201  # it comes back as another node
        federation.grid.nodes[201] = node

    at_round(federation, 2, lose, "evaluate.exam")
    federation.serve()
    assert "site-1 has lost its state, and gets its last model back" in federation.said()
    world = federation.grid.nodes[201].site.last()
    assert world is not None
    own = world.states[0].helpers.own
    assert own.version == 4, "warm-up and three rounds, although it forgot three of them"
    assert len(world.states[0].helpers) == 2


@pytest.mark.parametrize("when", ["train.round", "evaluate.exam"])
@pytest.mark.parametrize("method", ["um", "um-plus"])
def test_a_site_that_lost_its_disk_unnoticed_trains_on_nothing_and_gets_its_model_back(method: str, when: str, tmp_path: Path):
    federation = Federation(tmp_path, method, rounds=4, sample_rate=1.0)
    at_round(federation, 2, lambda: shutil.rmtree(tmp_path / "site-1"), when)  # its node is there at every look
    federation.serve()
    said = [what.removeprefix("site-1 ") for what in federation.said() if what.startswith("site-1")]
    assert "is left out of round 2: site-1 has nothing of this run any more." in said
    back = "has lost its state, and gets its last model back"
    assert said.count(back) == 1
    assert said[said.index(back) :] == [back, "is back in round 3"], "and `status` shows no older news"
    world = federation.node(1).site.last()
    assert world is not None
    own = world.states[0].helpers.own
    assert own.version == (5 if when == "evaluate.exam" else 4), "warm-up and four rounds, but for the one it was left out of"
    lists = federation.folder.read_lines(federation.folder.lists)
    versions = [[v for j, v, _ in line["helpers"][1] if j == 1] for line in lists]
    assert versions == sorted(versions), "nothing that it had learnt was replaced by a model from the start"
    marks = federation.folder.read_lines(federation.folder.marks)
    assert [line["test"][1] is None for line in marks] == [False, True, False, False], "nor is such a model examined"


def test_a_federation_whose_sites_have_all_lost_their_disks_goes_on(tmp_path: Path):
    federation = Federation(tmp_path, "um", rounds=3, sample_rate=1.0)
    at_round(federation, 2, lambda: [shutil.rmtree(tmp_path / f"site-{k}") for k in range(3)])
    federation.serve()
    assert sum("gets its last model back" in what for what in federation.said()) == 3
    assert [state_of(federation, k)[1].helpers.own.version for k in range(3)] == [3, 3, 3]


def test_a_site_of_lg_fedavg_that_lost_its_disk_gets_the_whole_model_again(tmp_path: Path):
    federation = Federation(tmp_path, "lg-fedavg", rounds=4, sample_rate=1.0, fedavg_rounds=1)

    def lose() -> None:
        shutil.rmtree(tmp_path / "site-1")
        federation.grid.nodes[201] = node = federation.grid.nodes.pop(101)
        node.node_id = 201

    at_round(federation, 3, lose, "evaluate.exam")
    started = [line["bytes_by_cause"]["start"] for line in federation.serve().metrics]
    whole, head = started[0] // 3, started[2] // 3
    assert started == [3 * whole, 3 * whole, 3 * head, 2 * head + whole]
    assert 0 < head < whole / 2


def test_a_site_that_joins_late_gets_helpers_at_once_and_was_offered_to_nobody_before(tmp_path: Path):
    federation = Federation(tmp_path, "um", sites=2, rounds=3, least=2, candidates=0, search_rounds=0)
    at_round(federation, 1, lambda: federation.join(2), "evaluate.exam")
    federation.serve()
    lists = federation.folder.read_lines(federation.folder.lists)
    assert lists[0]["helpers"][2] == [[2, 0, 0.0]]
    assert all(j != 2 for row in lists[0]["helpers"][:2] for j, *_ in row)
    assert {j for j, *_ in lists[1]["helpers"][2]} > {2}, "one of the others helps"
    assert lists[1]["helpers"][2][0][0] != 2 or lists[1]["helpers"][2][0][1] == 1
    marks = federation.folder.read_lines(federation.folder.marks)
    assert marks[0]["test"][2] is None
    assert marks[1]["test"][2] is not None


@pytest.mark.parametrize("method", ["um-plus", "fixavg"])
def test_a_late_site_and_one_that_leaves_for_good(method: str, tmp_path: Path):
    federation = Federation(tmp_path, method, sites=2, rounds=3, least=2)

    def swap() -> None:
        federation.join(2)
        del federation.grid.nodes[100]

    at_round(federation, 1, swap, "evaluate.exam")
    result = federation.serve()
    assert "site-0 is gone" in federation.said()
    assert result.metrics[-1]["round"] == 3
    marks = federation.folder.read_lines(federation.folder.marks)
    assert [mark is None for mark in marks[-1]["test"]] == [True, False, False]


def test_a_round_waits_for_as_many_sites_as_were_agreed_on_and_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    federation = Federation(tmp_path, "fixavg", sites=2, rounds=1, least=3)
    slept: list[float] = []
    monkeypatch.setattr(courier.time, "sleep", lambda s: slept.append(s) or (len(slept) == 2 and federation.join(2)))
    federation.serve()
    assert slept == [1.0, 1.0]
    assert [what.removeprefix("the server ") for what in federation.said() if what.startswith("the server")] == [
        "begins",
        "waits: 2 of at least 3 sites are here",
        "goes on: 3 sites are here",
        "is done",
    ], "or `status` would have it wait for ever"


def test_a_server_that_goes_on_knows_the_sizes_of_sites_that_are_away(tmp_path: Path):
    federation = Federation(tmp_path, "fixavg", sites=2, rounds=1, least=2)
    away = {"labelled": 7, "unlabelled": 3, "val": 1, "test": 2, "label_ratio": 0.7}
    federation.kept.write_text(json.dumps({"run": "r1", "secret": "s", "sites": {"2": away}}))
    assert away.items() <= federation.serve().clients[2].items()
    kept = json.loads(federation.kept.read_text())
    assert (sorted(kept["sites"]), kept["sites"]["2"], kept["secret"]) == (["0", "1", "2"], away, "s")


def test_two_sites_with_one_number(tmp_path: Path):
    federation = Federation(tmp_path, "fixavg", rounds=1)
    twin = federation.join(1)
    federation.join(1)  # the first one again, so that both are there
    twin.node_id, twin.site.name = 777, "imposter"
    federation.grid.nodes[777] = twin
    federation.serve()
    (what,) = [what for what in federation.said() if "not let in" in what]
    assert "number 1" in what
    assert "imposter" in what
    assert "site-1" in what


def roster_with_a_key(federation: Federation, folder: Path, number: int) -> tuple[Any, Roster, list[str]]:
    """The first node has a key, which the file knows as that of `north` with this number; and what the roster says."""
    node, said = federation.node(0), []
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    node.public_key = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    seats = (Seat(number, "north", public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()),)
    file = FederationFile(folder / "none", federation.terms, "", "", folder, seats)
    wire = Wire(federation.terms, node.site.craft)
    roster = Roster(federation.grid, federation.terms, file, wire, lambda who, what: said.append(f"{who} {what}"))  # type: ignore[arg-type]
    return node, roster, said


def test_a_refused_newcomer_is_named_by_its_key_and_asked_again_once_it_may_be_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    federation = Federation(tmp_path, "fixavg", sites=1)
    node, roster, said = roster_with_a_key(federation, tmp_path, 2)
    data = node.site.data

    def broken() -> Any:
        raise FileNotFoundError("data")

    node.site.data = broken
    refusal = "north is not let in: site-0 failed (FileNotFoundError); its site.log says why."
    for _ in range(3):
        roster.look()
    assert said == [refusal]
    assert len(federation.grid.sent) == 1, "not at every look"
    later = time.monotonic() + ASK_AGAIN
    monkeypatch.setattr(courier.time, "time", lambda: 0.0)  # the clock was set back, which changes nothing
    monkeypatch.setattr(courier.time, "monotonic", lambda: later)
    roster.look()
    assert said == [refusal], "asked again, and nothing new to tell"
    assert len(federation.grid.sent) == 2
    node.site.data = data
    roster.look()
    assert said == [refusal], "not yet"
    monkeypatch.setattr(courier.time, "monotonic", lambda: later + ASK_AGAIN)
    roster.look()
    assert said == [refusal, "north is here"]
    assert not roster.shunned


def test_who_does_not_say_who_it_is_is_asked_again_and_who_is_gone_is_not_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    federation = Federation(tmp_path, "fixavg", sites=1)
    node, said = federation.node(0), []
    wire = Wire(federation.terms, node.site.craft)
    roster = Roster(federation.grid, federation.terms, None, wire, lambda who, what: said.append(f"{who} {what}"))  # type: ignore[arg-type]
    honest, now = node.answer, time.monotonic()
    node.answer = lambda message: None  # type: ignore[method-assign]
    for later in (0, federation.terms.deadline - 1, federation.terms.deadline):
        monkeypatch.setattr(courier.time, "monotonic", lambda later=later: now + later)
        roster.look()
    assert len(federation.grid.sent) == 2, "once more, when the time for an answer is over"
    late = honest(federation.grid.sent[1])
    assert late is not None
    federation.grid.replies["m1"] = late
    federation.grid.nodes.clear()
    roster.look()
    assert (said, roster.guests, roster.asked) == ([], {}, {})


def test_who_was_refused_is_asked_again_at_once_when_the_file_has_changed(tmp_path: Path):
    federation = Federation(tmp_path, "fixavg", sites=1)
    node, said = federation.node(0), []
    ours, theirs = (ec.generate_private_key(ec.SECP384R1()).public_key() for _ in range(2))
    node.public_key = ours.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path = tmp_path / "FEDERATION.toml"

    def write(key: ec.EllipticCurvePublicKey, when: int) -> None:
        text = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        about = f'name = "x"\nclasses = {json.dumps(federation.terms.classes)}\nshape = [1, 8, 8]\nplaces = 3\n'
        path.write_text(f'{about}sites = [{{name = "north", number = 2, key = "{text}"}}]\n[run]\nmethod = "fixavg"\n')
        os.utime(path, (when, when))

    write(theirs, 1)
    wire = Wire(federation.terms, node.site.craft)
    roster = Roster(
        federation.grid, federation.terms, read_federation(path), wire, lambda who, what: said.append(f"{who} {what}")
    )  # type: ignore[arg-type]
    for _ in range(2):
        roster.look()
    assert said == ["a newcomer is not let in: A key that is registered, but not in the federation's file."]
    write(ours, 2)
    roster.look()
    assert said[1:] == ["north is here"]
    assert list(roster.guests) == [2]


def test_a_site_whose_number_the_run_does_not_have_is_not_let_in(tmp_path: Path):
    """Its file has more places by now: the run, which keeps its terms, ended with it, and whenever it was started again."""
    federation = Federation(tmp_path, "um", sites=1)
    _, roster, said = roster_with_a_key(federation, tmp_path, 3)
    roster.look()
    assert (said, roster.guests) == (["a newcomer is not let in: 'north' has number 3; this run has 3 places."], {})


def test_the_counts_of_sites_add_up_by_hand():
    """Site 0 tells details, site 1 does not; helpers stand in the order of their numbers."""
    tables = {"by_class": [[3, 1], [1, 0]], "by_entropy": [[4, 1]]}
    one = {"asked": 5, "taken": 4, "wrong": 1, **tables, "by_helper": {"10": [3, 1], "9": [1, 0]}}
    two = {"asked": 2, "taken": 1, "wrong": 0, "by_class": [], "by_entropy": [], "by_helper": {"10": [1, 0]}}
    total = courier.added([one, two, one])
    assert (total["asked"], total["taken"], total["wrong"]) == (12, 9, 2)
    assert (total["by_class"], total["by_entropy"]) == ([[6, 2], [2, 0]], [[8, 2]])
    assert list(total["by_helper"].items()) == [("9", [2, 0]), ("10", [7, 2])]


def test_aliases_tell_nobody_whose_model_it_is(tmp_path: Path):
    federation = Federation(tmp_path, "um", aliases=True, rounds=2, sample_rate=1.0)
    seen: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}

    def read(message: Message) -> None:
        if message.metadata.message_type == "train.round":
            note = json.loads(str(message.content.config_records["kithkin"]["note"]))
            seen[note["client"]] |= {parcel["client"] for parcel in note["parcels"]}

    federation.grid.before = read
    federation.serve()
    assert all(names and not names & {0, 1, 2} for names in seen.values())
    assert not seen[0] & seen[1], "no two sites know a third by the same name"
    for line in federation.folder.read_lines(federation.folder.lists):
        assert all(j in (0, 1, 2) for row in line["helpers"] for j, *_ in row), "the server's record has the real numbers"
    assert {h.client for h in state_of(federation, 0)[1].helpers} - {0} <= seen[0]


def test_a_round_takes_an_alias_for_each_model_that_is_sent_not_for_all_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With thousands of sites, what each calls each took many seconds a round."""
    federation = Federation(tmp_path, "um", aliases=True, sample_rate=1.0)
    made: list[Any] = []
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(courier, "rng", SimpleNamespace(key=lambda *address: made.append(address) or rng.key(*address)))

    def read(message: Message) -> None:
        if message.metadata.message_type == "train.round":
            note = json.loads(str(message.content.config_records["kithkin"]["note"]))
            sent.extend((note["client"], parcel["client"]) for parcel in note["parcels"])

    federation.grid.before = read
    federation.serve()
    assert len(made) == sum(k != alias for k, alias in sent) > 0


def test_an_old_backup_of_the_server_gets_the_newest_models_from_the_sites(tmp_path: Path):
    federation = Federation(tmp_path, "um", rounds=3, sample_rate=1.0)
    saved = tmp_path / "backup"
    at_round(federation, 2, lambda: shutil.copytree(federation.folder.path, saved))
    federation.serve()
    newest = state_of(federation, 0)[1].helpers.own
    shutil.rmtree(federation.folder.path)
    shutil.copytree(saved, federation.folder.path)
    federation.grid.before = lambda message: None
    federation.serve()
    world = pool_of(federation)
    assert isinstance(world.server.models[0].w, Tensor)
    assert world.server.models[0].version == newest.version == 4
    assert (world.server.models[0].w == newest.w).all()


def test_the_servers_record_names_the_sites_of_its_file(tmp_path: Path):
    roster = SimpleNamespace(file=SimpleNamespace(sites=(Seat(2, "north"), Seat(0, "south"))))
    company = Company(terms_of("fixavg"), Any, Any, SimpleNamespace(roster=roster), tmp_path)  # type: ignore[arg-type]
    assert company.client_names == ("south", "1", "north")
    roster.file = None
    assert company.client_names == (), "sites that are simulated have no names"


def test_who_comes_later_is_named_in_the_record_too_and_who_left_still_is(tmp_path: Path):
    federation = Federation(tmp_path, "local", rounds=2)
    federation.file = SimpleNamespace(path=tmp_path / "none", sites=(Seat(0, "north"), Seat(1, "south")))
    at_round(federation, 1, lambda: setattr(federation.file, "sites", (Seat(1, "south"), Seat(2, "west"))))
    federation.serve()
    assert federation.folder.read_manifest()["client_names"] == ["north", "south", "west"]


@pytest.mark.parametrize("common", [False, True], ids=["um", "um-plus"])
def test_who_is_cold_gets_its_model_back_until_it_has_one_and_who_left_for_good_helps_nobody(common: bool, tmp_path: Path):
    """Site 0 came back with nothing, site 1 is new, site 2 has left the file."""
    w0, w = torch.zeros(3), torch.ones(3)
    pool = Pool((Newest(4, w), Newest(0, w0), Newest(2, w)), tuple((Held(k, 4, 0.5), Held(2, 2, 0.5)) for k in range(3)))
    world = World(4, Commons(pool, (70, 0, 9), w, 79, w) if common else pool, (None,) * 3, Ledger())
    seats = tuple(Seat(k, f"site-{k}") for k in range(2))
    guests = {seat.number: Guest(seat, 100 + seat.number, {}, cold=True) for seat in seats}
    roster = SimpleNamespace(look=lambda: None, guests=guests, known={}, file=SimpleNamespace(sites=seats))
    there: Any = SimpleNamespace(roster=roster, lost={}, say=lambda *_: None)
    (tmp_path / "manifest.json").write_text('{"client_names": []}')
    (tmp_path / "server.json").write_text('{"sites": {}}')
    company = Company(terms_of("um", least=2), Any, w0, there, tmp_path / "server.json")  # type: ignore[arg-type]
    after = pool_in(company.ready(world).server)
    assert after is not None
    assert {k: (p.client, p.version, p.evidence, p.w is w) for k, p in there.lost.items()} == {0: (0, 4, 70 * common, True)}
    assert [[h.client for h in held] for held in after.holds] == [[0], [1, 2], [2, 2]]
    assert [m.version for m in after.models] == [4, 0, 0]
    assert after.models[2].w is w0
    guests[0].cold = False
    company.ready(world)
    assert there.lost == {}


def test_an_exam_waits_for_as_long_as_nobody_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    federation = Federation(tmp_path, "fixavg", rounds=1)
    nodes, looks = dict(federation.grid.nodes), [0]
    at_round(federation, 1, federation.grid.nodes.clear, "evaluate.exam")
    look = Roster.look

    def counted(self: Roster) -> None:
        looks[0] += 1
        if looks[0] > 2000:  # more than Python calls within calls
            federation.grid.nodes.update(nodes)
        look(self)

    monkeypatch.setattr(Roster, "look", counted)
    monkeypatch.setattr(courier, "POLL", 0)
    assert federation.serve().metrics[0]["test_mean"] is not None


@pytest.mark.parametrize(("what", "kind"), [("round", "train.round"), ("examine", "evaluate.exam")])
def test_a_round_that_nobody_has_done_is_asked_for_again_ever_more_slowly_and_told_once(
    what: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    federation = Federation(tmp_path, "fixavg", rounds=2, sample_rate=1.0)
    do, waits, tries = getattr(Site, what), [], [0]

    def full(self: Site, content: Any) -> Any:
        tries[0] += 1
        if tries[0] <= 3 * 12:
            raise RefusedError("Cannot write: the disk is full.", "")
        return do(self, content)

    monkeypatch.setattr(Site, what, full)
    monkeypatch.setattr(courier.time, "sleep", waits.append)
    result = federation.serve()
    assert [sum(is_round(m, t, kind) for m in federation.grid.sent) for t in (1, 2)] == [3 * 13, 3]
    assert waits[:2] == [0.2, 0.4]
    assert waits[-1] == 30.0
    assert [w for w in federation.said() if "left out" in w] == [
        f"site-{k} is left out of round 1: Cannot write: the disk is full." for k in range(3)
    ]
    assert result.metrics[0]["up_bytes"] > 0


def test_a_line_that_was_torn_does_not_hide_what_happens_after_it_and_no_round_stands_twice(tmp_path: Path):
    federation = Federation(tmp_path, "fixavg", rounds=1)
    torn = {
        "events.jsonl": '{"time": 1, "site": "north", "what": "is',
        "sites.jsonl": '{"round": 1, "asked": []}\n{"round": 0, "as',
    }
    for name, text in torn.items():
        (federation.folder.path / name).write_text('{"time": 1, "round": 0, "site": "north", "what": "is here"}\n' + text)
    federation.serve()
    assert federation.said()[0] == "north is here"
    assert federation.said()[-1] == "the server is done"
    assert [line["round"] for line in federation.folder.read_lines(federation.folder.path / "sites.jsonl")] == [0, 1]
