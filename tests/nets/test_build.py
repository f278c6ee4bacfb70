"""The user's own network: what it is called with, and every way in which it can be unfit is told before anything is done."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kithkin.errors import KithkinError
from kithkin.nets import Network, anatomy_of, builder

GREY = (1, 8, 8)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module `mine` that can be imported, to put functions in."""
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


def plain(**_: Any) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))


def test_it_is_called_with_channels_classes_and_size_by_name(mine: Any):
    seen: list[Any] = []

    def build(size: Any, classes: Any, channels: Any) -> nn.Module:
        seen.append((channels, classes, size))
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 12, 5))

    mine.build = build
    builder("mine:build", (3, 8, 12), 5, 64)
    assert set(seen) == {(3, 5, (8, 12))}


def test_what_builds_it_passes_to_other_processes_by_name(mine: Any):
    mine.build = plain
    again = pickle.loads(pickle.dumps(builder("mine:build", GREY, 10, 64)))
    assert isinstance(again(), nn.Sequential)


def test_trying_it_out_leaves_torchs_dice_alone(mine: Any):
    mine.build = plain
    before = torch.get_rng_state()
    builder("mine:build", GREY, 10, 64)
    assert torch.equal(before, torch.get_rng_state())


class Wraps(nn.Module):
    """Two layers, and whatever is asked for between them."""

    def __init__(self, between: Any = None, outputs: int = 10, after: Any = None) -> None:
        super().__init__()
        self.body = nn.Linear(64, 16)
        self.between = between or (lambda x: x)
        self.after = after or (lambda x: x)
        self.head = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.after(self.head(self.between(self.body(x.flatten(1)))))


class TimeFirst(Wraps):
    """Dropout that sees tokens along its first dimension, as in a transformer that is not batch_first."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.body(x.flatten(1)).unflatten(1, (4, 4)).transpose(0, 1)
        return self.head(self.drop(tokens).transpose(0, 1).flatten(1))


class Remembers(Wraps):
    """What it saw last changes what it answers next; with `buffer` it keeps that in a buffer that is no float."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.seen = None
        self.register_buffer("count", torch.zeros((), dtype=torch.int64) if buffer else None)

    def forward(self, x: Tensor) -> Tensor:
        if self.count is not None:
            self.count += self.training
            return super().forward(x) * (1 + self.count)
        if self.training:
            self.seen = x.mean(0) if self.seen is None else (self.seen + x.mean(0)) / 2
        return super().forward(x if self.seen is None else x - self.seen)


class DropsEarly(Wraps):
    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = nn.Dropout(0.5), nn.Dropout(0.1)

    def trunk(self, x: Tensor) -> Tensor:
        return self.early(self.body(x.flatten(1)))

    def tail(self, x: Tensor) -> Tensor:
        return self.head(self.late(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.trunk(x))


class Halves(Wraps):
    def trunk(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1))

    def tail(self, x: Tensor) -> Tensor:
        return self.head(x) + 1


def spoilt() -> nn.Module:
    net = Wraps()
    nn.init.constant_(net.head.bias, float("nan"))
    return net


