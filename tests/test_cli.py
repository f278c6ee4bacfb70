"""The command line: what it prints, and that every mistake ends with one line, a remedy and exit code 2."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kithkin
from kithkin import cli, own
from kithkin.cli import main
from kithkin.config import RunConfig
from kithkin.errors import KithkinError
from kithkin.methods import METHODS
from kithkin.record.assembling import pick_device

SIZES = "--clients 6 --width 2 --rounds 2 --epochs 1 --batch-size 64 --sample-rate 0.34 --device cpu"
SMALL = f"{SIZES} --warmup-epochs 1 --mc-samples 2 --helpers 3 --candidates 2".split()


@pytest.fixture(autouse=True)
def wide_and_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lines of help are not broken, and a run that should not have begun leaves nothing in the tree."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "KITHKIN_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


class Said:
    def __init__(self, code: Any, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def kith(capsys: pytest.CaptureFixture[str]):
    def call(*words: str) -> Said:
        code: Any = 0
        try:
            main(words)
        except SystemExit as e:
            code = e.code or 0
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return call


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RunConfig, Any, Path | None]]:
    """The runs that the command line asks for, which are not done."""
    from kithkin import display, record

    runs: list[tuple[RunConfig, Any, Path | None]] = []

    def note(config: RunConfig, settings: Any, out: Path | None, display: Any) -> Any:
        runs.append((config, settings, out))
        return kithkin.record.Result(Path("x"), {}, [], [])  # pyright: ignore[reportAttributeAccessIssue]

    monkeypatch.setattr(record, "run", note)
    monkeypatch.setattr(display, "print_summary", lambda *_: None)
    return runs


MISTAKES: list[tuple[str, str, str]] = [
    ("run --method umm", "Unknown method 'umm'.", "Did you mean 'um'?"),
    ("run --method=fixagv", "Unknown method 'fixagv'.", "Did you mean 'fixavg'?"),
    ("run --method nonsense", "Unknown method 'nonsense'.", "Known: fedavg-sl,"),
    ("run --data digts", "Unknown data set 'digts'.", "Did you mean 'digits'?"),
    ("run --data fashion-mnis", "Unknown data set 'fashion-mnis'.", "Did you mean 'fashion-mnist'?"),
    ("run --data no/such.npz", "no file or folder no/such.npz", "Check the path"),
    ("run --clients 0", "--clients is 0", "Give another --clients"),
    ("run --batch-size 2000", "must not exceed the 1,797 pictures", "Give another --batch-size"),
    ("run --clients -3", "--clients is -3", "Give another --clients"),
    ("run --clients 5000", "5000 clients cannot share the 1797 pictures of digits", "at most 359 clients"),
    ("run --clients 359 --alpha 0.01", "359 clients and alpha 0.01", "fewer clients or a larger alpha"),
    ("run --alpha 0", "--alpha is 0", "Give another --alpha"),
    ("run --alpha -1", "--alpha is -1", "Give another --alpha"),
    ("run --alpha nan", "--alpha is nan", "Give another --alpha"),
    ("run --sample-rate 0", "--sample-rate is 0", "Give another --sample-rate"),
    ("run --sample-rate 1.5", "--sample-rate is 1.5", "Give another --sample-rate"),
    ("run --sample-rate -0.1", "--sample-rate is -0.1", "Give another --sample-rate"),
    ("run --label-ratio 2", "--label-ratio is 2", "Give another --label-ratio"),
    ("run --helpers 0", "--helpers is 0", "Give another --helpers"),
    ("run --helpers -2", "--helpers is -2", "Give another --helpers"),
    ("run --clients 6 --helpers 9", "--helpers is 9", "Give another --helpers"),
    (
        "run --clients 6 --helpers 3 --candidates 4",
        "--candidates is 4, but 6 clients with lists of 3 leave 3",
        "more --clients",
    ),
    ("run --lr 0", "--lr is 0", "Give another --lr"),
    ("run --model nonsense", "Unknown model 'nonsense'.", "module:function"),
    ("run --model no_such_module:f", "--model: there is no module 'no_such_module'.", "start kithkin in the folder"),
    ("run --model json:loads", "--model: json:loads cannot be called so", "channels=..., classes=..., size=..."),
    ("run --data ~nobody-here/x.npz", "There is no file or folder ~nobody-here/x.npz.", "Check the path."),
    ("run --method ~nobody-here/x.py:F", "--method: there is no file ~nobody-here/x.py.", "Check the path."),
    ("run --data cifar-10 --data-folder ~nobody-here", "cifar-10 is not in ", "kithkin data get cifar-10"),
    ("run --method no_such_module:F", "--method: there is no module 'no_such_module'.", "start kithkin in the folder"),
    ("run --method json:loads", "--method: json:loads is no method.", "docs/write-a-method.md"),
    ("explain json:loads", "--method: json:loads is no method.", "docs/write-a-method.md"),
    ("compare --methods json:loads", "--method: json:loads is no method.", "docs/write-a-method.md"),
    ("run --rounds 0", "--rounds is 0", "Give another --rounds"),
    ("run --lr inf", "--lr is inf; it must be above 0, and finite", "Give another --lr"),
    ("run --method local --threshold 0.5", "--threshold is FixMatch's, and does nothing here.", "Leave it out."),
    ("run --method fedavg-sl --lambda-u=1", "--lambda-u is FixMatch's, and does nothing here.", "Leave it out."),
    ("run --method local --model mine:net --width 4", "--width is ResNet-9's, and does nothing here.", "Leave it out."),
    ("compare --methods local --model mine:net --width=4", "--width is ResNet-9's", "Leave it out."),
    ("run --method fixprox --prox 0", "--prox is 0", "Give another --prox"),
    ("run --device banana", "no device 'banana'", "--device auto, cpu, cuda"),
    ("run --out file", "Cannot write file", "Give another --out"),
    ("run --out file/below", "Cannot write file/below", "Give another --out"),
    ("run --out full", "The folder full is not empty.", "Give another --out"),
    ("run --out started", "The folder started is not empty.", "Go on with `kithkin resume started`"),
    ("run --out done", "done holds a finished run.", "`kithkin report done` shows it"),
    ("resume none", "none is no run", "Name the folder given to --out"),
    ("resume full", "full is no run", "Name the folder given to --out"),
    ("resume file", "file is no run", "given to --out"),
    ("resume started", "manifest.json cannot be read", "another --out"),
    ("nonsense", "Unknown command 'nonsense'.", "Known: "),
    ("rum", "Unknown command 'rum'.", "Did you mean 'run'?"),
    ("data lst", "Unknown command 'lst'.", "Did you mean 'list'?"),
    ("data check digist", "'digist'", "Did you mean 'digits'?"),
    ("run --methd um", "Not understood: --methd um.", "Did you mean --method? `kithkin run --help` says what is taken."),
    ("run --rouns 3 --sed 4", "Not understood: --rouns 3 --sed 4.", "Did you mean --rounds or --seed?"),
    ("run um", "Not understood: um.", "`kithkin run --help`"),
    ("run --method local --helpers 3", "Not understood: --helpers 3.", "`kithkin run --method local --help`"),
    ("resume a b", "Not understood: b.", "`kithkin resume --help`"),
    ("methods um", "Not understood: um.", "`kithkin methods --help`"),
    ("resume", "PATH is missing.", "The run's folder, as given to --out."),
    ("compare", "--methods is missing.", "`kithkin methods` lists them"),
    ("run --clients", "--clients has no value.", "`kithkin run --help`"),
    ("run --clients abc", "--clients is 'abc'; it must be int.", "Give another --clients."),
    ("run --batch-size=abc", "--batch-size is 'abc'; it must be int.", "Give another --batch-size."),
    ("run --alpha x", "--alpha is 'x'; it must be float or given.", "Give another --alpha."),
    ("compare --methods um --seeds 1 b", "--seeds is '1 b'; it must be int.", "Give another --seeds."),
    ("run --relation all", "Unknown --relation 'all'.", "Known: accuracy, both, entropy."),
    ("export done --format onx", "Unknown --format 'onx'.", "Did you mean 'onnx'?"),
    ("completion tcsh", "Unknown shell 'tcsh'.", "Known: bash, fish, zsh."),
]


def test_a_home_folder_that_the_shell_left_as_it_is(kith: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "me").mkdir()
    said = kith("data", "show", "--data", "digits", "--clients=2", "--out=~/split.png")
    assert said.code == 0, said.err
    assert (tmp_path / "me" / "split.png").exists()
    assert not list(Path().glob("~*"))
    assert own.at_home("--out=a~b") == "--out=a~b"


@pytest.mark.parametrize(("words", "problem", "remedy"), MISTAKES, ids=[words for words, _, _ in MISTAKES])
def test_a_mistake_ends_with_one_line_a_remedy_and_code_2(kith: Any, tmp_path: Path, words: str, problem: str, remedy: str):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    (tmp_path / "started").mkdir()
    (tmp_path / "started" / "manifest.json").write_text("{")
    (tmp_path / "done").mkdir()
    for name in ("manifest.json", "summary.json"):
        (tmp_path / "done" / name).write_text("{}")
    before = {p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob("*")}
    said = kith(*words.split())
    assert said.code == 2
    assert said.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", said.err)
    assert "Traceback" not in said.err
    assert problem in said.err
    assert remedy in said.err
    assert said.err.index(problem) < said.err.index(remedy)
    assert {p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("name", ["meta", "xla", "cpu:x", ""])
def test_a_device_that_torch_knows_but_a_run_cannot_use_is_a_mistake(name: str):
    with pytest.raises(KithkinError, match=r"--device auto, cpu, cuda"):
        pick_device(name)


def test_a_cuda_device_beyond_the_last_is_a_mistake(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [pick_device(name).index for name in ("cuda", "cuda:1")] == [None, 1]
    with pytest.raises(KithkinError, match=r"no device 'cuda:2'\. The last one here is cuda:1"):
        pick_device("cuda:2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_cuda_device_is_a_mistake_with_a_remedy(kith: Any):
    said = kith("run", "--device", "cuda")
    assert said.code == 2
    assert "--device cpu" in said.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_a_mistake(kith: Any, tmp_path: Path):
    (tmp_path / "locked").mkdir(mode=0o555)
    for out in ("locked", "locked/below"):
        said = kith("run", *SMALL, "--out", out)
        assert said.code == 2
        assert f"Cannot write {out}" in said.err


def test_a_hidden_file_of_the_users_survives_the_refusal_of_its_folder(kith: Any, tmp_path: Path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".try").write_text("mine")
    assert kith("run", "--out", "full").code == 2
    assert (tmp_path / "full" / ".try").read_text() == "mine"


def test_a_preset_that_is_none_is_refused_and_not_run(kith: Any, asked: list[Any]):
    said = kith("run", "--preset", "papr")
    assert (said.code, asked) == (2, [])


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_misspelt_flag_is_told_in_one_line_on_any_screen(encoding: str):
    words = [sys.executable, "-m", "kithkin", "data", "get", "digits", "--foldr", "x"]
    screen = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "40"}
    said = subprocess.run(words, capture_output=True, text=True, env=screen)
    expected = "error: Not understood: --foldr x. Did you mean --folder? `kithkin data get --help` says what is taken.\n"
    assert (said.returncode, said.stdout, said.stderr) == (2, "", expected)


@pytest.mark.parametrize(
    ("box", "told"),
    [("", "The words are not understood."), ("╭─ Required options ─╮\n│ of nobody │", "Required options of nobody")],
)
def test_a_box_that_tyro_draws_otherwise_is_told_all_the_same(kith: Any, monkeypatch: pytest.MonkeyPatch, box: str, told: str):
    def cli(*args: Any, **kwargs: Any) -> None:
        print(box, file=sys.stderr)
        sys.exit(2)

    monkeypatch.setattr("tyro.cli", cli)
    said = kith("methods", "x")
    assert (said.code, said.err) == (2, f"error: {told} `kithkin methods --help` says what is taken.\n")


def test_words_with_brackets_are_shown_as_they_are(kith: Any):
    assert "no file or folder a/[bold]b.npz" in kith("run", "--data", "a/[bold]b.npz").err


def test_a_long_error_stays_on_one_line(kith: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert kith("run", "--method", "nonsense").err.count("\n") == 1
    assert "Not understood: --method-of-a-very-long-name um." in kith("run", "--method-of-a-very-long-name", "um").err


def flags_of(text: str) -> set[str]:
    return {word.removeprefix("--") for word in re.findall(r"--[a-z][a-z-]+", text)}


OWN = {name: {f.name.replace("_", "-") for f in fields(entry.settings)} for name, entry in METHODS.items()}


@pytest.mark.parametrize("method", METHODS)
def test_help_shows_the_flags_of_the_method_and_no_others(kith: Any, method: str):
    said = kith("run", "--method", method, "--help")
    assert said.code == 0
    assert flags_of(said.out) & set().union(*OWN.values()) == OWN[method]
    assert {"method", "data", "clients", "alpha", "seed", "rounds", "out", "quiet", "preset"} <= flags_of(said.out)
    assert METHODS[method].summary in said.out


def test_the_file_of_ones_own_method_may_be_called_as_it_likes(kith: Any):
    Path("2nd try.py").write_text("from kithkin.methods import METHODS\nM = METHODS['fedper']\n")
    said = kith("run", "--method", "2nd try.py:M", "--help")
    assert said.code == 0
    assert flags_of(said.out) >= OWN["fedper"]


def test_help_without_a_method_is_that_of_um(kith: Any):
    assert flags_of(kith("run", "--help").out) >= OWN["um"] >= {"helpers", "candidates", "search-rounds", "refresh-every"}


def test_help_shows_the_defaults_that_suit_the_data_set(kith: Any):
    assert re.search(r"--clients INT\s+K, how many clients share the data\. \(default: 20\)", kith("run", "--help").out)
    assert re.search(r"K, how many clients share the data\. \(default: 100\)", kith("run", "--preset", "paper", "--help").out)


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_help_names_every_command(kith: Any, words: list[str]):
    said = kith(*words)
    assert said.code == 0
    assert all(re.search(rf"^  {name} +\w", said.out, re.MULTILINE) for name in cli.COMMANDS)


def test_the_version_is_told(kith: Any):
    said = kith("--version")
    assert (said.code, said.out) == (0, f"kithkin {kithkin.__version__}\n")


def test_help_is_not_broken_within_words(kith: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = kith("paper", "--help").out.splitlines()
    assert max(map(len, lines[5:])) <= 40
    assert "  organamnist    Accuracy on OrganAMNIST" in lines


@pytest.mark.parametrize("words", [["data"], ["data", "--help"]])
def test_help_of_data_names_its_commands(kith: Any, words: list[str]):
    said = kith(*words)
    assert said.code == 0
    assert all(re.search(rf"^  {name} +\w", said.out, re.MULTILINE) for name in ("list", "get", "import", "check", "show"))


def test_methods_lists_every_method(kith: Any):
    said = kith("methods")
    assert said.code == 0
    for name, entry in METHODS.items():
        assert re.search(rf"^\W+{name} .*{re.escape(entry.summary)}", said.out, re.MULTILINE)


def test_data_list_names_every_data_set(kith: Any):
    said = kith("data", "list")
    assert said.code == 0
    assert all(name in said.out for name in ("digits", "fashion-mnist", "cifar-10", "organamnist", "pathmnist"))


def test_the_papers_preset_sets_every_value_of_the_paper(kith: Any, asked: list[Any]):
    kith("run", "--preset", "paper", "--data", "cifar-10", "--method", "um", "--out", "here")
    ((config, settings, out),) = asked
    expected = {
        "clients": 100, "sample_rate": 0.1, "rounds": 200, "epochs": 5, "batch_size": 64, "lr": 1e-4, "momentum": 0.9,
        "width": 64, "preset": "paper", "data": "cifar-10", "method": "um",
    }  # fmt: skip
    assert {name: getattr(config, name) for name in expected} == expected
    assert (settings.helpers, settings.candidates, settings.search_rounds, settings.refresh_every) == (5, 2, 30, 10)
    assert out == Path("here")


@pytest.mark.parametrize("data", ["organamnist", "pathmnist"])
def test_the_papers_preset_has_twenty_clients_on_medical_pictures(kith: Any, asked: list[Any], data: str):
    kith("run", "--preset=paper", f"--data={data}")
    ((config, _, _),) = asked
    assert (config.clients, config.sample_rate, config.rounds, config.lr) == (20, 1.0, 200, 1e-4)


def test_flags_win_over_presets_wherever_they_stand(kith: Any, asked: list[Any]):
    kith("run", "--lr", "0.5", "--clients", "7", "--preset", "paper", "--rounds", "3", "--helpers", "4", "--sample-rate", "1")
    ((config, settings, _),) = asked
    assert (config.lr, config.clients, config.rounds, config.sample_rate) == (0.5, 7, 3, 1.0)
    assert (config.batch_size, config.width) == (64, 64)
    assert settings.helpers == 4


def test_the_flags_of_a_method_reach_it(kith: Any, asked: list[Any]):
    kith("run", "--method", "fixavg-ft", "--finetune-epochs", "2", "--augment", "--objective", "labelled-only")
    ((config, settings, _),) = asked
    assert config.method == "fixavg-ft"
    assert (settings.finetune_epochs, settings.augment, settings.objective) == (2, True, "labelled-only")


@pytest.mark.parametrize("first", ["um", "local"])
def test_of_a_method_that_is_given_twice_the_last_counts_or_it_is_refused(kith: Any, asked: list[Any], first: str):
    """A script's common flags come first; `--method` after them must not run with the settings of another method."""
    said = kith("run", "--method", first, "--method", "fixavg")
    if said.code == 0:
        ((config, settings, _),) = asked
        assert config.method == "fixavg"
        assert type(settings) is type(METHODS["fixavg"].settings)
    else:
        assert said.code == 2


