"""Settings that cannot be are refused, and the message names the flag."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import get_type_hints

import pytest

from kithkin.errors import KithkinError
from kithkin.methods import METHODS, check, sees_all_labels, suited

AT_LEAST_ONE = {
    "helpers": ["um", "um-plus"],
    "mc_samples": ["um", "local"],
    "refresh_every": ["um"],
    "personal_layers": ["fedper"],
    "global_layers": ["lg-fedavg"],
    "inner_steps": ["pfedme"],
    "finetune_epochs": ["fixavg-ft"],
}
AT_LEAST_ZERO = {
    "candidates": ["um"],
    "search_rounds": ["um"],
    "warmup_epochs": ["um", "local"],
    "threshold": ["fixavg", "fedavg-sl", "mix", "um-plus"],
    "lambda_u": ["fixavg", "pfedme"],
    "fedavg_rounds": ["lg-fedavg"],
    "gathering": ["um-plus"],
    "window": ["um-plus"],
    "known": ["um-plus"],
    "tune_epochs": ["um-plus"],
    "tune_lr": ["um-plus"],
}
ABOVE_ZERO = {
    "prox": ["fixprox", "fedprox-sl", "mix", "pfedme"],
    "outer_lr": ["pfedme"],
    "server_mix": ["pfedme"],
    "smoothing": ["um-plus"],
    "finetune_lr": ["fixavg-ft"],
}
WITHIN = {  # of um-plus: the interval, values beyond it, and some at its borders
    "server_momentum": ("[0, 1)", (-0.1, 1.0), (0.0, 0.99)),
    "moved": ("[0, 1]", (-0.1, 1.1), (0.0, 1.0)),
}


def pairs(table):
    return [(name, field) for field, names in table.items() for name in names]


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def refusal(name: str, clients: int = 20, **changes) -> KithkinError:
    with pytest.raises(KithkinError) as caught:
        check(replace(METHODS[name].settings, **changes), clients)
    return caught.value


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_defaults_of_every_method_are_lawful(name):
    check(METHODS[name].settings, 20)


def test_usual_values_that_finished_runs_hang_on():
    """Whoever changes one raises the method's revision."""
    plus, tuned = METHODS["um-plus"].settings, METHODS["fixavg-ft"].settings
    assert (plus.threshold, plus.smoothing, plus.known, plus.moved) == (0.9, 1, 0.8, 0.5)
    assert (plus.server_momentum, plus.gathering, plus.window, plus.tune_epochs, plus.tune_lr) == (0.8, 5, 0.1, 1, 0.1)
    assert (tuned.finetune_epochs, tuned.finetune_lr) == (5, 0.1)


def test_every_number_among_the_settings_is_checked_here():
    kinds = [item for entry in METHODS.values() for item in get_type_hints(type(entry.settings)).items()]
    numbers = {name for name, kind in kinds if kind in (int, float, int | None)}
    assert numbers == AT_LEAST_ONE.keys() | AT_LEAST_ZERO.keys() | ABOVE_ZERO.keys() | WITHIN.keys()


def test_what_a_users_own_class_adds_is_not_judged_by_a_name_that_another_method_has():
    @dataclass(frozen=True)
    class Mine(METHODS["fixavg"].settings.__class__):
        prox: float | None = None
        window: float = -1.0

    check(Mine(), 20)
    check(Mine(prox=0.0), 20)
    with pytest.raises(KithkinError, match="--lambda-u is -1"):
        check(Mine(lambda_u=-1.0), 20)


@pytest.mark.parametrize(("name", "field"), pairs(AT_LEAST_ONE))
@pytest.mark.parametrize("value", [0, -3])
def test_what_must_be_one_or_more(name, field, value):
    error = refusal(name, **{field: value})
    assert error.problem == f"{flag(field)} is {value}; it must be 1 or more."
    assert error.remedy == f"Give another {flag(field)}."
    check(replace(METHODS[name].settings, **{field: 1}), 20)


