"""Checkpoints: by rename, vouched for by hash, two of them kept; what is damaged is noticed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kithkin.errors import KithkinError
from kithkin.federation import Ledger, World
from kithkin.methods.fedavg import Global, Own
from kithkin.record import Folder, checkpoint

CPU = torch.device("cpu")


def world(number: int, clients: int = 3) -> World:
    w = torch.full((50,), float(number))
    return World(number, Global(w), tuple(Own(w + k) for k in range(clients)), Ledger({"start": 100 * number}))


def saved(folder: Path, *numbers: int) -> Path:
    for number in numbers:
        checkpoint.save(folder, world(number))
    return folder


def loaded(folder: Path) -> tuple[int | None, list[str]]:
    said: list[str] = []
    back = checkpoint.load(folder, lambda tensor: CPU, said.append)
    return (back.round if back else None), said


def file(folder: Path, number: int, kind: str = "safetensors") -> Path:
    return folder / f"round-{number:06d}.{kind}"


def test_what_was_saved_is_loaded_bit_for_bit(tmp_path: Path):
    odd = torch.tensor([0.0, -0.0, float("inf"), 1e-45, 0.1])
    matrix = torch.randn(3, 4)
    before = World(5, Global(odd), (Own(matrix[1]), Own(None), Own(matrix[:, 2]), Own(odd)), Ledger({"upload": 3}))
    checkpoint.save(tmp_path, before)
    after = checkpoint.load(tmp_path, lambda tensor: CPU, pytest.fail)
    assert after is not None
    assert (after.round, after.ledger) == (5, before.ledger)
    assert after.server.w.view(torch.int32).equal(odd.view(torch.int32))
    assert after.states[0].w.equal(matrix[1])
    assert after.states[1].w is None
    assert after.states[2].w.equal(matrix[:, 2])
    assert after.states[3].w is after.server.w


def test_the_voucher_names_the_round_and_the_hash(tmp_path: Path):
    saved(tmp_path, 4)
    expected = {"round": 4, "sha256": sha256(file(tmp_path, 4))}
    assert json.loads(file(tmp_path, 4, "json").read_text()) == expected


def test_the_newest_of_the_last_two_is_loaded(tmp_path: Path):
    saved(tmp_path, 1, 2, 9, 10)
    assert {p.name for p in tmp_path.iterdir()} == {
        file(tmp_path, n, kind).name for n in (9, 10) for kind in ("json", "safetensors")
    }
    assert loaded(tmp_path) == (10, [])


def test_rounds_are_compared_as_numbers_however_many_digits_they_have(tmp_path: Path):
    saved(tmp_path, 999_998, 999_999, 1_000_000)
    assert {p.stem for p in tmp_path.iterdir()} == {"round-999999", "round-1000000"}
    assert loaded(tmp_path) == (1_000_000, [])


def test_an_empty_or_missing_folder_has_no_checkpoint(tmp_path: Path):
    assert loaded(tmp_path) == (None, [])
    assert loaded(tmp_path / "none") == (None, [])


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def flip_in_the_header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[12] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "a byte altered": flip_a_byte,
    "a byte of its header altered": flip_in_the_header,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "emptied": lambda path: path.write_bytes(b""),
    "replaced by noise": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "removed": Path.unlink,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "voucher removed": lambda path: path.with_suffix(".json").unlink(),
    "voucher emptied": lambda path: path.with_suffix(".json").write_text(""),
    "voucher noise": lambda path: path.with_suffix(".json").write_bytes(b"\xff\xfe\x00{"),
    "voucher half-written": lambda path: path.with_suffix(".json").write_text('{"round": 4, "sha'),
    "voucher of another kind": lambda path: path.with_suffix(".json").write_text("[1, 2]"),
    "voucher without hash": lambda path: path.with_suffix(".json").write_text('{"round": 4}'),
    "voucher of another file": lambda path: path.with_suffix(".json").write_text(
        path.with_name("round-000002.json").read_text()
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used_and_said_in_one_line(tmp_path: Path, damage: str):
    saved(tmp_path, 2, 4)
    DAMAGE[damage](file(tmp_path, 4))
    number, said = loaded(tmp_path)
    assert number == 2
    assert len(said) == 1, said
    assert "round-000004" in said[0]
    assert "\n" not in said[0]


def test_where_all_are_damaged_each_is_said_and_none_is_used(tmp_path: Path):
    saved(tmp_path, 2, 4)
    for number in (2, 4):
        flip_a_byte(file(tmp_path, number))
    number, said = loaded(tmp_path)
    assert number is None
    assert ["round-000004" in said[0], "round-000002" in said[1], len(said)] == [True, True, 2]


def test_a_whole_checkpoint_that_holds_no_world_of_ours_is_refused_and_kept(tmp_path: Path):
    saved(tmp_path, 2, 4)
    for metadata in (
        None,
        {"world": "{"},
        {"world": '{"class": "Popen", "fields": {}}'},
        {"world": '{"class": "World", "fields": {}}'},
    ):
        save_file({"0": torch.zeros(1)}, file(tmp_path, 4), metadata=metadata)
        file(tmp_path, 4, "json").write_text(json.dumps({"round": 4, "sha256": sha256(file(tmp_path, 4))}))
        with pytest.raises(KithkinError, match=r"round-000004\.safetensors is whole, but cannot be taken up") as caught:
            loaded(tmp_path)
        assert f"Nothing was changed. Bring back the code that wrote it, or delete {tmp_path}" in caught.value.remedy
        assert file(tmp_path, 4).exists()


@pytest.mark.parametrize("part", ["safetensors", "json"])
def test_a_checkpoint_that_the_disk_does_not_give_now_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
):
    saved(tmp_path, 2, 4)
    opened = Path.open

    def broken(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self == file(tmp_path, 4, part):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return opened(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", broken)
        with pytest.raises(KithkinError, match=r"round-000004\.safetensors cannot be read now: Input/output error") as caught:
            loaded(tmp_path)
    assert "Nothing was changed" in caught.value.remedy
    assert loaded(tmp_path) == (4, [])


def test_a_new_checkpoint_outlives_older_damaged_ones_with_larger_numbers(tmp_path: Path):
    saved(tmp_path, 4, 6)
    for number in (4, 6):
        flip_a_byte(file(tmp_path, number))
    saved(tmp_path, 2)  # the run began anew, and was saved again
    assert loaded(tmp_path)[0] == 2


def test_a_checkpoint_leaves_no_later_one_of_the_run_that_it_begins_anew(tmp_path: Path):
    saved(tmp_path, 4, 6, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000002.json", "round-000002.safetensors"]


def test_saving_the_same_round_again_replaces_it(tmp_path: Path):
    saved(tmp_path, 2, 4)
    flip_a_byte(file(tmp_path, 4))
    saved(tmp_path, 4)
    assert loaded(tmp_path) == (4, [])


def test_a_file_managers_copy_is_no_checkpoint(tmp_path: Path):
    saved(tmp_path, 3)
    for kind in ("safetensors", "json"):
        (tmp_path / f"round-000003 (copy).{kind}").write_bytes(file(tmp_path, 3, kind).read_bytes())
    assert loaded(tmp_path) == (3, [])


def test_a_checkpoint_is_written_after_the_disk_holds_its_rounds_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, held = Folder(tmp_path), []
    folder.tidy()
    for path in (folder.metrics, folder.marks, folder.audit, folder.lists):
        folder.append(path, {"round": 1})
    monkeypatch.setattr(os, "fsync", lambda fd: held.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name))
    checkpoint.Pace(1, 0).save(folder, world(1))
    assert held[:4] == ["metrics.jsonl", "marks.jsonl", "audit.jsonl", "lists.jsonl"]
    assert "round-000001" in held[4]


def test_a_checkpoint_is_told_of_after_the_disk_holds_its_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    held: list[tuple[str, bool]] = []
    whole = file(tmp_path, 1, "json")
    monkeypatch.setattr(os, "fsync", lambda fd: held.append((os.readlink(f"/proc/self/fd/{fd}"), whole.exists())))
    saved(tmp_path, 1)
    assert held[-1] == (str(tmp_path), True)
