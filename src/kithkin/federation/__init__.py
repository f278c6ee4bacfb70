"""The round: who is visited, what travels, what is counted, what is evaluated."""

from kithkin.federation.courier import Courier, DivergedError, Exam, LocalCourier, Marks, sit
from kithkin.federation.ledger import Ledger, paper_costs
from kithkin.federation.round import World, cohort, cohort_size, open_world, play

__all__ = [
    "Courier",
    "DivergedError",
    "Exam",
    "Ledger",
    "LocalCourier",
    "Marks",
    "World",
    "cohort",
    "cohort_size",
    "open_world",
    "paper_costs",
    "play",
    "sit",
]
