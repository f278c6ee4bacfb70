"""Triton kernels for a convolutional network in bfloat16 on a CUDA device.

Activations lie channels-last: a matrix y of R rows (pictures x height x width) and C channels. Sums are taken in a fixed order,
so that a run repeats to the digit.
"""

from kithkin.nets.fused.blocks import block
from kithkin.nets.fused.ending import crown, dropout, peak

__all__ = ["block", "crown", "dropout", "peak"]