@pytest.mark.parametrize(("name", "field"), pairs(AT_LEAST_ZERO))
def test_what_must_not_be_negative(name, field):
    assert refusal(name, **{field: -1}).problem == f"{flag(field)} is -1; it must be 0 or more."
    check(replace(METHODS[name].settings, **{field: 0}), 20)


@pytest.mark.parametrize(("name", "field"), pairs(ABOVE_ZERO))
@pytest.mark.parametrize("value", [0.0, -0.5])
def test_what_must_be_above_zero_or_the_method_is_another(name, field, value):
    problem = refusal(name, **{field: value}).problem
    why = " (at 0 the method does nothing of its own)" if field in ("prox", "server_mix") else ""
    assert problem == f"{flag(field)} is {value}; it must be above 0{why}."
    check(replace(METHODS[name].settings, **{field: 0.5}), 20)


@pytest.mark.parametrize("field", WITHIN)
def test_what_must_lie_in_an_interval(field):
    interval, beyond, borders = WITHIN[field]
    for value in beyond:
        assert refusal("um-plus", **{field: value}).problem == f"{flag(field)} is {value}; it must lie in {interval}."
    for value in borders:
        check(replace(METHODS["um-plus"].settings, **{field: value}), 20)


def test_the_number_of_fedavg_rounds_may_be_left_out():
    check(replace(METHODS["lg-fedavg"].settings, fedavg_rounds=None), 20)


def test_a_list_longer_than_the_federation_is_refused():
    assert refusal("um", clients=4, helpers=5).problem == "--helpers is 5; it must not exceed the 4 clients."
    check(replace(METHODS["um"].settings, helpers=4, candidates=0), 4)


def test_more_candidates_than_strangers_are_refused():
    error = refusal("um", clients=6, helpers=5, candidates=2)
    assert error.problem == "--candidates is 2, but 6 clients with lists of 5 leave 1."
    assert error.remedy == "Give fewer --candidates or --helpers, more --clients, or --search-rounds 0."
    for lawful in ({"candidates": 1}, {"helpers": 4}, {"search_rounds": 0}):
        check(replace(METHODS["um"].settings, **{"helpers": 5, "candidates": 2, **lawful}), 6)
    check(replace(METHODS["um"].settings, helpers=5, candidates=2), 7)


@pytest.mark.parametrize(("name", "field"), pairs({"threshold": ["fixavg"], "lambda_u": ["fixavg"], **ABOVE_ZERO}))
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused(name, field, value):
    assert refusal(name, **{field: value}).problem.startswith(f"{flag(field)} is {value}; it must be ")


@pytest.mark.parametrize(
    ("name", "field", "known"),
    [
        ("um", "relation", "both"),
        ("um", "losses", "weighted"),
        ("local", "objective", "own-labels"),
        ("fedper", "objective", "fixmatch"),
    ],
)
def test_a_word_that_is_no_choice_is_refused_and_the_choices_are_named(name, field, known):
    error = refusal(name, **{field: known + "x"})
    assert flag(field) in error.problem
    assert f"Did you mean '{known}'?" in error.remedy


def test_only_the_supervised_methods_see_all_labels():
    assert {name for name, entry in METHODS.items() if sees_all_labels(entry.settings)} == {
        "fedavg-sl",
        "fedprox-sl",
        "fedbn-sl",
    }
    assert not sees_all_labels(replace(METHODS["fixavg"].settings, objective="labelled-only"))
    assert sees_all_labels(replace(METHODS["fedper"].settings, objective="supervised"))


@pytest.mark.parametrize(
    ("clients", "asked", "expected"),
    [(20, None, (5, 2)), (6, None, (5, 1)), (5, None, (5, 0)), (3, None, (3, 0)), (6, 3, (5, 2)), (6, 6, (5, 0))],
)
def test_few_clients_have_short_lists_and_as_many_candidates_as_the_list_that_was_asked_for_leaves(clients, asked, expected):
    settings = suited(METHODS["um"].settings, clients, asked)
    assert (settings.helpers, settings.candidates) == expected