def attends(**_: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    return nn.Sequential(nn.Flatten(2, 3), nn.Flatten(0, 1), nn.Unflatten(1, (8, 8)), layer, nn.Flatten(), nn.Linear(64, 10))


UNFIT: list[tuple[Any, str, str]] = [
    (3, "mine:build is no function", "called as mine:build(channels=..., classes=..., size=...)"),
    (lambda width: None, "cannot be called so (missing a required argument: 'width')", "called as"),
    (lambda channels, classes: None, "cannot be called so (got an unexpected keyword argument 'size')", "called as"),
    (lambda **_: 1 / 0, "mine:build fails (ZeroDivisionError: division by zero)", "channels=1, classes=10, size=(8, 8)"),
    (lambda **_: None, "mine:build gives a NoneType", "an nn.Module"),
    (lambda **_: nn.Identity(), "it has no parameters", "layers that can be trained"),
    (lambda **_: plain().requires_grad_(False), "nothing in it can be trained", "require gradients"),
    (lambda **_: Wraps(after=lambda x: x.detach()), "nothing in it can be trained", "do not detach"),
    (lambda **_: spoilt(), "head.bias is not finite before any training", "initialised"),
    (lambda **_: nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), "1.weight has no shape before", "not lazy"),
    (lambda **_: plain().double(), "1.weight is torch.float64", "float32"),
    (lambda **_: nn.Linear(3, 10), "it fails in training (RuntimeError: ", "It must take float pictures 3x1x8x8"),
    (lambda **_: Wraps(outputs=9), "3 pictures of 10 classes with [3, 9]", "here [3, 10]"),
    (lambda **_: Wraps(after=lambda x: (x, x)), "it answers with a tuple", "one tensor"),
    (lambda **_: Wraps(after=lambda x: x.squeeze(0)), "1 pictures of 10 classes with [10] in evaluation", "[1, 10]"),
    (lambda **_: Wraps(functional.dropout), "its forward draws random numbers of its own", "nn.Dropout"),
    (attends, "its forward draws random numbers of its own", "dropout=0 inside attention"),
    (lambda **_: nn.Sequential(nn.AlphaDropout(), plain()), "AlphaDropout", "nn.Dropout"),
    (lambda **_: TimeFirst(), "A dropout layer got 4 rows for 6 pictures", "along the first dimension"),
    (lambda **_: Halves(), "tail(trunk(x)) is not forward(x)", "Name those parts otherwise"),
    (lambda **_: DropsEarly(), "its trunk has a dropout layer", "Let the tail begin with it"),
    (lambda **_: Remembers(), "it remembers pictures elsewhere", "float32 buffers"),
    (lambda **_: Remembers(buffer=True), "it remembers pictures elsewhere", "float32 buffers"),
]


@pytest.mark.parametrize(
    ("build", "problem", "remedy"), UNFIT, ids=[f"{i} {problem}" for i, (_, problem, _) in enumerate(UNFIT)]
)
def test_an_unfit_network_is_a_mistake_with_a_remedy(mine: Any, build: Any, problem: str, remedy: str):
    mine.build = build
    with pytest.raises(KithkinError) as e:
        builder("mine:build", GREY, 10, 64)
    assert problem in e.value.problem
    assert remedy in e.value.remedy


@pytest.mark.parametrize(("model", "shape", "problem"), [("resnt9", GREY, "Unknown model"), ("resnet9", (2, 1, 128), "1x128")])
def test_a_network_that_is_not_there_or_does_not_fit_is_a_mistake(model: str, shape: Any, problem: str):
    with pytest.raises(KithkinError, match=problem) as e:
        builder(model, shape, 10, 8)
    assert "module:function" in e.value.remedy


def test_dropout_is_found_by_type_and_only_where_it_drops():
    for layer, drops in ((nn.Dropout(0.5), True), (nn.Dropout2d(0.1), True), (nn.Dropout(0.0), False), (nn.ReLU(), False)):
        network = nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 10))
        assert anatomy_of(lambda network=network: network, GREY, 10).dropout == drops


def test_signals_are_known_by_their_shape():
    assert anatomy_of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, 10)), (1, 1, 8), 10).signals
    assert not anatomy_of(plain, GREY, 10).signals


@pytest.mark.parametrize(
    ("after", "is_open"),
    [
        (None, True),
        (lambda x: x.log_softmax(1), True),  # all logits move by one number more: no answer changes
        (lambda x: 8 * x, False),
        (lambda x: x.roll(1, 1), False),
        (torch.tanh, False),
    ],
)
def test_a_bias_is_open_if_what_is_added_to_it_is_added_to_the_logits(after: Any, is_open: bool):
    assert anatomy_of(lambda: Wraps(after=after), GREY, 10).open_bias == is_open


def test_a_bias_that_is_not_there_or_of_another_layer_is_not_open():
    assert not anatomy_of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)), GREY, 10).open_bias
    backwards = Wraps()
    backwards.last = nn.Linear(16, 10)  # defined last, and not asked
    assert not anatomy_of(lambda: backwards, GREY, 10).open_bias


def test_a_transformer_layer_drops_in_evaluation(mine: Any):
    """torch's fast path would pass its dropout layers by, and every MC-dropout pass would be the same."""

    def build(**_: Any) -> nn.Module:
        module = attends()
        module[3].self_attn.dropout = 0.0  # pyright: ignore[reportIndexIssue]
        return module

    mine.build = build
    network = Network(builder("mine:build", GREY, 10, 64), torch.device("cpu"))
    network.module.eval()
    with torch.no_grad():
        one, other = network.passes(torch.ones(1, *GREY), torch.tensor([[1], [2]]))
    assert not torch.allclose(one, other)
