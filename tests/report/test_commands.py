"""report, watch and export-metrics from the command line; a run that shows itself; and what a missing package says."""

from __future__ import annotations

import csv
import http.client
import json
import math
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kithkin
from kithkin.cli import main
from kithkin.data import load
from kithkin.flags import settle
from kithkin.record import Folder
from kithkin.report import gather
from kithkin.report.looks import assembled, confusion, look_at, read_models
from kithkin.report.serve import server_for

TINY = "--clients 6 --width 2 --rounds 2 --epochs 1 --batch-size 64 --sample-rate 0.34 --device cpu --compute eager"
OWN = "--warmup-epochs 1 --mc-samples 2 --helpers 3 --candidates 2"


def fails(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run that wrote its own page."""
    out = tmp_path_factory.mktemp("shown") / "um"
    main(["run", "--method", "um", *TINY.split(), *OWN.split(), "--quiet", "--report", "--out", str(out)])
    return out


def test_a_run_writes_its_page(shown: Path):
    text = (shown / "report.html").read_text("utf-8")
    assert 'data-reload="0"' in text
    assert '"finished":true' in text


def test_a_page_is_refreshed_while_running_and_its_trouble_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from kithkin.report import live

    written: list[int] = []

    def note(paths: list[Path], out: Path, models: Any, reload: int) -> None:
        written.append(reload)
        if not reload:
            raise OSError("no room")

    monkeypatch.setattr(live, "write_page", note)
    tiny = {"clients": 6, "width": 2, "rounds": 2, "epochs": 1, "device": "cpu", "compute": "eager", "warmup_epochs": 1}
    kithkin.run(tmp_path / "x", method="local", report=True, **tiny)
    assert written[0] == live.RELOAD
    assert written[-1] == 0
    assert (tmp_path / "x" / "summary.json").exists()


@pytest.mark.parametrize("why", [KeyboardInterrupt, ValueError])
def test_the_page_of_a_run_that_broke_off_waits_for_no_news(why: type[BaseException], tmp_path: Path):
    from kithkin.record import run
    from kithkin.record.run import Quiet
    from kithkin.report.live import Showing

    class Breaking(Quiet):
        def round(self, line: dict[str, Any], moved: int) -> None:
            if line["round"] == 2:
                raise why

    config, settings = settle({"method": "local", "clients": 6, "width": 2, "rounds": 3, "epochs": 1, "warmup_epochs": 1})
    with pytest.raises(why):
        run(config, settings, tmp_path / "x", Showing(Breaking(), tmp_path / "x", report=True, tensorboard=False))
    text = (tmp_path / "x" / "report.html").read_text("utf-8")
    assert 'data-reload="0"' in text
    assert "The run is not finished: 2 of 3 rounds are on record." in text


def test_confusion_is_of_every_test_picture_and_agrees_with_the_record(shown: Path):
    manifest = json.loads((shown / "manifest.json").read_text())
    federation = assembled(manifest)
    matrix = confusion(federation, read_models(Folder(shown), federation.device))
    marks = json.loads((shown / "marks.jsonl").read_text().splitlines()[-1])["test"]
    right = sum(a * (len(e.rows) - e.val) for a, e in zip(marks, federation.courier.exams, strict=True))
    assert sum(map(sum, matrix)) == sum(len(e.rows) - e.val for e in federation.courier.exams)
    assert sum(matrix[c][c] for c in range(10)) == pytest.approx(right, abs=0.01)


def test_models_that_are_gone_or_damaged_cost_their_figures_alone(shown: Path, tmp_path: Path):
    folder = Folder(Path(shutil.copytree(shown, tmp_path / "um")))
    manifest = json.loads(folder.manifest.read_text())
    for damage in (lambda: folder.models.write_bytes(b"\x10" * 40), folder.models.unlink):
        damage()
        remarks: list[str] = []
        assert look_at(folder, manifest, math.inf, remarks) == {}
        assert len(remarks) == 1


def test_one_test_picture_has_a_confusion_and_no_latent_features(tmp_path: Path):
    data, mine = load("digits"), tmp_path / "mine.npz"
    np.savez(mine, images=data.images[:3], labels=data.labels[:3])
    out = tmp_path / "run"
    main(["run", "--method", "local", *TINY.split(), "--data", str(mine), "--clients", "1", "--quiet", "--out", str(out)])
    (run,) = gather([out], models=True)["runs"]
    assert (np.sum(run["confusion"]), run["features"]) == (1, None)
    told = "t-SNE wants two test pictures and two features at least, not 1 and 8."
    assert run["remarks"] == [f"Latent features are not shown: {told}"]


def test_models_are_not_asked_about_pictures_that_changed_since_the_run(tmp_path: Path):
    data, mine, out = load("digits"), tmp_path / "mine.npz", tmp_path / "run"
    np.savez(mine, images=data.images[:300], labels=data.labels[:300])
    words = f"--method local {TINY} --warmup-epochs 1 --label-ratio 0.5 --quiet".split()
    main(["run", *words, "--data", str(mine), "--out", str(out)])
    assert gather([out], models=True)["runs"][0]["confusion"]
    np.savez(mine, images=255 - data.images[:300], labels=data.labels[:300])
    (run,) = gather([out], models=True)["runs"]
    assert (run["confusion"], run["features"]) == (None, None)
    told = "The data has other classes or pictures than when the run began."
    assert run["remarks"] == [f"Confusion and latent features are not shown: {told}"]


def test_report_writes_a_page_and_figures(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, figures = tmp_path / "new" / "page.html", tmp_path / "figures"
    main(["report", str(runs["um"]), str(runs["local"]), "--out", str(out), "--figures", str(figures), "--models", "never"])
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == str(out)
    names = {path.name for path in figures.iterdir()}
    both = {"accuracy", "clients", "gains", "fairness", "churn", "labels", "worth"}
    single = {"helpers-0-um", "audit-0-um", "bytes-0-um", "split-0-um", "split-1-local"}
    assert names == {f"{name}.{kind}" for name in both | single for kind in ("png", "pdf")}
    assert all((figures / f"accuracy.{k}").read_bytes().startswith(h) for k, h in (("png", b"\x89PNG"), ("pdf", b"%PDF")))


def test_mistakes_end_with_code_2(tmp_path: Path, runs: dict[str, Path]):
    (tmp_path / "file").write_text("mine")
    fails("report")
    fails("report", str(tmp_path))
    fails("report", str(runs["um"]), "--out", str(tmp_path / "file" / "page.html"))
    fails("watch", str(tmp_path))
    fails("watch", str(runs["um"]), "--port", "99999")
    fails("export-metrics", str(tmp_path))
    assert not (tmp_path / "tables").exists()


def test_the_tables_of_a_comparison_are_those_of_its_runs(compared: Path, capsys: pytest.CaptureFixture[str]):
    fails("export-metrics", str(compared))
    assert "Name the folder of a single run; a comparison has one for each." in capsys.readouterr().err


def test_a_run_without_a_line_on_record_gives_no_table_and_says_so(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(runs["um"] / "manifest.json", begun)
    fails("export-metrics", str(begun))
    assert f"{begun} has nothing on record that a table could hold." in capsys.readouterr().err.replace("\n", "")
    assert not (begun / "tables").exists()


def test_tables_have_every_round_and_client(runs: dict[str, Path], tmp_path: Path):
    main(["export-metrics", str(runs["um"]), "--out", str(tmp_path)])
    tables = {path.stem: list(csv.DictReader(path.read_text("utf-8").splitlines())) for path in tmp_path.glob("*.csv")}
    assert {name: len(rows) for name, rows in tables.items() if name != "helpers"} == {
        **{"rounds": 8, "marks": 4 * 12, "labels": 8, "clients": 12},
    }
    marks = [json.loads(line) for line in (runs["um"] / "marks.jsonl").read_text().splitlines()]
    assert [float(tables["marks"][-1][name]) for name in ("val", "test")] == [marks[-1][name][-1] for name in ("val", "test")]
    assert tables["rounds"][0]["test_mean"] == ""
    assert tables["labels"][0].items() >= {"round": "1", "asked": "310", "taken": "300"}.items()
    lists = [json.loads(line) for line in (runs["um"] / "lists.jsonl").read_text().splitlines()]
    helpers = [[*map(float, row.values())] for row in tables["helpers"] if (row["round"], row["client"]) == ("2", "3")]
    assert helpers == [[2, 3, *entry] for entry in lists[0]["helpers"][3]]
    assert tables["rounds"][0]["bytes/upload"] == str(4 * 106_130 * 5)


def test_parquet_says_what_it_needs(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    fails("export-metrics", str(runs["um"]), "--format", "parquet", "--out", str(tmp_path / "tables"))
    assert not (tmp_path / "tables").exists()


def test_parquet_holds_the_same(runs: dict[str, Path], tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet", exc_type=ImportError)
    main(["export-metrics", str(runs["um"]), "--format", "parquet", "--out", str(tmp_path)])
    assert parquet.read_table(tmp_path / "marks.parquet").num_rows == 48


def test_tensorboard_says_what_it_needs_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    fails("run", *TINY.split(), "--tensorboard", "--out", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


@pytest.mark.filterwarnings("ignore")  # those of another package
def test_tensorboard_gets_every_round(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "x"
    main(["run", "--method", "local", *TINY.split(), "--warmup-epochs", "1", "--quiet", "--tensorboard", "--out", str(out)])
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("test_mean")] == [1, 2]


def test_the_server_answers_this_machine_alone_and_only_with_news(runs: dict[str, Path]):
    server = server_for([runs["um"]], 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]

    def ask(path: str, host: str = "localhost") -> tuple[int, bytes]:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        line.request("GET", path, headers={"Host": f"{host}:{port}"})
        answer = line.getresponse()
        body = answer.read()
        line.close()
        return answer.status, body

    try:
        assert server.server_address[0] == "127.0.0.1"
        status, body = ask("/data.json")
        assert status == 200
        stamp = json.loads(body)["stamp"]
        assert ask(f"/data.json?since={stamp}") == (204, b"")
        assert ask("/data.json?since=old")[0] == 200
        assert ask("/")[0] == 200
        assert ask("/../manifest.json")[0] == 404
        assert ask("/", "evil.example")[0] == 403
    finally:
        server.shutdown()
        server.server_close()


def test_a_tab_that_is_closed_before_its_answer_prints_no_traceback(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]):
    with server_for([runs["um"]], 0) as server:
        for error, told in ((BrokenPipeError(), False), (ConnectionResetError(), False), (ValueError(), True)):
            try:
                raise error
            except Exception:
                server.handle_error(None, ("127.0.0.1", 1))
            assert ("Traceback" in capsys.readouterr().err) == told
