"""State as tensors and JSON: what a checkpoint writes, and reads back without any pickle.

A tensor that several places share is written once and shared again after reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from kithkin.errors import KithkinError

REMEDY = "Make states of tensors, numbers, tuples and dataclasses listed in the `states` of its Entry (docs/write-a-method.md)."


def pack(value: Any, tensors: dict[str, Tensor], names: dict[int, str] | None = None) -> Any:
    """JSON for `value`; its tensors are gathered in `tensors`."""
    names = {} if names is None else names
    if isinstance(value, Tensor):
        if id(value) not in names:
            names[id(value)] = str(len(names))
            tensors[names[id(value)]] = value
        return {"tensor": names[id(value)]}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: pack(getattr(value, f.name), tensors, names) for f in fields(value)}
        return {"class": type(value).__name__, "fields": parts}
    if isinstance(value, tuple) and type(value) is tuple:  # one with names would come back without
        return [pack(v, tensors, names) for v in value]
    if isinstance(value, list):
        return {"list": [pack(v, tensors, names) for v in value]}
    if isinstance(value, dict) and all(isinstance(k, str) for k in value):  # JSON would make words of other keys
        return {"dict": {k: pack(v, tensors, names) for k, v in value.items()}}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    what = "dict whose keys are not all words" if isinstance(value, dict) else type(value).__name__
    raise KithkinError(f"A state of the method holds a {what}, which no checkpoint can keep.", REMEDY)


def unpack(packed: Any, tensors: dict[str, Tensor], classes: Iterable[type]) -> Any:
    """What `pack` was given."""
    known = {c.__name__: c for c in classes}

    def back(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(back(v) for v in value)
        if not isinstance(value, dict):
            return value
        if "tensor" in value:
            return tensors[value["tensor"]]
        if "list" in value:
            return list(back(value["list"]))
        if "dict" in value:
            return {k: back(v) for k, v in value["dict"].items()}
        if value["class"] not in known:
            raise KithkinError(f"A state of the method is made of {value['class']}, which is not listed.", REMEDY)
        return known[value["class"]](**{k: back(v) for k, v in value["fields"].items()})

    return back(packed)
