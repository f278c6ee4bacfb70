"""FedBN (Li et al., ICLR 2021, Algorithm 1): all but the normalisation layers is averaged.

Weight, bias and running statistics of every norm stay local; they are found by module type.
"""

from __future__ import annotations

from dataclasses import replace

from kithkin.errors import KithkinError
from kithkin.methods.fedavg import FedAvg
from kithkin.nets import Layout


def fedbn(fedavg: FedAvg, layout: Layout) -> FedAvg:
    if not layout.norm.any():
        raise KithkinError(
            "FedBN keeps normalisation layers local, and this network has none: it would be FedAvg.",
            "Take a network with batch norm, or the method without BN.",
        )
    return replace(fedavg, shared=fedavg.shared & ~layout.norm.to(fedavg.shared.device))
