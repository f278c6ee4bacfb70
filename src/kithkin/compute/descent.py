"""The step of SGD in one Triton kernel: over a flat vector in fp32, its copy in bfloat16, and gradients wherever they lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # numbers of one program


@triton.jit
def _descend(
    w,
    low,
    speed,
    anchor,
    sources,
    kinds,
    starts,
    slots,
    offsets,
    lr,
    momentum,
    prox,
    PROX: tl.constexpr,
    SIZE: tl.constexpr,
):
    """One block of numbers: speed = momentum * speed + g + prox * (w - anchor); w -= lr * speed; and w again in bfloat16."""
    slot = tl.load(slots + tl.program_id(0))
    i = tl.load(offsets + tl.program_id(0)) + tl.arange(0, SIZE)
    start = tl.load(starts + slot)
    there = i < tl.load(starts + slot + 1) - start
    source = tl.load(sources + slot)
    if tl.load(kinds + slot) == 1:
        g = tl.load(source.to(tl.pointer_type(tl.bfloat16)) + i, there, 0.0).to(tl.float32)
    else:
        g = tl.load(source.to(tl.pointer_type(tl.float32)) + i, there, 0.0)
    at = start + i
    old = tl.load(w + at, there)
    if PROX:
        g += prox * (old - tl.load(anchor + at, there))
    v = momentum * tl.load(speed + at, there) + g
    new = old - lr * v
    tl.store(speed + at, v, there)
    tl.store(w + at, new, there)
    tl.store(low + at, new.to(tl.bfloat16), there)


@dataclass(frozen=True, eq=False)
class Table:
    """On the device: where each tensor's gradient lies, and whether it is bfloat16."""

    addresses: Tensor
    low: Tensor

    def fill(self, gradients: list[Tensor]) -> None:
        self.addresses.copy_(torch.tensor([g.data_ptr() for g in gradients]))
        self.low.copy_(torch.tensor([int(g.dtype == torch.bfloat16) for g in gradients]))


class Descent:
    """SGD over a flat vector whose gradients autograd has put wherever it liked; in a graph they stay there."""

    def __init__(self, sizes: list[int], device: torch.device) -> None:
        pieces = [(slot, offset) for slot, size in enumerate(sizes) for offset in range(0, size, BLOCK)]
        self.slots, self.offsets = torch.tensor(pieces, device=device).T.contiguous()
        self.starts = torch.tensor([sum(sizes[:i]) for i in range(len(sizes) + 1)], device=device)
        self.room = torch.zeros(len(sizes), dtype=torch.int64, device=device)

    def table(self) -> Table:
        return Table(self.room.clone(), self.room.clone())

    def step(
        self, buffers: tuple[Tensor, Tensor, Tensor, Tensor], table: Table, lr: float, momentum: float, prox: float
    ) -> None:
        """One step; the buffers are w, its bfloat16 copy, the speed and the anchor."""
        where = (table.addresses, table.low, self.starts, self.slots, self.offsets)
        _descend[(len(self.slots),)](*buffers, *where, lr, momentum, prox, prox != 0, BLOCK)
