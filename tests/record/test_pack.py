"""State as tensors and JSON, there and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from kithkin.errors import KithkinError
from kithkin.federation import Ledger, World
from kithkin.helpers import Helper, HelperList, Score
from kithkin.methods.base import Held
from kithkin.methods.fedavg import Global, Own
from kithkin.methods.um import Newest, Pool, UmState
from kithkin.record.checkpoint import CLASSES
from kithkin.record.folder import DTYPES, write_tensors
from kithkin.record.pack import pack, unpack


@dataclass(frozen=True)
class Stranger:
    x: int


class Line(NamedTuple):
    x: int
    y: int


def there_and_back(value: Any) -> Any:
    tensors: dict[str, Tensor] = {}
    return unpack(json.loads(json.dumps(pack(value, tensors))), tensors, CLASSES)


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    plain | st.builds(Held, st.integers(), st.integers(), st.floats(allow_nan=False)),
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None)
@given(values)
def test_what_is_packed_comes_back_equal_and_of_the_same_type(value: Any):
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("key", ["tensor", "dict", "list", "class", "fields"])
def test_a_dict_may_use_the_words_that_packing_uses(key: str):
    assert there_and_back({key: 1}) == {key: 1}
    assert there_and_back({key: {key: "0"}}) == {key: {key: "0"}}


def test_a_shared_tensor_is_written_once_and_shared_again():
    w, other = torch.randn(5), torch.randn(5)
    state = (Global(w), Own(w), Own(other), Newest(3, w))
    tensors: dict[str, Tensor] = {}
    packed = pack(state, tensors)
    assert len(tensors) == 2
    a, b, c, d = unpack(packed, {name: t.clone() for name, t in tensors.items()}, CLASSES)
    assert a.w is b.w is d.w
    assert c.w is not a.w
    assert torch.equal(a.w, w)
    assert torch.equal(c.w, other)


def test_equal_tensors_that_are_not_shared_stay_apart():
    a, b = there_and_back((Own(torch.zeros(2)), Own(torch.zeros(2))))
    assert a.w is not b.w


def test_the_world_of_um_comes_back_whole():
    w, p = torch.randn(4), torch.rand(3, 2)
    helpers = HelperList(0, (Helper(0, 1, w, Score(0.25, p)), Helper(1, 2, torch.randn(4))), 3)
    held = (Held(0, 1, 0.25), Held(1, 2, 0.0))
    world = World(
        7, Pool((Newest(1, w),), (held,)), (UmState(helpers, (Held(5, 1, 0.1),)),), Ledger({"search": 12, "upload": 4})
    )
    back = there_and_back(world)
    state = back.states[0]
    assert (back.round, back.ledger, back.server.holds) == (7, world.ledger, (held,))
    assert [(h.client, h.version, h.relation) for h in state.helpers] == [(0, 1, 0.25), (1, 2, 0.0)]
    assert (state.helpers.owner, state.helpers.M, state.refused) == (0, 3, (Held(5, 1, 0.1),))
    assert state.helpers.own.w is back.server.models[0].w
    assert torch.equal(state.helpers.own.score.p_u, p)


def test_a_class_that_is_not_listed_is_not_made():
    with pytest.raises(KithkinError, match="made of Stranger, which is not listed"):
        there_and_back(Stranger(1))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "object"),
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        (1j, "complex"),
        ({1: 2}, "dict whose"),
        (Line(1, 2), "Line"),
    ],
)
def test_what_would_not_come_back_is_refused_when_packing(value: Any, what: str):
    with pytest.raises(KithkinError, match=f"holds a {what}"):
        pack((value,), {})


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_numbers_of_every_kind_come_back(dtype: torch.dtype, tmp_path: Path):
    tensor = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    write_tensors(tmp_path / "x.safetensors", {"t": tensor, "none": tensor[:0], "one": tensor[0, 0]}, {})
    back = load_file(tmp_path / "x.safetensors")
    assert back["t"].dtype == dtype
    assert torch.equal(back["t"], tensor)
    assert back["none"].shape == (0, 3)
    assert back["one"].shape == ()
