"""FedProx (Li et al., MLSys 2020, eq. (2)): each step pulls towards the global model, lr * (g + mu * (w - w_global))."""

from __future__ import annotations

from dataclasses import replace

from kithkin.methods.fedavg import FedAvg


def fedprox(fedavg: FedAvg, mu: float) -> FedAvg:
    return replace(fedavg, recipe=replace(fedavg.recipe, prox=mu))
