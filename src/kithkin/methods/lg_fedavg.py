"""LG-FedAvg (Liang et al., 2020, Algorithm 1): local representations (the body), a global head, from a FedAvg-trained start.

The authors' CIFAR code does the reverse of their paper; `reverse` offers it.
"""

from __future__ import annotations

from dataclasses import replace

from kithkin.methods.fedavg import FedAvg
from kithkin.methods.fedper import part_of
from kithkin.nets import Layout


def lg_fedavg(fedavg: FedAvg, layout: Layout, global_layers: int, fedavg_rounds: int, reverse: bool) -> FedAvg:
    head = part_of(layout, global_layers, "global_layers").to(fedavg.shared.device)
    return replace(fedavg, shared=~head if reverse else head, share_all_until=fedavg_rounds)
