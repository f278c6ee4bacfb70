"""Dropout whose mask is a function of each sample's key, so that it is the same on every device and in every batching."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import torch
from torch import Tensor, nn

from kithkin import dice, rng
from kithkin.errors import KithkinError
from kithkin.nets.fast import fusing

BY_CHANNEL = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
UNSUPPORTED = (nn.AlphaDropout, nn.FeatureAlphaDropout)


class Dropout(nn.Module):
    """Drops with probability `p` (to the nearest 1/256) while `keys` are set, one key a sample; else passes through.

    Independent of `train()` and `eval()`: MC-dropout needs batch norm in eval mode and dropout active. Where there are T times
    as many keys as samples, the samples are taken T times over.
    """

    keys: Tensor | None = None

    def __init__(self, p: float = 0.5, channels: bool = False) -> None:
        super().__init__()
        self.p = p
        self.channels = channels
        self.salt = 0  # tells this layer's masks from those of the others

    @property
    def dropped(self) -> int:
        """How many of 256 go."""
        return max(0, min(256, round(self.p * 256)))

    def forward(self, x: Tensor) -> Tensor:
        dropped = self.dropped
        if self.keys is None or (dropped == 0 and len(self.keys) == len(x)):
            return x
        if not self.channels and fusing(x) and 0 < dropped < 256:
            from kithkin.nets import fused

            return fused.dropout(x, self.keys, self.salt, dropped)
        if len(self.keys) != len(x):
            if not len(x) or len(self.keys) % len(x):
                raise KithkinError(
                    f"A dropout layer got {len(x)} rows for {len(self.keys)} pictures.",
                    "Keep the pictures along the first dimension wherever there is dropout.",
                )
            x = x.repeat(len(self.keys) // len(x), *(1,) * (x.dim() - 1))
        if dropped == 256:
            return torch.zeros_like(x)
        shape = x.shape[1:2] if self.channels else x.shape[1:]
        kept = dice.bytes_(self.keys ^ self.salt, shape.numel()) >= dropped
        kept = kept.view(-1, *shape, *(1,) * (x.dim() - 1 - len(shape)))
        return x * kept * (256 / (256 - dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}" + (", channels=True" if self.channels else "")


def dropouts(module: nn.Module) -> list[Dropout]:
    """Replace every dropout layer of a network, found by type, with the keyed one; give them all, numbered."""
    keyed: dict[nn.Module, Dropout] = {}  # a layer that is used twice stays one layer
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, UNSUPPORTED):
                raise KithkinError(
                    f"The network has a {type(child).__name__} layer ('{name}').",
                    "Use nn.Dropout or nn.Dropout2d instead.",
                )
            if isinstance(child, (nn.Dropout, *BY_CHANNEL)):
                new = keyed.setdefault(child, Dropout(child.p, isinstance(child, BY_CHANNEL)))
                setattr(parent, name, new)
        if isinstance(parent, nn.TransformerEncoderLayer):
            torch.backends.mha.set_fastpath_enabled(False)  # in evaluation it would pass the dropout layers by
    found = [m for m in module.modules() if isinstance(m, Dropout)]
    for number, layer in enumerate(found):
        layer.salt = rng.key("dropout layer", number)
    return found
