"""The table of a comparison: figures that can be checked by hand."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from statistics import pvariance

import pytest

from kithkin.comparison import table
from kithkin.errors import KithkinError
from kithkin.record import Result


def result(method: str, seed: int, tests: list[float], alpha: float = 0.5, error: float | None = None) -> Result:
    summary = {
        "method": method,
        "alpha": alpha,
        "seed": seed,
        "test_at_best_val": sum(tests) / len(tests),
        "test_var_at_best_val": pvariance(tests),
        "final_pseudo_error": error,
        "final_pseudo_coverage": error and 2 * error,
        "down_bytes": 3_000_000,
        "up_bytes": 1_000_000,
        "seconds": 2.0,
    }
    return Result(Path("nowhere"), summary, [], [{"client": k, "test_at_best_val": a} for k, a in enumerate(tests)])


def test_a_row_is_the_mean_over_seeds_with_gains_over_the_same_clients_alone():
    rows = table.rows(
        [
            result("um", 0, [0.5, 0.75], error=0.1),
            result("um", 1, [1.0, 0.25], error=0.3),
            result("local", 0, [0.5, 0.5]),
            result("local", 1, [0.5, 0.5]),
        ]
    )
    um, alone = rows
    assert (um.method, um.alpha, um.seeds) == ("um", 0.5, 2)
    assert um.test == pytest.approx(0.625)
    assert um.test_sd == pytest.approx(0)
    assert um.variance == pytest.approx((0.125**2 + 0.375**2) / 2)
    assert um.worst_decile == pytest.approx((0.5 + 0.25) / 2)
    assert (um.label_error, um.coverage) == pytest.approx((0.2, 0.4))
    assert um.megabytes == pytest.approx(4)
    assert um.gain == pytest.approx((0 + 0.25 + 0.5 - 0.25) / 4)
    assert um.harmed == pytest.approx(1 / 4)
    assert math.isnan(alone.gain), "over itself nobody gains"
    assert math.isnan(alone.harmed)
    assert math.isnan(alone.label_error)
    assert math.isnan(alone.coverage)


def test_the_deviation_over_seeds_is_that_of_a_sample():
    row, alone = table.rows([result("um", 0, [0.25]), result("um", 1, [0.75]), result("local", 0, [0.5])])
    assert (row.seeds, alone.seeds) == (2, 1)
    assert row.test_sd == pytest.approx(math.sqrt(2 * 0.25**2 / 1))
    assert row.seconds == 2, "the mean over seeds"


def test_gains_are_over_local_of_the_same_seed_and_alpha():
    cells = [(0.5, 0, 0.25, 0.5), (0.5, 1, 0.75, 0.875), (5.0, 0, 0.5, 0.5625), (5.0, 1, 1.0, 0.875)]
    results = [result("local", seed, [alone], alpha) for alpha, seed, alone, _ in cells]
    results += [result("um", seed, [helped], alpha) for alpha, seed, _, helped in cells]
    rows = {(row.method, row.alpha): row for row in table.rows(results)}
    assert len(rows) == 4
    assert (rows["um", 0.5].gain, rows["um", 5.0].gain) == pytest.approx((0.1875, -0.03125))
    assert (rows["um", 0.5].harmed, rows["um", 5.0].harmed) == (0, 0.5)


def test_where_one_picture_is_more_than_harm_it_may_be_luck():
    def tested(method: str, *pictures: int) -> Result:
        clients = [{"client": k, "test": n, "test_at_best_val": 0.5} for k, n in enumerate(pictures)]
        return replace(result(method, 0, [0.5] * len(pictures)), clients=clients)

    told = table.luck([tested("um", 20, 25, 400), tested("local", 20, 25, 400)])
    assert told.splitlines() == [
        "Half of the clients have 25 test pictures or fewer, each 4 points or more:",
        "that a few are harmed may be luck.",
    ]
    assert table.luck([tested("um", 33), tested("local", 33)])
    assert not table.luck([tested("um", 34), tested("local", 34)]), "one picture is less than three points"
    assert not table.luck([tested("um", 25)]), "without local nobody is harmed"
    assert not table.luck([tested("local", 25)])


def test_every_clients_gain_is_written_beside_its_seed(tmp_path: Path):
    results = [result("local", 0, [0.25, 0.5]), result("local", 1, [0.75, 1.0]), result("um", 1, [1.0, 0.5])]
    table.write_table(tmp_path, table.rows(results), results)
    with (tmp_path / "gains.csv").open() as f:
        gains = [(g["seed"], g["client"], float(g["gain_over_local"])) for g in csv.DictReader(f) if g["method"] == "um"]
    assert gains == [("1", "0", 0.25), ("1", "1", -0.5)]


def test_a_comparison_says_where_it_is_kept_if_it_is(capsys: pytest.CaptureFixture[str]):
    rows = table.rows([result("um", 0, [0.5])])
    table.print_table(rows)
    assert "kithkin report" not in capsys.readouterr().out
    table.print_table(rows, Path("runs/mine"))
    assert "`kithkin report runs/mine --open`" in capsys.readouterr().out


def test_three_points_below_local_is_not_yet_harm():
    (row, _) = table.rows([result("um", 0, [0.471, 0.469]), result("local", 0, [0.5, 0.5])])
    assert row.harmed == pytest.approx(1 / 2)


def test_without_local_there_is_no_gain_to_tell(tmp_path: Path):
    results = [result("um", 0, [0.5])]
    (row,) = table.rows(results)
    assert table.shown(row)[-2:] == ["-", "-"]
    table.write_table(tmp_path, [row], results)
    assert (tmp_path / "gains.csv").read_text().splitlines()[1:] == ["um,0.5,0,0,0.5,"]
    with (tmp_path / "table.csv").open() as f:
        assert [(line["gain"], line["harmed"]) for line in csv.DictReader(f)] == [("", "")]


@pytest.mark.parametrize(("clients", "worst"), [(1, 0.0), (10, 0.0), (19, 0.0), (20, 0.5), (30, 1.0)])
def test_the_worst_decile_is_a_tenth_of_the_clients(clients: int, worst: float):
    assert table.worst_decile([float(k) for k in range(clients)]) == worst


def test_a_table_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "table.md").mkdir()
    with pytest.raises(KithkinError, match=r"table\.md: Is a directory"):
        table.write_table(tmp_path, [], [])


def test_three_points_are_not_more_than_three():
    ties = [(n - 3) / 100 - n / 100 for n in range(3, 101)]
    assert table.harmed(ties) == 0
    assert table.harmed([gain - 0.001 for gain in ties]) == 1


@pytest.mark.parametrize(("seeds", "title"), [((1, 1), "1 seed"), ((3, 3), "3 seeds"), ((3, 1), "1 to 3 seeds")])
def test_the_title_tells_how_many_seeds_rows_have(seeds: tuple[int, ...], title: str, capsys: pytest.CaptureFixture[str]):
    row = table.Row("um", 0.5, 1, *[0.5] * 10)
    table.print_table([replace(row, seeds=n) for n in seeds])
    assert f"mean over {title}\n" in "\n".join(line.strip() for line in capsys.readouterr().out.splitlines())


def test_a_terminal_of_80_columns_shows_all_figures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "80")
    long = {"method": "fixavg-ft", "seeds": 3, "megabytes": 2345.6, "seconds": 1077.7, "coverage": 1.0, "harmed": 0.42}
    table.print_table([replace(table.Row("um", 0.5, 1, *[0.5] * 10), **long)])
    out = capsys.readouterr().out
    assert "…" not in out
    assert "fixavg-ft   0.5 0.500 ± 0.500 0.5000 0.500 0.500  100% 2,346 1,078 +0.500  42%" in out
    table.print_table([replace(table.Row("um", 0.5, 1, *[0.5] * 10), **long | {"method": "momentum:FEDAVGM"})])
    assert "0.5 0.500 ± 0.500 0.5000 0.500 0.500  100% 2,346 1,078 +0.500  42%" in capsys.readouterr().out, "the name folds"


def test_a_narrower_terminal_loses_neither_names_nor_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "50")
    table.print_table([replace(table.Row("um", 0.5, 1, *[0.5] * 10), seeds=3)])
    assert "um       0.5 0.500 ± 0.500 0.5000 0.500 0.500   50% 0.5 0.5 +0.500  50%" in capsys.readouterr().out