def test_of_a_data_set_that_is_given_twice_the_last_counts_or_it_is_refused(kith: Any, asked: list[Any]):
    said = kith("run", "--data", "digits", "--data", "cifar-10")
    if said.code == 0:
        ((config, _, _),) = asked
        assert config == RunConfig(data="cifar-10").resolved()
    else:
        assert said.code == 2


def test_a_run_prints_plain_lines_and_a_summary_where_there_is_no_terminal(kith: Any, tmp_path: Path):
    said = kith("run", *SMALL, "--out", "here")
    assert said.code == 0
    rounds = said.err.splitlines()
    starts = ("um on digits  ", "um on digits  warming up", "um on digits  round 1/2 ", "um on digits  round 2/2 ")
    assert all(line.startswith(start) for line, start in zip(rounds, starts, strict=True))
    assert "\x1b" not in said.err + said.out
    for word in ("test accuracy at best validation", "best test accuracy of any round", "MB moved", "(28)", "seconds", "here"):
        assert word in said.out
    again = kith("resume", "here")
    assert again.code == 0
    assert again.err == "here is finished.\n"
    assert again.out == said.out


def test_the_folder_is_printed_whole_however_narrow_the_screen(kith: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / ("a-rather-long-name-of-a-folder-" * 3)
    said = kith("run", *SMALL, "--rounds", "1", "--out", str(out))
    assert str(out) in said.out


def test_quiet_prints_nothing(kith: Any):
    for words in (["run", *SMALL, "--out", "here", "--quiet"], ["resume", "here", "--quiet"]):
        said = kith(*words)
        assert (said.code, said.out, said.err) == (0, "", "")


def test_ones_own_pictures_can_be_trained_on(kith: Any, tmp_path: Path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", images=rng.integers(0, 256, (120, 8, 8, 3), dtype=np.uint8), labels=np.arange(120) % 3)
    said = kith("run", *SMALL, "--data", "mine.npz", "--alpha", "5", "--quiet")
    assert (said.code, said.err) == (0, "")
    assert (tmp_path / "runs" / "um-mine-a5-s0" / "summary.json").exists()


def test_clients_that_the_data_names_keep_their_pictures(kith: Any, tmp_path: Path):
    labels, owners = np.arange(90) % 3, np.repeat(["east", "north", "south"], [20, 30, 40])
    images = np.random.default_rng(0).integers(0, 256, (90, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=labels, clients=owners)
    sizes = SIZES.split()[2:]  # but for the number of clients
    lists = ["--warmup-epochs", "1", "--mc-samples", "2", "--helpers", "2", "--candidates", "1"]
    assert kith("run", *sizes, *lists, "--data", "mine.npz", "--quiet").code == 0
    run = kithkin.load(tmp_path / "runs" / "um-mine-s0")
    assert (run.config.clients, run.config.alpha) == (3, "given")
    clients = map(json.loads, run.folder.clients.read_text().splitlines())
    parts = ("labelled", "unlabelled", "val", "test")
    assert [sum(client[part] for part in parts) for client in clients] == [20, 30, 40]
    assert kith("resume", "runs/um-mine-s0").code == 0
    assert kith("report", "runs/um-mine-s0", "--out", "report.html").code == 0
    page = (tmp_path / "report.html").read_text()
    assert "split is not shown" not in page
    assert '"client_names":["east","north","south"]' in page
    said = kith("advise", "runs/um-mine-s0", "--client", "north", "--budget", "1", "--out", "wanted")
    assert said.out.startswith("client 1 (north) of um-mine-s0: 1 of ")
    said = kith("export", "runs/um-mine-s0", "--client", "west")
    assert said.code == 2
    assert "There is no client west. Give --client from 0 to 2, or a name such as east." in said.err

    said = kith("compare", "--methods", "local", *sizes, "--data", "mine.npz", "--out", "both", "--alphas", "given", "5")
    assert said.code == 0, said.err
    assert sorted(path.name for path in (tmp_path / "both").iterdir() if path.is_dir()) == ["local-a5-s0", "local-s0"]
    rows = (tmp_path / "both" / "table.md").read_text().splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["given", "5"]
    named = [json.loads((tmp_path / "both" / name / "manifest.json").read_text()) for name in ("local-s0", "local-a5-s0")]
    assert [manifest["client_names"] for manifest in named] == [["east", "north", "south"], []], "dealt pictures are nobody's"

    assert "3 clients, as given, seed 0" in kith("data", "show", "--data", "mine.npz").out
    assert (tmp_path / "split-mine-k3-seed0.png").exists()
    said = kith("run", *SMALL, "--data", "mine.npz")
    assert said.code == 2
    assert "mine belong to 3 clients, not 6" in said.err
    assert "Leave --clients out" in said.err

    assert kith("newcomer", "runs/um-mine-s0", "--data", "mine.npz", "--rounds", "1", "--epochs", "1", "--out", "new").code == 0
    np.savez(tmp_path / "mine.npz", images=images, labels=labels, clients=np.arange(90) % 9)
    for folder in ("runs/um-mine-s0", "new"):
        client = "2" if folder != "new" else "3"
        assert kith("predict", folder, "--client", client, "mine.npz").code == 0, "a model needs no data of then"
    said = kith("advise", "runs/um-mine-s0", "--client", "1", "--budget", "1", "--out", "wanted-again")
    assert said.code == 2
    assert "belong to 9 clients, not 3" in said.err
    assert "bring back the same data files" in said.err


def test_with_an_alpha_as_many_clients_share_the_data_as_it_names(kith: Any, tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (90, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(90) % 3, clients=np.arange(90) % 4)
    tiny = {"width": 2, "rounds": 1, "epochs": 1}
    words = [word for name, value in tiny.items() for word in (f"--{name}", str(value))]
    assert kith("run", "--method", "local", "--data", "mine.npz", "--alpha", "5", *words, "--out", "one", "--quiet").code == 0
    kithkin.run("other", method="local", data="mine.npz", alpha=5.0, **tiny)
    one, other = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("one", "other"))
    assert one["config"]["clients"] == other["config"]["clients"] == 4
    assert one["split_hash"] == other["split_hash"]
    assert one["split_hash"] in "".join(kith("data", "show", "--data", "mine.npz", "--alpha", "5").out.split())


@pytest.mark.parametrize(("flag", "value"), [("alpha", "x"), ("data", 5), ("clients", True)])
def test_mistakes_in_python_are_told_without_a_folder_too(flag: str, value: Any):
    with pytest.raises(KithkinError, match=f"--{flag} is"):
        kithkin.run(**{flag: value})


def test_python_m_kithkin_is_the_command(tmp_path: Path):
    env = {**os.environ, "PYTHONPATH": str(Path(kithkin.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "kithkin", "run", "--method", "nonsense"], capture_output=True, text=True, env=env
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: Unknown method 'nonsense'\. [^\n]+\n", done.stderr)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(13, "Permission denied", "locked/a.npz"), "locked/a.npz: Permission denied."),
        (OSError(28, "No space left on device"), "The output: No space left on device."),
        (MemoryError(), "There is not enough memory."),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "There is not enough memory."),
    ],
)
def test_what_the_system_refuses_is_told_wherever_it_happens(
    error: Exception, told: str, kith, monkeypatch: pytest.MonkeyPatch
):
    def refused(argv: Any) -> None:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "doctor", refused)
    said = kith("doctor")
    assert said.code == 2
    assert told in said.err


@pytest.mark.parametrize("error", [OSError("odd"), RuntimeError("a fault of ours")])
def test_a_fault_is_not_taken_for_a_mistake(error: Exception, kith, monkeypatch: pytest.MonkeyPatch):
    def faulty(argv: Any) -> None:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "doctor", faulty)
    with pytest.raises(type(error)):
        kith("doctor")


