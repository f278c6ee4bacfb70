"""What a run is: defaults, presets, and which values are lawful."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kithkin.config import DEFAULTS, PAPER, RunConfig, as_json, from_json
from kithkin.data.official import SMALL, SOURCES
from kithkin.errors import KithkinError
from kithkin.flags import settle, settle_each
from kithkin.methods import METHODS, FedAvg, check, method_for
from kithkin.nets import Anatomy, layout_of

PAPERS = {
    "clients": 100, "sample_rate": 0.1, "rounds": 200, "epochs": 5, "batch_size": 64, "lr": 1e-4, "momentum": 0.9, "width": 64,
    "label_ratio": None,
}  # fmt: skip


def values(config: RunConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in PAPERS}


@pytest.mark.parametrize("data", ["fashion-mnist", "cifar-10", "digits"])
def test_the_papers_preset_has_the_papers_values(data: str):
    assert values(RunConfig(data=data, preset="paper").resolved()) == PAPERS


@pytest.mark.parametrize("data", ["organamnist", "pathmnist"])
def test_the_papers_medical_sets_have_twenty_clients_that_all_train(data: str):
    assert values(RunConfig(data=data, preset="paper").resolved()) == {**PAPERS, "clients": 20, "sample_rate": 1.0}


def test_the_papers_preset_has_the_papers_helper_lists():
    config, settings = settle({"method": "um", "preset": "paper"})
    assert config.preset == "paper"
    assert (settings.helpers, settings.candidates, settings.search_rounds, settings.refresh_every) == (5, 2, 30, 10)
    assert (settings.mc_samples, settings.losses, settings.relation) == (10, "alternate", "both")


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_what_is_given_wins_over_the_preset(preset: Any):
    given = {
        "clients": 7,
        "sample_rate": 0.9,
        "rounds": 3,
        "epochs": 2,
        "batch_size": 8,
        "lr": 0.5,
        "momentum": 0.0,
        "width": 4,
    }
    config = RunConfig(data="cifar-10", preset=preset, label_ratio=0.0, **given).resolved()
    assert values(config) == {**given, "label_ratio": 0.0}


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize("data", ["digits", *SOURCES, *SMALL, "mine.npz"])
def test_resolving_leaves_nothing_open_and_is_lawful(data: str, preset: Any):
    config = RunConfig(data=data, preset=preset).resolved().checked()
    assert not [k for k in values(config) if k != "label_ratio" and getattr(config, k) is None]
    assert config.resolved() == config
    check(METHODS["um"].settings, config.clients or 0)


@pytest.mark.parametrize(
    ("flip", "usual", "mirrored"), [("auto", True, True), ("auto", False, False), ("yes", False, True), ("no", True, False)]
)
def test_ones_own_word_on_mirroring_wins_over_what_is_known_of_the_data_set(flip: Any, usual: bool, mirrored: bool):
    config = RunConfig(method="fixavg", flip=flip).resolved()
    method = method_for(config, METHODS["fixavg"].settings, Anatomy(layout_of(nn.Linear(2, 2))), usual, torch.device("cpu"))
    assert isinstance(method, FedAvg)
    assert method.recipe.flip is mirrored


def test_a_small_set_has_the_papers_federation_of_its_whole():
    paper = RunConfig(data="small-organamnist", preset="paper").resolved()
    assert (paper.clients, paper.sample_rate, paper.rounds) == (20, 1.0, 200)


def test_a_small_set_has_defaults_of_its_own_and_all_are_dealt_alike():
    small = RunConfig(data="small-cifar-10").resolved()
    assert (small.clients, small.rounds, small.sample_rate, small.batch_size, small.width) == (40, 60, 0.2, 32, 8)
    assert {RunConfig(data=data).resolved().alpha for data in ("digits", "small-cifar-10", "pathmnist", "mine.npz")} == {0.5}


def test_presets_are_about_known_data_sets():
    assert {*DEFAULTS, *PAPER} <= {"*", "digits", *SOURCES, *SMALL}


def test_json_there_and_back():
    config = RunConfig(data="x", data_folder=Path("/a b"), label_ratio=0.25, seed=4).resolved()
    assert from_json(json.loads(json.dumps(as_json(config)))) == config


def test_json_with_a_field_of_a_later_version_is_read_without_it():
    assert from_json({**as_json(RunConfig()), "colour": "blue"}) == RunConfig()


NAN, INF = float("nan"), float("inf")
BAD = [
    ("clients", 0), ("clients", -1), ("alpha", 0.0), ("alpha", -0.5), ("alpha", NAN), ("alpha", INF), ("rounds", 0),
    ("epochs", 0), ("batch_size", 0), ("batch_size", 1), ("lr", 0.0), ("lr", -1.0), ("lr", NAN), ("lr", INF), ("width", 0),
    ("eval_every", 0), ("sample_rate", 0.0), ("sample_rate", 1.01), ("sample_rate", -0.1), ("sample_rate", NAN),
    ("label_ratio", -0.1), ("label_ratio", 1.1), ("label_ratio", NAN), ("momentum", 1.0), ("momentum", -0.1), ("momentum", NAN),
    ("checkpoint_every", -1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_an_unlawful_value_is_named_as_its_flag(name: str, value: Any):
    flag = "--" + name.replace("_", "-")
    with pytest.raises(KithkinError) as caught:
        RunConfig(**{name: value}).checked()
    assert f"{flag} is {value}" in caught.value.problem
    assert flag in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [("label_ratio", 0.0), ("label_ratio", 1.0), ("sample_rate", 1.0), ("sample_rate", 1e-9), ("momentum", 0.0), ("clients", 1),
     ("checkpoint_every", 0), ("batch_size", 2), ("alpha", 1e-6), ("seed", -3)],
)  # fmt: skip
def test_values_on_the_border_are_lawful(name: str, value: Any):
    assert RunConfig(**{name: value}).checked() == RunConfig(**{name: value})


BAD_SETTINGS = [
    ("um", "helpers", 0), ("um", "helpers", -1), ("um", "mc_samples", 0), ("um", "refresh_every", 0), ("um", "candidates", -1),
    ("um", "search_rounds", -1), ("um", "warmup_epochs", -1), ("fixavg", "threshold", -0.1), ("fixavg", "lambda_u", -1.0),
    ("fixavg", "lambda_u", NAN), ("fixavg", "threshold", NAN), ("fixprox", "prox", 0.0), ("fixprox", "prox", NAN),
    ("fixprox", "prox", INF), ("pfedme", "inner_steps", 0), ("pfedme", "outer_lr", 0.0), ("pfedme", "outer_lr", INF),
    ("pfedme", "server_mix", 0.0), ("fixavg-ft", "finetune_epochs", 0), ("fixavg-ft", "finetune_lr", 0.0),
    ("fedper", "personal_layers", 0), ("lg-fedavg", "global_layers", 0), ("lg-fedavg", "fedavg_rounds", -1),
    ("mix", "prox", 0.0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("seed", None, "int"),
        ("alpha", "half", "float"),
        ("alpha", True, "float"),
        ("data", 5, "str"),
        ("rounds", 2.5, "int"),
        ("rounds", [], "int"),
        ("seed", False, "int"),
        ("save_models", 1, "bool"),
        ("lr", {}, "float"),
    ],
)
def test_a_value_of_another_kind_is_named_with_the_kind_that_it_should_have(name: str, value: Any, kind: str):
    with pytest.raises(KithkinError, match=f"--{name.replace('_', '-')} is .*; it must be {kind}."):
        from_json({name: value}).checked()


@pytest.mark.parametrize(("name", "value"), [("alpha", 1), ("rounds", None), ("lr", np.float64(0.1)), ("data_folder", Path())])
def test_whole_numbers_are_numbers_and_what_may_be_left_out_may(name: str, value: Any):
    assert getattr(RunConfig(**{name: value}).checked(), name) == value


def test_a_setting_of_another_kind_is_refused_alike():
    with pytest.raises(KithkinError, match="--helpers is 'two'; it must be int"):
        check(replace(METHODS["um"].settings, helpers="two"), 10)


@pytest.mark.parametrize(("method", "name", "value"), BAD_SETTINGS)
def test_an_unlawful_setting_of_a_method_is_named_as_its_flag(method: str, name: str, value: Any):
    _, settings = settle({"method": method, name: value})
    with pytest.raises(KithkinError) as caught:
        check(settings, 20)
    assert f"--{name.replace('_', '-')} is {value}" in caught.value.problem


@pytest.mark.parametrize(
    ("clients", "helpers", "candidates", "search_rounds", "lawful"),
    [(6, 3, 3, 5, True), (6, 3, 4, 5, False), (6, 3, 4, 0, True), (6, 6, 0, 5, True), (6, 7, 0, 5, False), (6, 6, 1, 5, False)],
)
def test_candidates_must_fit_in_the_clients_that_a_list_leaves(
    clients: int, helpers: int, candidates: int, search_rounds: int, lawful: bool
):
    _, settings = settle({"helpers": helpers, "candidates": candidates, "search_rounds": search_rounds})
    if lawful:
        check(settings, clients)
    else:
        with pytest.raises(KithkinError, match=r"--candidates|--helpers"):
            check(settings, clients)


def test_fixmatchs_threshold_goes_to_who_is_asked_to_take_fixmatch():
    """`local` does not by itself, `fixavg` does."""
    flags = {"objective": "fixmatch", "threshold": 0.5}
    _, settings = settle_each(["local"], flags)("local")
    assert (settings.objective, settings.threshold) == ("fixmatch", 0.5)
    with pytest.raises(KithkinError, match="None of fixavg takes --threshold here"):
        settle_each(["fixavg"], {**flags, "objective": "labelled-only"})


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"method": "local", "threshold": 0.5}, "--threshold is FixMatch's"),
        ({"method": "fixavg", "objective": "labelled-only", "lambda_u": 1.0}, "--lambda-u is FixMatch's"),
        ({"method": "local", "model": "mine:net", "width": 4}, "--width is ResNet-9's"),
    ],
)
def test_what_would_change_nothing_is_refused(flags: dict[str, Any], why: str):
    with pytest.raises(KithkinError, match=why):
        settle(flags)
    with pytest.raises(KithkinError, match=rf"{why}|None of fixavg|None of local"):
        settle_each([flags["method"]], flags)(flags["method"])


def test_a_threshold_of_ones_own_is_taken_with_any_objective(tmp_path: Path):
    own = tmp_path / "own.py"
    own.write_text(
        "from dataclasses import dataclass\n"
        "from kithkin.methods import METHODS, Entry\n"
        "@dataclass(frozen=True)\n"
        "class Mine:\n"
        "    objective: str = 'sharp'\n"
        "    threshold: float = 0.5\n"
        "MINE = Entry('mine', Mine(), METHODS['fixavg'].make)\n"
    )
    name = f"{own}:MINE"
    for _, settings in (settle({"method": name, "threshold": 0.25}), settle_each([name], {"threshold": 0.25})(name)):
        assert settings.threshold == 0.25


def test_a_shorter_list_leaves_room_for_the_usual_candidates():
    for asked, found in (({}, (5, 1)), ({"helpers": 3}, (3, 2)), ({"helpers": 3, "candidates": 1}, (3, 1))):
        _, settings = settle({"clients": 6, **asked})
        assert (settings.helpers, settings.candidates) == found


@pytest.mark.parametrize("method", METHODS)
def test_every_methods_defaults_are_lawful(method: str):
    config, settings = settle({"method": method})
    assert config.method == method
    assert settings == METHODS[method].settings
    check(settings, 20)


@pytest.mark.parametrize("name", ["clients", "rounds", "width"])
@pytest.mark.parametrize(("value", "digits"), [(10**400, 401), (2**31, 10)])
def test_a_number_that_no_machine_holds_is_refused(name: str, value: int, digits: int):
    with pytest.raises(KithkinError, match=f"--{name} is {digits} digits long; it must be below"):
        RunConfig(**{name: value}).checked()
