"""In which setting a recipe's cells are run: at which scale, with whose learning rate, and with how many seeds."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from kithkin.config import DEFAULTS, PAPER
from kithkin.data.sources import SOME
from kithkin.flags import settle
from kithkin.methods import METHODS, check
from kithkin.paper.cells import Cell

MAIN, MEDICAL = ("fashion-mnist", "cifar-10"), ("pathmnist", "organamnist")
SUPERVISED = ("fedavg-sl", "fedprox-sl", "fedbn-sl")
SEMI = ("fixavg", "fixprox", "fixbn", "fedper", "lg-fedavg", "pfedme", "um")
OURS = ("um-plus", "local", "fixavg-ft")  # not in the paper
ALL = (*SUPERVISED, *SEMI, *OURS)
LISTED = ("um", "um-plus")  # whose clients keep helper lists, which the paper's sweeps are about

Scale = Literal["smoke", "small", "short", "paper"]
Rate = Literal["paper", "tuned"]

HOME = Path(__file__).parent
TUNED: dict[str, dict[str, dict[str, Any]]] = tomllib.loads((HOME / "tuned.toml").read_text(encoding="utf-8"))

SEEDS = {"smoke": 1, "small": 1, "short": 1, "paper": 20}  # that are run where nobody says how many
MOST_SEEDS = max(SEEDS.values())  # that are drawn, where they are there
ROUNDS = PAPER["*"]["rounds"]
SHORT = {"*": 60, "organamnist": 30, "pathmnist": 10}  # rounds; on the medical sets every client trains in each
SMOKE = {"clients": 6, "rounds": 2, "width": 2, "epochs": 1, "batch_size": 256, "sample_rate": 0.34, "device": "cpu"}
SMOKE |= {"lr": 0.05, "compute": "eager"}  # a rate at which two rounds do something; nothing to share out
SMOKE_OWN = {"helpers": 3, "candidates": 2, "warmup_epochs": 1, "mc_samples": 2, "inner_steps": 1, "finetune_epochs": 1}


@dataclass(frozen=True)
class Plan:
    """At which scale, with whose learning rate, and with how many seeds."""

    scale: Scale = "paper"
    rate: Rate = "paper"
    seeds: int = 1

    @property
    def label(self) -> str:
        """What a reader must know of the setting."""
        rate = "the paper's learning rate 1e-4" if self.rate == "paper" else "tuned learning rates"
        main, medical = (DEFAULTS[f"small-{sets[0]}"] for sets in (MAIN, MEDICAL))
        return {
            "smoke": "**smoke: digits stand in for every data set, 6 clients, 2 rounds; it shows that all runs, nothing else**",
            "small": f"**small: {SOME:,} pictures of each set at half their size, a ResNet-9 of width {main['width']}, "
            f"{main['clients']} clients and {main['rounds']} rounds ({medical['clients']} and {medical['rounds']} on medical "
            "sets)**; tuned learning rates, the usual one where a grid is not settled",
            "short": f"**short: {SHORT['*']} rounds instead of {ROUNDS} ({SHORT['organamnist']} on OrganAMNIST, "
            f"{SHORT['pathmnist']} on PathMNIST)**; {rate}",
            "paper": f"the paper's, {ROUNDS} rounds; {rate}",
        }[self.scale]

    @property
    def reduced(self) -> bool:
        """Whether it has other pictures than the paper, and with them learning rates of its own, whatever `rate` says."""
        return self.scale in ("smoke", "small")

    @property
    def words(self) -> list[str]:
        """How it differs from the paper's setting."""
        return [word for word in ((self.scale,) if self.reduced else (self.scale, self.rate)) if word != "paper"]

    @property
    def stem(self) -> str:
        return "".join(f"-{word}" for word in self.words)

    @property
    def alphas(self) -> tuple[float, ...]:
        """In order of importance."""
        return (0.5, 5.0) if self.reduced else (0.5, 5.0, 1.0, 10.0)

    def rounds(self, data: str) -> int:
        if self.scale == "small":
            return DEFAULTS[f"small-{data}"]["rounds"]
        return {"smoke": SMOKE["rounds"], "short": SHORT.get(data, SHORT["*"]), "paper": ROUNDS}[self.scale]

    def cells(
        self, row: Any, column: Any, data: str, method: str, alpha: float, looks: Sequence[str] = (), **own: Any
    ) -> Iterator[Cell]:
        """One place of a grid: a cell for each seed; looks at the models are for the first one."""
        flags: dict[str, Any] = {"method": method, "data": data, "alpha": alpha, "preset": "paper", "eval_every": 10}
        flags |= {"save_models": False, "rounds": self.rounds(data)}
        if self.rate == "tuned" and not self.reduced:
            flags |= {"lr": DEFAULTS[data]["lr"]} | TUNED.get(data, {}).get(method, {})
        if self.scale in ("small", "short"):
            flags["eval_every"] = 5
        if self.scale == "small":
            data = f"small-{data}"
            flags |= {"data": data, "preset": "default"} | TUNED.get(data, {}).get(method, {})
        if self.scale == "smoke":
            mine = {name: value for name, value in SMOKE_OWN.items() if hasattr(METHODS[method].settings, name)}
            flags |= {**SMOKE, **mine, "data": "digits", "eval_every": 1}
        config, settings = settle({**flags, **own})
        config = config.resolved()
        check(settings, config.clients or 0)
        for seed in range(1 if looks else self.seeds):
            yield Cell(replace(config, seed=seed), settings, row, column, frozenset(looks))
