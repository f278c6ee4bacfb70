"""What explain says of each method's tensors and traffic, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from kithkin.cli import main
from kithkin.errors import KithkinError
from kithkin.explain import amount, lines, traffic
from kithkin.flags import settle
from kithkin.methods import METHODS, Setting, Training
from kithkin.nets import Layout, ResNet9, layout_of


def made(method: str, layout: Layout, **settings: object):
    config, own = settle({"method": method, **settings})
    training = Training(1, 32, 0.1, 0.9, False)
    setting = Setting(layout=layout, training=training, rounds=8, seed=0, device=torch.device("cpu"))
    return config.resolved(), METHODS[method].make(own, setting)


LOCAL_PARTS = {
    "um": set(),
    "um-plus": set(),
    "local": {"body", "norm", "head"},
    "fixavg": set(),
    "fixprox": set(),
    "fixbn": {"norm"},
    "fixavg-ft": set(),
    "fedper": {"head"},
    "lg-fedavg": {"body", "norm"},
    "pfedme": set(),
    "mix": {"norm"},
    "fedavg-sl": set(),
    "fedprox-sl": set(),
    "fedbn-sl": {"norm"},
}


@pytest.mark.parametrize("method", METHODS)
def test_every_tensor_is_shared_local_or_a_buffer_as_the_method_defines(method: str):
    net = ResNet9(1, 10, 2)
    layout = layout_of(net)
    told = lines(made(method, layout)[1], layout)
    assert [line.name for line in told] == [slot.name for slot in layout.slots]
    assert sum(line.numbers for line in told) == layout.size
    assert {line.part for line in told if line.role.startswith("local")} == LOCAL_PARTS[method]
    buffers = {name for name, tensor in net.named_buffers() if tensor.is_floating_point()}
    assert {line.name for line in told if line.role.endswith("buffer")} == buffers


def test_traffic_is_in_the_bytes_that_the_ledger_would_count():
    layout = layout_of(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))  # 9 + 4 numbers
    assert dict(traffic(*reversed(made("fedper", layout, clients=4, sample_rate=0.5)), layout))["each round"] == (
        "2 clients, 36 B down and 36 B up each: 144 B"
    )
    um = dict(traffic(*reversed(made("um", layout, clients=10, sample_rate=0.5)), layout))
    assert um["once, warm-up"] == "10 models up: 520 B"
    assert um["each round, upload"] == "5 models: 260 B"
    assert dict(traffic(*reversed(made("local", layout)), layout))["each round"].startswith("nothing")


def test_amounts_read_well():
    assert [amount(x) for x in (0, 999, 1000, 26_300_000, 5e9, 1.5e12)] == [
        "0 B", "999 B", "1 kB", "26.3 MB", "5 GB", "1,500 GB",
    ]  # fmt: skip


def test_a_narrow_terminal_loses_no_part_of_a_tensors_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "50")
    main(["explain", "um"])
    assert "…" not in capsys.readouterr().out


@pytest.mark.parametrize("method", METHODS)
def test_the_command_explains_every_method(method: str, capsys: pytest.CaptureFixture[str]):
    main(["explain", method, "--data", "digits", "--width", "2"])
    said = capsys.readouterr().out
    assert METHODS[method].summary.split(":")[0] in said
    assert "head.weight" in said


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("fixprox --prox 0", "does nothing of its own"),
        ("pfedme --server-mix 0", "does nothing of its own"),
        ("pfedme --prox 0", "does nothing of its own"),
        ("fedper --personal-layers 99", "there is no body"),
        ("lg-fedavg --fedavg-rounds 30 --rounds 30", "or it is FedAvg"),
        ("fixagv", "Did you mean 'fixavg'?"),
        ("", "No method is named"),
        ("--data digits fedper", "It comes first"),
        ("fedper --method um", "--method is um beside fedper"),
    ],
)
def test_what_would_be_a_no_op_is_refused_and_why(words: str, problem: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main(["explain", *words.split()])
    assert end.value.code == 2
    assert problem in capsys.readouterr().err


def test_fedbn_without_norms_is_refused():
    with pytest.raises(KithkinError, match="it would be FedAvg"):
        made("fixbn", layout_of(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))))


def test_a_data_set_that_is_not_here_can_be_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("KITHKIN_DATA", str(tmp_path))
    main(["explain", "fixbn", "--data", "cifar-10", "--width", "2"])
    assert "2x3x3x3" in capsys.readouterr().out  # the first layer sees three channels
