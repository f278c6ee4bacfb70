"""ResNet-9 with MC-dropout, the user's own network, and the vector view of any."""

from kithkin.nets.build import Anatomy, Build, anatomy_of, builder
from kithkin.nets.dropout import Dropout, dropouts
from kithkin.nets.resnet9 import ResNet9
from kithkin.nets.vector import Layout, Network, Slot, initial_vector, layout_of, write

__all__ = [
    "Anatomy",
    "Build",
    "Dropout",
    "Layout",
    "Network",
    "ResNet9",
    "Slot",
    "anatomy_of",
    "builder",
    "dropouts",
    "initial_vector",
    "layout_of",
    "write",
]
