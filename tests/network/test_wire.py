"""What is refused, by whom, and that the sender is named; what is taken comes back bit for bit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake import Federation, terms_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto, recorddict_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

import kithkin
from kithkin.errors import KithkinError
from kithkin.methods.base import Parcel
from kithkin.nets import layout_of
from kithkin.network.roster import pulled
from kithkin.network.terms import craft_of, terms_from
from kithkin.network.wire import DTYPES, RefusedError, Wire, digest, parcel_lines, parcels_from

TERMS = {wire: terms_of("fixavg", wire=wire) for wire in ("fp32", "fp16", "bf16")}
CRAFT = craft_of(TERMS["fp32"], torch.device("cpu"))
P = CRAFT.w0.numel()


def wire_of(name: str) -> Wire:
    return Wire(TERMS[name], CRAFT)


def sealed(arrays: list[np.ndarray], note: Any = None, sha: str | None = None) -> RecordDict:
    """A message made by hand, its hash in order unless another is given."""
    text = json.dumps({"wire": "fp32"} if note is None else note)
    stamp = {"note": text, "sha256": digest(text, arrays) if sha is None else sha}
    return RecordDict({"kithkin": ConfigRecord(stamp), "models": ArrayRecord(arrays)})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_model_comes_back_as_its_numbers_can_be_held(name: str, dtype: torch.dtype):
    wire, w = wire_of(name), torch.linspace(-3, 3, P)
    content = wire.seal({"round": 7}, [(w, P)])
    assert sum(a.numpy().nbytes for a in content.array_records["models"].values()) == P * DTYPES[name][0].itemsize  # type: ignore[index]
    note, (back,) = wire.open(content, "north")
    assert note["round"] == 7
    assert back.dtype == torch.float32
    assert torch.equal(back, w.to(dtype).float())


def good() -> np.ndarray:
    return CRAFT.w0.numpy().copy()


def spoilt(value: float) -> np.ndarray:
    w = good()
    w[P // 2] = value
    return w


def below_zero() -> np.ndarray:
    """Its norm statistics turned round: numbers all of them, but the root of a variance is none."""
    w, n = good(), layout_of(CRAFT.build()).trained
    w[n:] *= -1
    return w


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (spoilt(math.nan), "NaN or infinite"),
        (spoilt(-math.inf), "NaN or infinite"),
        (good() * 1e6, "norm"),
        (spoilt(3e38), "norm"),
        (good()[:-1], "shape"),
        (np.concatenate([good(), good()]), "shape"),
        (good()[None], "shape"),
        (good()[:0], "shape"),
        (good().astype(np.float64), "float64"),
        (good().astype(np.float16), "float16"),
        (np.zeros(P, np.int64), "int64"),
        (np.zeros(P, "<U4"), "type"),
        (np.zeros(P, [("x", "<f4")]), "type"),
        (good().astype(">f4"), "type >f4"),
        (below_zero(), "answers with no numbers"),
    ],
)
def test_a_model_that_cannot_be_is_refused_and_its_sender_named(array: np.ndarray, why: str):
    with pytest.raises(RefusedError, match=why) as caught:
        wire_of("fp32").open(sealed([good(), array]), "site north")
    assert "site north" in caught.value.problem


def test_whatever_goes_wrong_while_a_model_is_opened_is_a_refusal(monkeypatch: pytest.MonkeyPatch):
    def unreadable(array: np.ndarray) -> None:
        raise RuntimeError("no tensor")

    monkeypatch.setattr(torch, "from_numpy", unreadable)
    with pytest.raises(RefusedError, match="site north cannot be read"):
        wire_of("fp32").open(sealed([good()]), "site north")


def test_a_message_that_was_altered_or_cut_is_refused():
    for arrays, sha in (([good()], "0" * 64), ([good()[: P // 2]], digest('{"wire": "fp32"}', [good()]))):
        with pytest.raises(RefusedError, match="north was cut or altered"):
            wire_of("fp32").open(sealed(arrays, sha=sha), "north")


def cut_array() -> RecordDict:
    content = sealed([good()])
    (array,) = content.array_records["models"].values()
    array.data = array.data[: len(array.data) // 2]
    return content


def pickled() -> RecordDict:
    """An array whose bytes are a pickle, as NumPy would write objects."""
    content = sealed([good()])
    (array,) = content.array_records["models"].values()
    array.data = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }" + b" " * 61 + b"\n\x80\x04N."
    return content


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"kithkin": ConfigRecord({"note": "{}"})}),
        sealed([], note=[1, 2]),
        sealed([], note="words"),
        cut_array(),
        pickled(),
        RecordDict({"kithkin": ConfigRecord({"note": "{", "sha256": digest("{", [])}), "models": ArrayRecord([])}),
    ],
)
def test_what_is_no_message_is_refused(content: RecordDict):
    with pytest.raises(RefusedError, match="north"):
        wire_of("fp32").open(content, "north")


def test_a_hash_tells_the_same_bytes_in_other_shapes_and_types_apart():
    a = np.zeros(4, np.float32)
    forms = [a], [a[:2], a[2:]], [a.reshape(2, 2)], [a.view(np.int32)]
    assert len({digest("note", arrays) for arrays in forms}) == 4


def test_other_numbers_than_agreed_on_are_refused():
    with pytest.raises(RefusedError, match="north sends fp16"):
        wire_of("fp32").open(wire_of("fp16").seal({}, [(CRAFT.w0, P)]), "north")


def test_what_half_precision_cannot_hold_is_not_sent():
    w = CRAFT.w0.clone()
    w[0] = 1e5
    with pytest.raises(RefusedError, match="fp16 cannot hold"):
        wire_of("fp16").seal({}, [(w, P)])
    wire_of("bf16").seal({}, [(w, P)])


@pytest.mark.parametrize(
    "bad", [None, [], [{}], "x", [{"cause": "upload", "client": "1", "version": 1, "size": 1, "evidence": 0}]]
)
def test_models_must_be_described(bad: Any):
    with pytest.raises(RefusedError, match="north"):
        parcels_from(bad, [CRAFT.w0], "north")
    lines = parcel_lines([Parcel("upload", 1, 2, CRAFT.w0, P, 3)], {1: 9})
    (back,) = parcels_from(json.loads(json.dumps(lines)), [CRAFT.w0], "north")
    assert (back.cause, back.client, back.version, back.size, back.evidence) == ("upload", 9, 2, P, 3)


NO_LABELS = {"asked": 0, "taken": 0, "wrong": 0, "by_class": [], "by_entropy": [], "by_helper": {}}
LIES: dict[str, dict[str, Any]] = {
    "it answers for client": {"client": 0},
    "round 9": {"round": 9},
    "more than it said it has": {"examples": 10**6},
    "no count": {"examples": -1},
    "not finite": {"seconds": math.inf},
    "a number in it is not finite": {"seconds": math.nan},
    "too large": {"seconds": 10**400},
    "int too large": {"seconds": 10**400},
    "no attribute": {"audit": NO_LABELS | {"by_helper": []}},
    "counts of labels cannot be": {"audit": NO_LABELS | {"wrong": 1}},
    "its counts of labels": {"audit": NO_LABELS | {"by_class": [[1, 2]] * 10, "by_entropy": [[0, 0]] * 10}},
    "cannot be": {"audit": NO_LABELS | {"asked": 2000}},
    "of 1 classes in 0 bins": {"audit": NO_LABELS | {"by_class": [[1, 0]]}},
    "ValueError|unpack": {"audit": NO_LABELS | {"by_class": [[1]] * 10, "by_entropy": [[0, 0]] * 10}},
    "a helper twice": {"holds": [[2, 1, 0.5], [2, 1, 0.5]]},
    "KeyError|12345": {"holds": [[12345, 1, 0.5]]},
    "describe its models": {"parcels": []},
}


@pytest.mark.parametrize("why", sorted(LIES))
def test_an_answer_that_lies_is_left_out_by_name_and_the_round_goes_on(why: str, tmp_path: Path):
    federation = Federation(tmp_path, "um", aliases=True, rounds=1, sample_rate=1.0, mc_samples=1)
    node, answer = federation.node(2), federation.node(2).answer

    def lying(message: Any) -> Any:
        reply = answer(message)
        if message.metadata.message_type == "train.round" and message.metadata.group_id == "1":
            arrays = reply.content.array_records["models"].to_numpy_ndarrays()
            note = json.loads(str(reply.content.config_records["kithkin"]["note"]))
            reply.content = sealed(arrays, note | LIES[why])
        return reply

    node.answer = lying  # type: ignore[method-assign]
    result = federation.serve()
    (what,) = [what for what in federation.said() if what.startswith("site-2 is left out of round 1")]
    assert any(part in what for part in why.split("|"))
    assert result.metrics[-1]["bytes_by_cause"]["upload"] == 2 * 4 * federation.node(0).site.craft.w0.numel()


@pytest.mark.parametrize("method", ["um", "um-plus", "fixavg"])
def test_a_message_is_its_models_and_less_than_a_kilobyte(method: str, tmp_path: Path):
    federation = Federation(tmp_path, method, aliases=True, sample_rate=1.0)
    extra: list[int] = []

    def weighed(message: Message) -> Message:
        models = [array for record in message.content.array_records.values() for array in record.values()]
        whole = len(recorddict_to_proto(message.content).SerializeToString())
        extra.append(whole - sum(array.numpy().nbytes for array in models))
        return message

    for node in federation.grid.nodes.values():
        node.answer = lambda message, answer=node.answer: weighed(answer(weighed(message)))  # type: ignore[method-assign]
    federation.serve()
    assert 0 < min(extra) <= max(extra) < 1000, "docs/deploy.md has the figures"


TOLD = {  # docs/deploy.md lists all of it under "What the pool reveals"
    "query.hello": {"name", "number", "sizes", "round", "kithkin"},
    "train.round": {"parcels", "examples", "holds", "audit", "seconds", "again"},
    "evaluate.exam": {"val", "test"},
}


def test_sites_tell_the_server_only_what_the_docs_list(tmp_path: Path):
    federation = Federation(tmp_path, "um-plus", rounds=1, sample_rate=1.0)
    told: dict[str, set[str]] = {kind: set() for kind in TOLD}

    def heard(message: Message, reply: Message) -> Message:
        note = json.loads(str(reply.content.config_records["kithkin"]["note"]))
        told[message.metadata.message_type] |= set(note) - {"wire", "client", "round"}
        if "sizes" in note:
            told["query.hello"] |= {"round"}
            assert set(note["sizes"]) == {"labelled", "unlabelled", "val", "test"}
        return reply

    for node in federation.grid.nodes.values():
        node.answer = lambda message, answer=node.answer: heard(message, answer(message))  # type: ignore[method-assign]
    federation.serve()
    assert told == TOLD
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text().replace("\n", " ")
    learnt = page.split("The server also learns")[1].split("Nothing here")[0]
    for what in ("version of kithkin", "validation and test pictures", "seconds it worked"):
        assert what in learnt


def site_2_tells(federation: Federation, kind: str, change: Callable[[dict[str, Any], Any], RecordDict]) -> None:
    """Have site 2 answer messages of a kind with what `change` makes of its note and content."""
    node = federation.node(2)
    honest = node.answer

    def answer(message: Any) -> Any:
        reply = honest(message)
        if message.metadata.message_type == kind:
            reply.content = change(json.loads(str(reply.content.config_records["kithkin"]["note"])), reply.content)
        return reply

    node.answer = answer  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines, arrays: ([], []), "it sends 0 models"),
        (lambda lines, arrays: (lines * 2, arrays * 2), "sends 2 models, where 1 may be"),
        (lambda lines, arrays: ([lines[0] | {"evidence": 2**52}], arrays), "more of its model than is so"),
        (lambda lines, arrays: ([lines[0] | {"size": 2**52}], arrays), "more of its model than is so"),
        (lambda lines, arrays: (lines, [arrays[0].astype(">f4")]), "numbers of type >f4"),
    ],
)
def test_a_model_too_few_or_too_many_praised_too_highly_or_back_to_front_is_left_out(change: Any, why: str, tmp_path: Path):
    federation = Federation(tmp_path, "fixavg", rounds=1, sample_rate=1.0)

    def lies(note: dict[str, Any], content: Any) -> RecordDict:
        lines, arrays = change(note["parcels"], content.array_records["models"].to_numpy_ndarrays())
        return sealed(arrays, note | {"parcels": lines})

    site_2_tells(federation, "train.round", lies)
    federation.serve()
    (what,) = [what for what in federation.said() if what.startswith("site-2 is left out")]
    assert why in what


@pytest.mark.parametrize("kind", ["query.hello", "train.round", "evaluate.exam"])
def test_a_model_under_many_names_is_not_unpacked_at_the_server(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    federation = Federation(tmp_path, "fixavg", rounds=1, least=2)
    unpack, most = ArrayRecord.to_numpy_ndarrays, [0]

    def counted(self: ArrayRecord) -> list[np.ndarray]:
        most[0] = max(most[0], len(self))
        return unpack(self)

    def bomb(note: dict[str, Any], content: RecordDict) -> RecordDict:
        one = Array(np.zeros(P, np.float32))
        return RecordDict({"kithkin": content["kithkin"], "models": ArrayRecord({str(i): one for i in range(1000)})})

    monkeypatch.setattr(ArrayRecord, "to_numpy_ndarrays", counted)
    site_2_tells(federation, kind, bomb)
    federation.serve()
    assert any("sends 1000 models, where" in what for what in federation.said())
    assert most[0] == 1


@pytest.mark.parametrize("kind", ["a message", "no message", "no content", "of bytes", "to what nobody asked"])
def test_an_answer_that_flower_cannot_read_or_that_nobody_asked_for_is_left_away(kind: str):
    reply = Message(sealed([good()]), dst_node_id=1, message_type="train.round")
    vars(reply.metadata)["_reply_to_message_id"] = "another" if kind == "to what nobody asked" else "asked"
    objects = {name: thing.deflate() for name, thing in get_all_nested_objects(reply).items()}
    made = {"no message": reply.content.deflate(), "no content": b"Message  0\0", "of bytes": b"Message  0\0\xff"}
    objects[reply.object_id] = made.get(kind, objects[reply.object_id])
    told = message_to_proto(reply)
    told.metadata.message_id, told.metadata.reply_to_message_id = reply.object_id, "asked"
    grid = HttpGrid(token="x")
    grid.set_run(Run.create_empty(1))
    vars(grid)["_client"] = SimpleNamespace(
        PullMessages=lambda _: SimpleNamespace(messages_list=[told], message_object_trees=[get_object_tree(reply)]),
        PullObject=lambda r: SimpleNamespace(object_found=True, object_available=True, object_content=objects[r.object_id]),
        ConfirmMessageReceived=lambda _: None,
    )
    assert [m.has_content() for m in pulled(grid, ["asked"], math.inf)] == [True] * (kind == "a message")


@pytest.mark.parametrize("mark", [1.01, -0.01, "1", None])
def test_a_mark_that_is_no_accuracy_is_none(mark: Any, tmp_path: Path):
    federation = Federation(tmp_path, "fixavg", rounds=1)
    site_2_tells(federation, "evaluate.exam", lambda note, _: sealed([], note | {"val": mark, "test": mark}))
    clients = federation.serve().clients
    assert [(c["val_accuracy"] is None, c["test_accuracy"] is None) for c in clients] == [(False, False)] * 2 + [(True, True)]


@pytest.mark.parametrize("boast", [10**400, 2.5, True, -1, "9", None])
def test_a_site_that_does_not_count_its_pictures_is_not_let_in(boast: Any, tmp_path: Path):
    federation = Federation(tmp_path, "fixavg", rounds=1, least=2)
    sizes = {"labelled": boast}
    site_2_tells(federation, "query.hello", lambda note, _: sealed([], note | {"sizes": note["sizes"] | sizes}))
    federation.serve()
    assert any("is not let in" in what and "is no count" in what for what in federation.said())


def test_a_site_of_another_version_is_not_let_in(tmp_path: Path):
    federation = Federation(tmp_path, "fixavg", rounds=1, least=2)
    site_2_tells(federation, "query.hello", lambda note, _: sealed([], note | {"kithkin": "0.0.1"}))
    federation.serve()
    assert f"a newcomer is not let in: It has kithkin 0.0.1, the server {kithkin.__version__}." in federation.said()


@pytest.mark.parametrize("done", ["5\nnorth is here", -1, 1.5, {"a": 1}, True])
def test_a_site_that_has_done_no_round_of_that_number_is_not_let_in(done: Any, tmp_path: Path):
    federation = Federation(tmp_path, "fixavg", rounds=1, least=2)
    site_2_tells(federation, "query.hello", lambda note, _: sealed([], note | {"round": done}))
    federation.serve()
    (what,) = [what for what in federation.said() if "is not let in" in what]
    assert "is no count" in what


def test_what_a_site_says_is_one_bounded_line_without_control_characters(tmp_path: Path):
    federation = Federation(tmp_path, "fixavg", rounds=1, least=2)
    words = "[/x] \x1b[2J\nnorth is here\u202e" + 9999 * "x"
    site_2_tells(federation, "train.round", lambda *_: sealed([], {"wire": "fp32", "refused": words}))
    federation.serve()
    (what,) = [what for what in federation.said() if "left out" in what]
    assert what.startswith("site-2 is left out of round 1: [/x]  [2J north is here xxx")
    assert what.isprintable()
    assert len(what) < 600


@pytest.mark.parametrize("run", ["x/../../../../victim", "..", "a b", "/x", "a" * 65])
def test_a_run_that_sites_could_not_name_a_folder_after_is_refused(run: str):
    with pytest.raises(KithkinError, match="folder's name"):
        terms_from(replace(TERMS["fp32"], run=run).as_text())
