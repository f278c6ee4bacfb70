"""FedPer (Arivazhagan et al., 2019, Algorithms 1, 2): a shared body, a personal head, trained together."""

from __future__ import annotations

from dataclasses import replace

from kithkin.methods.fedavg import FedAvg
from kithkin.nets import Layout


def fedper(fedavg: FedAvg, layout: Layout, personal_layers: int) -> FedAvg:
    return replace(fedavg, shared=~layout.head(personal_layers).to(fedavg.shared.device))
