"""Runs with one's own network and method: on every compute, resumed, compared, and refused where one lacks what the other
needs."""

from __future__ import annotations

import json
import math
import pickle
import runpy
import shutil
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_runs import COMMON, OWN, Heard
from tiny_runs import flags as tiny

import kithkin
from kithkin.cli import main
from kithkin.comparison import Cell
from kithkin.errors import KithkinError
from kithkin.flags import settle
from kithkin.manual import read
from kithkin.methods import METHODS, TAKEN
from kithkin.record import Folder, Result, resume
from kithkin.report.looks import look_at

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in COMMON.items() if k != "width")
UM = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in OWN["um"].items())
NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, size, classes, dropout=0.5, norm=True, bias=True, bare=False):
        super().__init__()
        self.body = nn.Linear(size[0] * size[1], 12)
        self.norm = nn.BatchNorm1d(12) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(12, classes, bias=bias)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.body(x.view(x.size(0), -1))).relu()))

class Backwards(Net):  # its classifier is not the layer defined last
    def __init__(self, size, classes):
        super().__init__(size, classes)
        body = self.body
        del self.body
        self.body = body

class Louder(Net):
    def forward(self, x):
        return 8 * super().forward(x)

class Tied(Net):
    def __init__(self, size, classes):
        super().__init__(size, classes, bias=False)
        first = nn.Linear(12, classes, bias=False)
        last = self.head
        del self.head
        self.first, self.head = first, last
        self.head.weight = first.weight

class Bare(nn.Module):
    def __init__(self, size, classes):
        super().__init__()
        self.w = nn.Parameter(nn.init.xavier_uniform_(nn.Parameter(__import__("torch").empty(size[0] * size[1], classes))))

    def forward(self, x):
        return x.flatten(1) @ self.w

def net(channels, classes, size): return Net(size, classes)
def still(channels, classes, size): return Net(size, classes, dropout=0)
def normless(channels, classes, size): return Net(size, classes, norm=False)
def unbiased(channels, classes, size): return Net(size, classes, bias=False)
def backwards(channels, classes, size): return Backwards(size, classes)
def louder(channels, classes, size): return Louder(size, classes)
def tied(channels, classes, size): return Tied(size, classes)
def bare(channels, classes, size): return Bare(size, classes)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the user's files in it."""
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    for example in EXAMPLES.glob("*.py"):
        shutil.copy(example, ".")


def do(**flags: Any) -> Result:
    method = flags.pop("method", "um")
    return kithkin.run(**{**tiny(method.replace("-plus", ""), **flags), "method": method})


def test_all_computes_give_the_same_run():
    results = [do(model="nets:net", compute=compute, out=compute) for compute in ("eager", "workers")]
    models = [(r.folder / "models.safetensors").read_bytes() for r in results]
    assert models[0] == models[1]


def test_a_worker_that_starts_from_nothing_finds_the_network(monkeypatch: pytest.MonkeyPatch):
    """As on macOS, where workers are no forks and must import the user's file themselves."""
    from kithkin.compute import workers

    monkeypatch.setattr(workers, "start_method", lambda: "spawn")
    flags = {"rounds": 1, "method": "fedavg-sl", "clients": 2, "sample_rate": 1.0}
    spawned = do(model="nets:net", compute="workers", out="spawned", **flags)
    eager = do(model="nets:net", compute="eager", out="eager", **flags)
    assert (spawned.folder / "models.safetensors").read_bytes() == (eager.folder / "models.safetensors").read_bytes()


