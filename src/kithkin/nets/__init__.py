"""ResNet-9 with MC-dropout, and the vector view of any network."""

from kithkin.nets.dropout import Dropout, dropouts
from kithkin.nets.resnet9 import ResNet9
from kithkin.nets.vector import Layout, Network, Slot, initial_vector, layout_of, write

__all__ = ["Dropout", "Layout", "Network", "ResNet9", "Slot", "dropouts", "initial_vector", "layout_of", "write"]
