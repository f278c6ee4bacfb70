"""How a vector is fitted and asked for predictions on a device.

A visit to a client is a coroutine that awaits *jobs* (`Fit`, `Predict`). `together` runs many visits in step and hands all the
jobs that wait at one moment to the compute's `work`, which may run them one by one, side by side, or stacked.
"""

from kithkin.compute.choose import choose, cores
from kithkin.compute.eager import Eager, one_thread
from kithkin.compute.graphs import Graphs
from kithkin.compute.jobs import Compute, Fit, Fitted, Lesson, Predict, Read, Recipe, Ticking, all_of, together
from kithkin.compute.plan import batches, schedule
from kithkin.compute.workers import Workers

__all__ = [
    "Compute",
    "Eager",
    "Fit",
    "Fitted",
    "Graphs",
    "Lesson",
    "Predict",
    "Read",
    "Recipe",
    "Ticking",
    "Workers",
    "all_of",
    "batches",
    "choose",
    "cores",
    "one_thread",
    "schedule",
    "together",
]