def test_a_run_is_resumed_from_another_folder_and_a_changed_network_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = do(model="nets:net", out="whole")
    manifest = json.loads((whole.folder / "manifest.json").read_text())
    assert manifest["config"]["model"] == f"{tmp_path / 'nets.py'}:net"
    shutil.copytree("whole", "part")
    for name in ("summary.json", "models.safetensors", "clients.jsonl"):
        Path("part", name).unlink()
    lines = Path("part/metrics.jsonl").read_text().splitlines(keepends=True)
    Path("part/metrics.jsonl").write_text("".join(lines[:3]))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    heard = Heard()
    again = resume(tmp_path / "part", heard)
    assert (heard.already, heard.said) == (2, [])
    assert (again.folder / "models.safetensors").read_bytes() == (tmp_path / whole.folder / "models.safetensors").read_bytes()

    Path(again.folder / "summary.json").unlink()
    manifest["sources"]["model"] = "another"
    (again.folder / "manifest.json").write_text(json.dumps(manifest))
    resume(again.folder, heard)
    assert f"The file of the model ({tmp_path / 'nets.py'}:net) was changed since the run began." in heard.said

    Path(again.folder / "summary.json").unlink()
    manifest["model_numbers"] += 1
    (again.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(KithkinError, match=r"The model has [\d,]+ numbers; when the run began"):
        resume(again.folder, heard)


REFUSED = [
    ("um", "still", "MC-dropout", "nn.Dropout"),
    ("um-plus", "still", "MC-dropout", "nn.Dropout"),
    ("local --objective own-labels", "still", "MC-dropout", "nn.Dropout"),
    ("fixbn", "normless", "has none", "network with batch norm"),
    ("mix", "normless", "has none", "network with batch norm"),
    ("um-plus", "unbiased", "last layer has no bias", "Give it one"),
    ("um-plus", "backwards", "(body.weight) gives 12 numbers for 10 classes", "the last layer that the network defines"),
    ("fedper", "backwards", "(body.weight) gives 12 numbers for 10 classes", "the last layer that the network defines"),
    ("lg-fedavg", "backwards", "(body.weight) gives 12 numbers for 10 classes", "the last layer that the network defines"),
    ("um-plus", "louder", "does not reach its logits unchanged", "return what it gives as it is"),
    ("fedper", "tied", "has no weight of its own", "Let the classifier have its own"),
    ("lg-fedavg", "tied", "has no weight of its own", "Let the classifier have its own"),
    ("fedper", "bare", "no linear or convolution layer", "nn.Linear"),
    ("lg-fedavg", "bare", "no linear or convolution layer", "nn.Linear"),
    ("fedper --personal-layers 2", "net", "--personal-layers is 2", "Give another"),
    ("um", "normles", "has no 'normles'", "nets.py:normless'?"),
]


@pytest.mark.parametrize(("method", "net", "problem", "remedy"), REFUSED, ids=[f"{m} {n}" for m, n, _, _ in REFUSED])
def test_a_method_refuses_a_network_that_lacks_what_it_needs(
    method: str, net: str, problem: str, remedy: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as end:
        main(f"run --method {method} --model nets:{net} --out runs/x {TINY} {UM if method.startswith('um') else ''}".split())
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.count("\n") == 1
    assert problem in said
    assert remedy in said
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("method", "net"),
    [("fixavg", "bare"), ("fixprox", "normless"), ("fedper", "net"), ("um", "backwards"), ("fedavg-sl", "still")],
)
def test_a_method_takes_a_network_that_has_all_it_needs(method: str, net: str):
    assert do(method=method, model=f"nets:{net}", rounds=1, out="run").summary["method"] == method


@pytest.mark.parametrize("method", ["um", "um-plus", "fixbn"])
def test_the_small_vit_runs(method: str):
    result = do(method=method, model="small_vit:build", rounds=2, out="run")
    assert 0 <= result.summary["test_at_best_val"] <= 1


def test_signals_run_with_their_network_and_fixmatch_refuses_them(capsys: pytest.CaptureFixture[str]):
    runpy.run_path("signal_net.py")["invent"]("signals.npz", count=300, length=64)
    with np.load("signals.npz") as held:
        assert held["images"].shape == (300, 2, 1, 64)
    shape = {"model": "signal_net:build", "data": "signals.npz", "alpha": 5.0}
    assert do(method="um", out="um", **shape)
    learnt = do(method="fedavg-sl", out="sl", lr=0.05, epochs=3, sample_rate=1.0, **shape)
    assert learnt.summary["test_at_best_val"] > 0.6  # three classes
    for flags, problem in (
        ({"method": "fixavg", "model": "signal_net:build"}, "FixMatch's augmentations are for pictures"),
        ({"method": "um-plus", "model": "signal_net:build", "views": "weak"}, "FixMatch's augmentations are for pictures"),
        ({"method": "um"}, "ResNet-9 wants pictures of 8x8 pixels or more, not 1x64"),
        ({"method": "um", "model": "signal_net:build", "data": "digits"}, "AssertionError: these are pictures, not signals"),
    ):
        with pytest.raises(KithkinError, match=problem):
            do(**{"data": "signals.npz", "alpha": 5.0, "out": "refused", **flags})
    assert do(method="fixavg", objective="labelled-only", rounds=1, out="ok", **shape)


def test_a_method_of_ones_own_runs_resumes_and_is_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    plain = do(method="fixavg", out="plain")
    still = do(method="momentum:FEDAVGM", push=0.0, threshold=0.1, out="still")
    assert still.summary["method"] == "momentum:FEDAVGM"
    assert [m["test_mean"] for m in still.metrics] == pytest.approx([m["test_mean"] for m in plain.metrics])
    moved = do(method="momentum:FEDAVGM", threshold=0.1, out="moved")
    for name in ("summary.json", "models.safetensors"):
        shutil.copy(f"moved/{name}", name)
        Path("moved", name).unlink()
    lines = Path("moved/metrics.jsonl").read_text().splitlines(keepends=True)
    Path("moved/metrics.jsonl").write_text("".join(lines[:3]))
    heard = Heard()
    resume(moved.folder, heard)
    assert heard.already == 2
    assert Path("moved/models.safetensors").read_bytes() == Path("models.safetensors").read_bytes()
    main(f"compare --methods local momentum:FEDAVGM --push 0.2 --out both {TINY} --model nets:net --jobs 1 --quiet".split())
    assert "| momentum:FEDAVGM | 0.5 |" in Path("both/table.md").read_text()
    manifest = json.loads(Path("both/momentum.FEDAVGM-a0.5-s0/manifest.json").read_text())
    assert manifest["settings"]["push"] == 0.2
    assert manifest["config"]["method"] == f"{tmp_path / 'momentum.py'}:FEDAVGM"
    main(f"compare --methods local momentum:FEDAVGM --push 0.2 --out both {TINY} --model nets:net --jobs 1 --quiet".split())
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["run", "--method", "momentum:FEDAVGM", "--help"])
    assert "beta, how much of the last rounds' movement" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("Entry(FEDAVGM.summary, FEDAVGM.settings, make)", "made of Moving, which is not listed"),
        ("Entry('', FEDAVGM.settings, lambda s, at: ByNumber(**vars(make(s, at))), states=(Moving,))", "dict whose keys"),
    ],
)
def test_a_state_that_could_not_be_resumed_is_told_in_the_first_round(entry: str, problem: str):
    """The run would begin anew, or meet another state than it left."""
    Path("forgetful.py").write_text(f"""
from momentum import FEDAVGM, FedAvgM, Moving, make
from kithkin.methods import Entry

class ByNumber(FedAvgM):
    def merge(self, server, replies, round):
        return {{k: reply.examples for k, reply in replies.items()}}

METHOD = {entry}
""")
    with pytest.raises(KithkinError, match=problem) as e:
        do(method="forgetful:METHOD", threshold=0.1, out="run", eval_every=4)
    assert "write-a-method.md" in e.value.remedy
    assert not Path("run/metrics.jsonl").read_text()


