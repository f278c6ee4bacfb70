"""A model is a vector: every parameter and floating-point buffer of a network in one flat tensor.

The pool is rows of such vectors, an average is a weighted sum of rows, and FedBN, FedPer and LG-FedAvg are masks over the
vector. What is norm and what is head is found by module *type*, never by name. Kernels of 2-D convolutions lie channels-last
(O, H, W, I) in it, as the fast networks hold them, so that loading a model is one copy.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false
# (torch's own stubs leave these open)

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase as NormBase  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.conv import _ConvNd as ConvNd  # pyright: ignore[reportPrivateUsage]

from kithkin import rng
from kithkin.errors import KithkinError
from kithkin.nets.dropout import dropouts
from kithkin.nets.fast import why_not

NORMS = (NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
LAYERS = (nn.Linear, ConvNd)


@dataclass(frozen=True)
class Slot:
    """Where one tensor of the network lies in the vector, and the layer it belongs to."""

    name: str
    shape: torch.Size
    start: int
    stop: int
    trained: bool
    norm: bool
    layer: int  # 1 is the last linear or convolution layer, 2 the one before it ...; 0: neither


@dataclass(frozen=True)
class Layout:
    """The slots of a network: first what is trained, then the buffers."""

    slots: tuple[Slot, ...]

    @cached_property
    def size(self) -> int:
        return sum(s.stop - s.start for s in self.slots)

    @cached_property
    def trained(self) -> int:
        """How many leading elements are trained; the rest are running statistics."""
        return sum(s.stop - s.start for s in self.slots if s.trained)

    def mask(self, chosen: Callable[[Slot], bool]) -> Tensor:
        """True where the vector belongs to a chosen slot."""
        mask = torch.zeros(self.size, dtype=torch.bool)
        for slot in filter(chosen, self.slots):
            mask[slot.start : slot.stop] = True
        return mask

    @cached_property
    def norm(self) -> Tensor:
        """Weight, bias and running statistics of every normalisation layer."""
        return self.mask(lambda s: s.norm)

    def head(self, layers: int = 1) -> Tensor:
        """The last `layers` linear or convolution layers."""
        if not any(s.layer for s in self.slots):
            raise KithkinError("The network has no linear or convolution layer.", "Give it a classifier, e.g. nn.Linear.")
        return self.mask(lambda s: 0 < s.layer <= layers)

    @property
    def bias(self) -> Slot | None:
        """The bias of the last linear or convolution layer, if it has one."""
        return next((s for s in self.slots if s.layer == 1 and s.trained and len(s.shape) == 1), None)


def layout_of(module: nn.Module) -> Layout:
    """Lay out a network's tensors; a tensor that two layers share is laid out once."""
    modules = dict(module.named_modules())
    layers = [name for name, m in modules.items() if isinstance(m, LAYERS)]
    depth = {name: len(layers) - i for i, name in enumerate(layers)}
    found: list[tuple[str, Tensor, bool, str]] = []
    seen: set[int] = set()
    for trained in (True, False):
        for prefix, owner in modules.items():
            own = owner.named_parameters(recurse=False) if trained else owner.named_buffers(recurse=False)
            for name, tensor in own:
                if tensor.is_floating_point() and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found.append((f"{prefix}.{name}".lstrip("."), tensor, trained, part_with(prefix, modules)))
    slots: list[Slot] = []
    start = 0
    for name, tensor, trained, owner in found:
        stop = start + tensor.numel()
        slots.append(Slot(name, tensor.shape, start, stop, trained, isinstance(modules[owner], NORMS), depth.get(owner, 0)))
        start = stop
    return Layout(tuple(slots))


def part_with(name: str, modules: dict[str, nn.Module]) -> str:
    """The layer or norm that a module is, or is a part of, as what a weight is computed from; if none, the whole network."""
    while name and not isinstance(modules[name], (*LAYERS, *NORMS)):
        name = name.rpartition(".")[0]
    return name


def read(module: nn.Module, layout: Layout) -> Tensor:
    """The network's vector, copied."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    vector = torch.empty(layout.size, device=next(iter(tensors.values())).device if tensors else None)
    for slot in layout.slots:
        cut(vector, slot).copy_(tensors[slot.name].detach())
    return vector


@torch.no_grad()
def write(module: nn.Module, w: Tensor) -> None:
    """Make a plain network the model `w`, in memory of its own."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for slot in layout_of(module).slots:
        tensors[slot.name].copy_(cut(w, slot))


def cut(vector: Tensor, slot: Slot) -> Tensor:
    """The slot's part of a vector, in the tensor's shape."""
    flat, shape = vector[slot.start : slot.stop], slot.shape
    if len(shape) != 4:
        return flat.view(shape)
    return flat.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)


