"""FedPer (Arivazhagan et al., 2019, Algorithms 1, 2): a shared body, a personal head, trained together."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from kithkin.config import bad
from kithkin.errors import KithkinError
from kithkin.methods.fedavg import FedAvg
from kithkin.nets import Layout


def fedper(fedavg: FedAvg, layout: Layout, personal_layers: int) -> FedAvg:
    return replace(fedavg, shared=~part_of(layout, personal_layers, "personal_layers").to(fedavg.shared.device))


def part_of(layout: Layout, layers: int, flag: str) -> Tensor:
    """The mask of the last layers, which must not be all of them: there would be no body."""
    depth = max((slot.layer for slot in layout.slots), default=0)
    if layers >= depth > 0:
        raise bad(flag, layers, f"must be below {depth}, the network's number of layers, or there is no body")
    mask = layout.head(layers)
    if not any(0 < slot.layer <= layers and len(slot.shape) > 1 for slot in layout.slots):
        raise KithkinError(
            "The network's last layer has no weight of its own: it shares that of an earlier one.",
            "Let the classifier have its own, or take a method that needs no head.",
        )
    return mask