LISTED = """
from dataclasses import dataclass
from pathlib import Path
from kithkin.methods import METHODS, AvgSettings, Entry

@dataclass(frozen=True)
class Stepped(AvgSettings):
    rates: tuple[float, ...] = (1.0, 0.5)

@dataclass(frozen=True)
class Filed(AvgSettings):
    file: Path = Path("x")

def make(settings, at):
    assert settings.rates + () == (1.0, 0.5)
    return METHODS["fixavg"].make(settings, at)

STEPPED = Entry("", Stepped(), make)
FILED = Entry("", Filed(), METHODS["fixavg"].make)
"""


def test_a_tuple_among_the_settings_is_one_again_after_a_resume_and_what_no_manifest_can_hold_is_refused():
    Path("listed.py").write_text(LISTED)
    whole = do(method="listed:STEPPED", threshold=0.1, out="run")
    whole.folder.joinpath("summary.json").unlink()
    assert resume(whole.folder).clients == whole.clients
    with pytest.raises(KithkinError, match="a setting of listed:FILED can stand in no manifest"):
        do(method="listed:FILED", out="filed")
    assert not Path("filed").exists()


FORGETS = """
from kithkin.methods import METHODS, Entry, FedAvg

class Forgets(FedAvg):
    def merge(self, server, replies, round):
        super().merge(server, replies, round)

class Breaks(FedAvg):
    def merge(self, server, replies, round):
        return super().merge(server, replies, round).w  # no state of FedAvg's

def of(kind):
    entry = METHODS["fixavg"]
    return Entry("", entry.settings, lambda s, at: kind(**vars(entry.make(s, at))))

FORGETS, BREAKS = of(Forgets), of(Breaks)
"""


def test_a_merge_that_forgets_its_return_is_told():
    Path("forgets.py").write_text(FORGETS)
    with pytest.raises(KithkinError, match="`merge` gives nothing"):
        do(method="forgets:FORGETS", threshold=0.1, out="run")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_fault_that_nobody_foresaw_costs_a_comparison_no_other_run(jobs: int, capsys: pytest.CaptureFixture[str]):
    Path("forgets.py").write_text(FORGETS)
    words = f"compare --methods forgets:BREAKS fixavg --threshold 0.1 --out both {TINY} --model nets:net --quiet --jobs {jobs}"
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    said = " ".join(capsys.readouterr().err.split())
    assert "1 of 2 runs broke off" in said
    assert "AttributeError" in said
    assert "`kithkin resume` of this one shows where" in said
    assert "| fixavg | 0.5 |" in Path("both/table.md").read_text()