def initial_vector(build: Callable[[], nn.Module], seed: int) -> Tensor:
    """The common start w_0, drawn on the CPU so that every device starts alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.key(seed, "start"))
        module = build()
    return read(module, layout_of(module))


class Network:
    """One network whose parameters, gradients and buffers are views of flat tensors; load a vector, and it is that model.

    `w` and `g` are its own memory; where the device is better served by contiguous kernels, `load` and `save` turn them over.
    """

    def __init__(self, build: Callable[[], nn.Module], device: torch.device, bf16: bool = False) -> None:
        with torch.random.fork_rng(devices=[]):
            self.module = build().to(device)
        self.bf16 = bf16
        self.channels_last = bf16 or device.type == "cpu"  # faster there; cuDNN lacks some exact fp32 kernels for it
        self.drops = dropouts(self.module)
        self.layout = layout_of(self.module)
        self.device = device
        start = read(self.module, self.layout)
        self.w = torch.empty(self.layout.size, device=device)
        self.g = torch.zeros(self.layout.trained, device=device)
        owners = dict(self.module.named_modules())
        self.parameters: list[Tensor] = []
        fused = bf16 and device.type == "cuda" and why_not() is None
        self.low = self.w.bfloat16() if fused else None  # what layers read then; `w` is what is trained
        lows = self.views(self.low) if self.low is not None else []
        views, grads = self.views(self.w), self.views(self.g)
        self._views = views
        moved: dict[int, Tensor] = {}
        for i, (slot, view) in enumerate(zip(self.layout.slots, views, strict=True)):
            prefix, _, name = slot.name.rpartition(".")
            tensor = cast(Tensor, getattr(owners[prefix], name))
            if slot.trained:
                if self.low is not None and isinstance(owners[prefix], LAYERS):
                    tensor.data = lows[i]
                else:
                    tensor.data, tensor.grad = view, grads[i]
                self.parameters.append(tensor)
            else:
                moved[id(tensor)] = view
        self.counters: list[Tensor] = []  # numbers of batches seen, which some norms go by: every load starts them anew
        for owner in owners.values():
            for name, buffer in list(owner.named_buffers(recurse=False, remove_duplicate=False)):
                if id(buffer) in moved:
                    setattr(owner, name, moved[id(buffer)])
                elif isinstance(owner, NORMS):
                    self.counters.append(buffer)
        self.load(start)

    def views(self, flat: Tensor) -> list[Tensor]:
        """A flat tensor cut into the network's shapes: all of them, or as many as it covers."""
        slots = [s for s in self.layout.slots if s.stop <= len(flat)]
        return [cut(flat, s) if self.channels_last else flat[s.start : s.stop].view(s.shape) for s in slots]

    def load(self, w: Tensor) -> None:
        """Become the model `w`."""
        if self.channels_last:
            self.w.copy_(w, non_blocking=True)
            if self.low is not None:
                self.low.copy_(self.w)
        else:
            torch._foreach_copy_(self._views, [cut(w, s) for s in self.layout.slots])
        if self.counters:
            torch._foreach_zero_(self.counters)

    def save(self, w: Tensor) -> None:
        """Write the model into `w`."""
        if self.channels_last:
            w.copy_(self.w, non_blocking=self.w.is_cuda and not w.is_cuda and w.is_pinned())
        else:
            torch._foreach_copy_([cut(w, s) for s in self.layout.slots], self._views)

    def __call__(self, *x: Tensor, part: Callable[..., Any] | None = None) -> Any:
        """The module's (or a part's) answer; in bfloat16 where the network was made so."""
        if self.channels_last:
            x = tuple(t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for t in x)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            return (part or self.module)(*x)

    @contextmanager
    def throwing(self, keys: Tensor | None) -> Generator[None, None, None]:
        """Dropout active, with these keys, one a sample; `None` switches it off."""
        for drop in self.drops:
            drop.keys = keys
        try:
            yield
        finally:
            for drop in self.drops:
                drop.keys = None

    def passes(self, x: Tensor, keys: Tensor) -> Tensor:
        """Logits [T, B, C] of T dropout passes, `keys` [T, B].

        Where a network has `trunk` and `tail`, its trunk runs once; its tail begins with a dropout, which repeats its input.
        """
        trunk, tail = getattr(self.module, "trunk", None), getattr(self.module, "tail", None)
        if trunk and tail:
            parts: Any = self(x, part=trunk)
            parts = (parts,) if isinstance(parts, Tensor) else parts
        else:
            parts, tail = (x.repeat(len(keys), *(1,) * (x.dim() - 1)),), None
        with self.throwing(keys.flatten()):
            logits = cast(Tensor, self(*parts, part=tail))
        return logits.unflatten(0, (len(keys), len(x)))