OWN_METHOD = """
from dataclasses import dataclass
from kithkin.methods import METHODS, AvgSettings, Entry, FedAvg

class Faulty(FedAvg):
    def merge(self, server, replies, round):
        raise LookupError("no such client")

METHOD = Entry("faulty", AvgSettings(), lambda s, at: Faulty(**vars(METHODS["fixavg"].make(s, at))))
"""
OWN_NETWORK = """
from torch import nn

class Picky(nn.Linear):
    def forward(self, x):
        assert len(x) < 8, "too many"
        return super().forward(x.flatten(1))

def build(channels, classes, size):
    return Picky(channels * size[0] * size[1], classes)
"""


@pytest.mark.parametrize(
    ("flag", "source", "line", "told"),
    [
        ("--method=own.py:METHOD", OWN_METHOD, 7, "in merge: LookupError: no such client."),
        ("--model=own.py:build --compute=eager", OWN_NETWORK, 6, "in forward: AssertionError: too many."),
        ("--model=own.py:build --compute=workers", OWN_NETWORK, 6, "in forward: AssertionError: too many."),
    ],
)
def test_code_of_ones_own_that_fails_at_work_is_told_with_its_line(flag: str, source: str, line: int, told: str, kith):
    Path("own.py").write_text(source)
    base = "" if "--method" in flag else "--method=local"
    sizes = SIZES if "--method" in flag else SIZES.replace("--width 2 ", "")
    said = kith("run", *base.split(), *flag.split(), "--data", "digits", *sizes.split(), "--out", "run", "--quiet")
    assert said.code == 2
    assert f"{Path('own.py').resolve()}, line {line}, {told} Mend it there." in " ".join(said.err.split())


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("def visit(self, client, state, brief): pass", "`visit` gives a NoneType. Write it as `async def visit`"),
        ("async def visit(self, client, state, brief): pass", "`visit` gives a NoneType. Let it return a Reply"),
        ("def personal(self, *about): return []", "`personal` gives a list. Write it as `async def personal`"),
        (
            "async def personal(self, server, *about): return server.w",
            "`personal` gives a Tensor. Let it return a list of models",
        ),
        ("async def personal(self, *about): return []", "Let it return a list of models, at least one"),
        ("def brief(self, *about): return True", "`brief` gives a bool. Let it return a Brief, or None"),
        (
            "def merge(self, server, *about): return type(server)(server.w[:1])",
            "The method gives a model of shape [1]; those of this network have [6932]. Let `merge` and `visit` keep",
        ),
        (
            "def merge(self, server, *about): return type(server)(server.w.expand(2, -1))",
            "The method gives a model of shape [2, 6932];",
        ),
    ],
)
def test_a_method_of_ones_own_that_gives_something_else_is_told_what_to_give(function: str, told: str, kith):
    merge = OWN_METHOD[OWN_METHOD.index("def merge") : OWN_METHOD.index("METHOD =")]
    Path("own.py").write_text(OWN_METHOD.replace(merge, f"{function}\n\n"))
    said = kith("run", "--method=own.py:METHOD", "--data", "digits", *SIZES.split(), "--out", "run", "--quiet")
    assert said.code == 2
    assert told in " ".join(said.err.split())