def test_what_was_done_before_ones_own_code_failed_is_kept():
    Path("failing.py").write_text("""
from dataclasses import replace
from pathlib import Path
from kithkin.methods import METHODS, Entry, FedAvg

class Failing(FedAvg):
    def merge(self, server, replies, round):
        assert round < 3 or Path("mended").exists()
        return super().merge(server, replies, round)

METHOD = Entry("", METHODS["fixavg"].settings, lambda s, at: Failing(**vars(METHODS["fixavg"].make(s, at))),
               states=METHODS["fixavg"].states)
""")
    with pytest.raises(AssertionError):
        do(method="failing:METHOD", threshold=0.1, out="run", checkpoint_every=0)
    Path("mended").touch()
    heard = Heard()
    resume(Path("run"), heard)
    assert heard.already == 2


def test_a_cell_of_ones_own_method_reaches_a_process_that_does_not_know_it(monkeypatch: pytest.MonkeyPatch):
    cell = Cell(*settle({"method": "momentum:FEDAVGM", "push": 0.3}), Path("x"))
    sent = pickle.dumps(cell)
    for name in [name for name in sys.modules if name.startswith("momentum")]:
        monkeypatch.delitem(sys.modules, name)
    got = pickle.loads(sent)
    assert (got.config, got.settings.push, got.folder) == (cell.config, 0.3, cell.folder)
    assert pickle.loads(pickle.dumps(Cell(*settle({"method": "um"}), Path("y")))) == Cell(*settle({"method": "um"}), Path("y"))


@pytest.mark.parametrize("name", ["json:loads", "momentum:Settings", "momentum:make"])
def test_what_is_no_method_is_a_mistake(name: str):
    with pytest.raises(KithkinError, match="is no method") as e:
        do(method=name)
    assert "write-a-method.md" in e.value.remedy


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("LOOSE", "--method: halves:LOOSE is no method. Let it be Entry(summary, Settings(), make), with a frozen dataclass"),
        ("NOTHING", "--method: what `make` of halves:NOTHING gives (NoneType) has no opening_round."),
        ("TAKEN", "--method: halves:TAKEN has a setting 'momentum', as every run or command has. Give it another name."),
    ],
)
def test_settings_that_can_be_changed_or_are_a_runs_and_a_method_without_functions_are_mistakes(
    name: str, told: str, capsys: pytest.CaptureFixture[str]
):
    Path("halves.py").write_text(
        "from dataclasses import dataclass\nfrom kithkin.methods import METHODS, AvgSettings, Entry\n"
        "@dataclass\nclass Loose:\n    x: int = 1\n"
        "LOOSE = Entry('', Loose(), METHODS['fixavg'].make)\n"
        "NOTHING = Entry('', AvgSettings(), lambda settings, at: None)\n"
        "@dataclass(frozen=True)\nclass Taken(AvgSettings):\n    momentum: float = 0.5\n"
        "TAKEN = Entry('', Taken(), METHODS['fixavg'].make)\n"
    )
    with pytest.raises(SystemExit, match="2"):
        main(f"run --method halves:{name} --out run {TINY}".split())
    assert told in capsys.readouterr().err


def test_no_flag_of_a_command_may_be_a_setting_of_ones_own():
    told = {flag.name for words in (["run"], ["compare"]) for flag in read(words).flags}
    flags = {name.removeprefix("--").removeprefix("no-").replace("-", "_") for name in told if name}
    assert flags - {f.name for entry in METHODS.values() for f in fields(entry.settings)} <= TAKEN


def test_a_report_runs_nobodys_code_unasked():
    result = do(model="nets:net", out="run", rounds=1)
    manifest = json.loads((result.folder / "manifest.json").read_text())
    manifest["config"]["model"] = "trap:net"
    Path("trap.py").write_text("raise SystemExit('it ran')")
    remarks: list[str] = []
    assert look_at(Folder(result.folder), manifest, 1e18, remarks) == {}
    assert remarks == ["Confusion and latent features are not shown: that runs trap:net; --models always asks for it."]
    manifest["config"]["model"] = "nets:net"
    seen = look_at(Folder(result.folder), manifest, math.inf, [])
    assert np.array(seen["confusion"]).shape == (10, 10)
    assert len(seen["features"]["x"]) > 10


def test_explain_tells_what_is_shared_of_ones_own_network(capsys: pytest.CaptureFixture[str]):
    main(["explain", "fedper", "--model", "nets:net"])
    said = capsys.readouterr().out
    assert "head.weight" in said
    assert "norm.running_mean" in said
