"""What travels: a note in JSON, models as arrays of the flat vector, and a hash over both. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from kithkin.errors import KithkinError
from kithkin.methods import Method
from kithkin.methods.base import Held, Parcel
from kithkin.methods.fedavg import FedAvg
from kithkin.methods.mix import Mix
from kithkin.network.terms import Craft, Numbers, Terms

DTYPES: dict[Numbers, tuple[torch.dtype, torch.dtype]] = {  # as computed, and as NumPy carries it
    "fp32": (torch.float32, torch.float32),
    "fp16": (torch.float16, torch.float16),
    "bf16": (torch.bfloat16, torch.int16),
}


class RefusedError(KithkinError):
    """A message that is not as it should be; `problem` says from whom and why."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What a site sends back after its part of a round: a reply without what stays at home."""

    client: int
    round: int
    parcels: tuple[Parcel, ...] = ()
    examples: int = 0
    holds: tuple[Held, ...] = ()
    audit: dict[str, Any] | None = None
    seconds: float = 0.0


class Wire:
    """Seals and opens messages under a federation's terms."""

    def __init__(self, terms: Terms, craft: Craft) -> None:
        self.numbers: Numbers = terms.wire
        self.bytes = DTYPES[terms.wire][0].itemsize  # of a number
        self.craft = craft
        self.limit = terms.norm_limit * float(craft.w0.norm())
        self.masks = masks_of(craft.method)

    def seal(self, note: Mapping[str, Any], models: Sequence[tuple[Tensor, int]] = ()) -> RecordDict:
        """Each model with how many of its numbers travel."""
        arrays = [self._numbers(w, size) for w, size in models]
        text = json.dumps({**note, "wire": self.numbers})
        stamp = ConfigRecord({"note": text, "sha256": digest(text, arrays)})
        return RecordDict({"kithkin": stamp, "models": ArrayRecord(arrays)})

    def open(self, content: RecordDict, sender: str, most: float = math.inf) -> tuple[dict[str, Any], list[Tensor]]:
        """The note and the models, `most` of them, whole vectors again, each of them checked."""
        try:
            stamp, models = content.config_records["kithkin"], content.array_records["models"]
            if len(models) > most:  # before they are unpacked: one that travels once can have any number of names
                raise RefusedError(f"{sender} sends {len(models)} models, where {most} may be.", "It is left out.")
            arrays = models.to_numpy_ndarrays()
            text = str(stamp["note"])
            if digest(text, arrays) != stamp["sha256"]:
                raise RefusedError(f"The message of {sender} was cut or altered on its way.", "It is asked again next round.")
            note = json.loads(text)
            if not isinstance(note, dict):
                raise ValueError("no note")
            if note.get("wire") != self.numbers:
                problem = f"{sender} sends {note.get('wire')} numbers, not {self.numbers}."
                raise RefusedError(problem, "Use one federation file.")
            return note, [self._model(array, sender) for array in arrays]
        except RefusedError:
            raise
        except Exception as e:  # whatever a hostile message makes Flower, NumPy or torch raise
            problem = f"The message of {sender} cannot be read ({type(e).__name__})."  # sites send it: no text of a library's
            raise RefusedError(problem, f"Is it of this version? ({e})") from None

    def _numbers(self, w: Tensor, size: int) -> np.ndarray:
        computed, carried = DTYPES[self.numbers]
        values = (w if size == w.numel() else w[self.masks[size]]).to(computed)
        if not values.isfinite().all():
            raise RefusedError(
                f"A model of this side has numbers that {self.numbers} cannot hold.", "Use fp32 or bf16 on the wire."
            )
        return values.view(carried).cpu().contiguous().numpy()

    def _model(self, array: np.ndarray, sender: str) -> Tensor:
        computed, carried = DTYPES[self.numbers]
        expected = np.dtype(str(carried).removeprefix("torch."))
        if array.dtype != expected:  # or its bytes stand the other way round, which torch does not read
            raise RefusedError(f"A model of {sender} has numbers of type {array.dtype}, not {expected}.", "It is left out.")
        w0 = self.craft.w0
        whole = w0.numel()
        if array.ndim != 1 or (len(array) != whole and len(array) not in self.masks):
            raise RefusedError(f"A model of {sender} has shape {list(array.shape)}, not [{whole}].", "It is left out.")
        values = torch.from_numpy(np.array(array)).view(computed).to(w0)
        if not values.isfinite().all():
            raise RefusedError(f"A model of {sender} has NaN or infinite numbers.", "It is left out.")
        norm = float(values.double().norm())
        if norm > self.limit:
            raise RefusedError(f"A model of {sender} has norm {norm:.3g}; {self.limit:.3g} is the most.", "It is left out.")
        w = values if len(array) == whole else w0.masked_scatter(self.masks[len(array)], values)
        if not self.craft.answers(w):
            raise RefusedError(f"A model of {sender} answers with no numbers.", "It is left out.")
        return w


def masks_of(method: Method) -> dict[int, Tensor]:
    """Which numbers travel where a method does not send all of them, by their count."""
    if isinstance(method, Mix):
        return {size: mask for part in method.methods for size, mask in masks_of(part).items()}
    return {method.numbers: method.shared} if isinstance(method, FedAvg) and not method.shares_all else {}


def digest(text: str, arrays: Sequence[np.ndarray]) -> str:
    sha = hashlib.sha256(text.encode())
    for array in arrays:
        sha.update(f"{array.dtype} {array.shape}".encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()


def parcel_lines(parcels: Sequence[Parcel], named: Mapping[int, int] | None = None) -> list[dict[str, Any]]:
    """All of the parcels but the models; `named` gives clients the names that the receiver knows them by."""
    return [
        {
            "cause": p.cause,
            "client": p.client if named is None else named.get(p.client, p.client),
            "version": p.version,
            "size": p.size,
            "evidence": p.evidence,
        }
        for p in parcels
    ]


def parcels_from(lines: Any, models: Sequence[Tensor], sender: str) -> tuple[Parcel, ...]:
    try:
        return tuple(
            Parcel(
                line["cause"],
                count(line["client"], -1),
                count(line["version"]),
                w,
                count(line["size"]),
                count(line["evidence"]),
            )
            for line, w in zip(lines, models, strict=True)
        )
    except (TypeError, KeyError, ValueError) as e:
        raise RefusedError(f"The message of {sender} does not describe its models ({e}).", "It is left out.") from None


def count(value: Any, least: int = 0) -> int:
    """A number that may stand where things are counted."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**53:
        raise ValueError(f"{value!r} is no count")
    return value