def test_a_folder_is_no_place_for_a_file(kith):
    kith("run", "--method", "local", "--data", "digits", *SIZES.split(), "--out", "run", "--quiet")
    said = kith("report", "run", "--out", ".", "--models", "never")
    assert (said.code, "Is a directory" in said.err) == (2, True)


@pytest.mark.parametrize("clients", [2, 3, 6])
def test_few_clients_need_no_flags(kith: Any, tmp_path: Path, clients: int):
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "few.npz", images=images, labels=np.arange(60) // 4 % 2, clients=np.arange(60) % clients)
    tiny = ["--rounds", "1", "--epochs", "1", "--width", "2", "--warmup-epochs", "1", "--mc-samples", "2", "--quiet"]
    for method in ("um", "um-plus"):
        assert kith("run", "--method", method, "--data", "few.npz", *tiny, "--out", method).code == 0
        settings = kithkin.load(tmp_path / method).manifest["settings"]
        assert (settings["helpers"], settings["candidates"]) == (min(5, clients), min(2, clients - min(5, clients)))
    said = kith("run", "--data", "few.npz", *tiny, "--helpers", "2", "--out", "two")
    assert said.code == 0, said.err
    assert kithkin.run(data="few.npz", method="um", rounds=1, epochs=1, width=2, warmup_epochs=1, mc_samples=2).folder.exists()


def test_a_folder_named_like_a_data_set_is_not_taken_for_it(kith: Any, tmp_path: Path):
    assert kith("run", "--method", "fixavg", *SIZES.split(), "--quiet", "--out", "run").code == 0
    (tmp_path / "digits" / "one").mkdir(parents=True)
    (tmp_path / "digits" / "one" / "a.png").touch()
    assert kith("advise", "run", "--client", "0", "--budget", "1", "--out", "wanted").code == 0
    assert "digits[" in (tmp_path / "wanted" / "labels-wanted.csv").read_text()


def test_class_names_are_no_formulas(kith: Any, tmp_path: Path):
    names = np.array(["$\\frac{$", "$\\sqrt{$"])
    images = np.random.default_rng(0).integers(0, 256, (90, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "dollar.npz", images=images, labels=names[np.arange(90) % 2])
    said = kith("data", "show", "--data", "dollar.npz", "--clients", "4", "--alpha", "5")
    assert said.code == 0, said.err
    tiny = [
        "--clients",
        "4",
        "--alpha",
        "5",
        "--rounds",
        "1",
        "--epochs",
        "1",
        "--width",
        "2",
        "--label-ratio",
        "0.5",
        "--quiet",
    ]
    assert kith("run", "--method", "fixavg", "--data", "dollar.npz", *tiny, "--out", "run").code == 0
    said = kith("advise", "run", "--client", "0", "--budget", "2", "--out", "wanted")
    assert said.code == 0, said.err


def test_where_nobody_can_validate_the_last_round_counts(kith: Any, tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (18, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "three.npz", images=images, labels=np.arange(18) % 2, clients=np.arange(18) // 3)
    said = kith(
        "run", "--method", "fixavg", "--data", "three.npz", "--rounds", "3", "--epochs", "1", "--width", "2", "--out", "run"
    )
    assert said.code == 0, said.err
    assert "(round 3, the last: nobody has validation pictures)" in said.out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["best_val_round"] == 3
