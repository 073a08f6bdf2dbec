"""Python objects as JSON and tensors, and back with the very same types. Runs in the worker; nothing is pickled.

What JSON has stands for itself; everything else is an object with one key that begins with ``$``. What cannot come back
as it was is refused, naming where it is. Two things are not kept: that one list or dict stands in two places (tensors
stay tied), and the device of a tensor (it comes back on the CPU).
"""

from __future__ import annotations

import collections
import json
import math
import struct
from collections.abc import Callable, Container, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from easyscale.core.errors import RefusedError

_LARGEST_JSON_INT = 2**53
_MOST_LEVELS = 100
FACTORIES: dict[str, Callable[[], Any]] = {kind.__name__: kind for kind in (dict, list, set, tuple, int, float, str)}
"""What a defaultdict may make of a missing key."""

NUMPY_KINDS = "biufcmM"
"""numpy's plain numbers, truth values and times: no Python objects, text or records."""


def encode(value: Any, path: str = "state", taken: Container[str] = ()) -> tuple[Any, dict[str, Tensor]]:
    """``value`` as JSON, and the tensors that it refers to by name.

    Args:
        path: how the user would write where ``value`` is; names of tensors and refusals begin with it.
        taken: names that its tensors must not have.

    Raises:
        RefusedError: something in it could not come back as it is.
    """
    encoder = _Encoder(taken)
    return encoder.visit(value, path), encoder.tensors


class _Encoder:
    def __init__(self, taken: Container[str]) -> None:
        self._taken = taken
        self.tensors: dict[str, Tensor] = {}
        self._name_by_id: dict[int, str] = {}
        self._above: set[int] = set()

    def visit(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind in _LEAVES:
            return _LEAVES[kind](value)
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if kind is np.ndarray:
            return self._array(value, path)
        if isinstance(value, np.generic) and kind is value.dtype.type and value.dtype.kind in NUMPY_KINDS:
            return {"$numpy": [value.dtype.str, value.tobytes().hex()]}
        if kind in (bytes, bytearray):
            return {f"${kind.__name__}": self._raw(value, path)}
        return self._container(value, path)

    def _container(self, value: Any, path: str) -> Any:
        if id(value) in self._above or len(self._above) == _MOST_LEVELS:
            what = "contains itself" if id(value) in self._above else f"is nested more than {_MOST_LEVELS} levels deep"
            raise RefusedError(f"{path} {what}, which a checkpoint cannot keep: leave it out of its state_dict")
        self._above.add(id(value))
        try:
            return self._container_once(value, path)
        finally:
            self._above.discard(id(value))

    def _container_once(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind is list:
            return self._items(value, path)
        if kind is tuple or kind is torch.Size:
            return {"$tuple" if kind is tuple else "$size": self._items(value, path)}
        if kind in (set, frozenset):
            return {f"${kind.__name__}": sorted(self._items(value, path), key=json.dumps)}
        if kind is collections.deque:
            return {"$deque": self._items(value, path), "maxlen": value.maxlen}
        if kind is dict:
            if all(type(key) is str and key[:1] != "$" and _is_plain(key) for key in value):
                return {key: self.visit(item, f"{path}[{key!r}]") for key, item in value.items()}
            return {"$dict": self._pairs(value, path)}
        if kind is collections.OrderedDict:
            return self._ordered(value, path)
        if kind is collections.Counter:
            return {"$counter": self._pairs(value, path)}
        if kind is collections.defaultdict:
            return {"$defaultdict": self._pairs(value, path), "factory": _factory_name(value, path)}
        raise RefusedError(
            f"{path} is {_describe(value)}, which a checkpoint cannot keep: give the object a state_dict() of numbers, "
            f"strings, tensors, arrays, lists and dicts, or leave it out"
        )

    def _items(self, values: Iterable[Any], path: str) -> list[Any]:
        return [self.visit(item, f"{path}[{index}]") for index, item in enumerate(values)]

    def _pairs(self, value: dict[Any, Any], path: str) -> list[Any]:
        return [
            [self.visit(key, f"a key of {path}"), self.visit(item, f"{path}[{key!r}]")] for key, item in value.items()
        ]

    def _ordered(self, value: collections.OrderedDict[Any, Any], path: str) -> Any:
        """With the attribute that ``Module.state_dict`` hangs on it, which ``load_state_dict`` looks at."""
        encoded: dict[str, Any] = {"$ordered": self._pairs(value, path)}
        attributes = dict(vars(value))
        if "_metadata" in attributes:
            encoded["metadata"] = self.visit(attributes.pop("_metadata"), f"{path}._metadata")
        if attributes:
            raise RefusedError(
                f"{path} has the attribute {min(attributes)!r}, which a checkpoint does not keep: drop it"
            )
        return encoded

    def _tensor(self, value: Tensor, path: str) -> Any:
        is_parameter = type(value) is torch.nn.Parameter
        if value.grad_fn is not None:
            raise RefusedError(
                f"{path} is a tensor that knows how it was computed, and a checkpoint keeps values only: call .detach()"
            )
        encoded: dict[str, Any] = {"$tensor": self._named(value, path)}
        if is_parameter:
            encoded["is_parameter"] = True
        if value.requires_grad:
            encoded["requires_grad"] = True
        return encoded

    def _named(self, value: Tensor, path: str) -> str:
        """The same name for the same tensor, so that it comes back as one."""
        name = self._name_by_id.get(id(value))
        if name is None:
            name, number = path, 2
            while name in self.tensors or name in self._taken:
                name, number = f"{path} ({number})", number + 1
            self._name_by_id[id(value)] = name
            self.tensors[name] = value
        return name

    def _array(self, value: np.ndarray[Any, Any], path: str) -> Any:
        if value.dtype.kind not in NUMPY_KINDS:
            raise RefusedError(
                f"{path} is an array of dtype {value.dtype}, which a checkpoint cannot keep: use numbers, or a list"
            )
        is_fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        raw = self._raw(value.tobytes("F" if is_fortran else "C"), path)
        return {"$array": raw, "dtype": value.dtype.str, "shape": list(value.shape), "is_fortran": is_fortran}

    def _raw(self, value: bytes | bytearray, path: str) -> str:
        data = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0, dtype=torch.uint8)
        return self._named(data, path)


def _int(value: int) -> Any:
    # Python reads decimals of a few thousand digits only, and other readers of JSON no more than a double holds
    return value if abs(value) <= _LARGEST_JSON_INT else {"$int": hex(value)}


def _float(value: float) -> Any:
    return value if math.isfinite(value) else {"$float": struct.pack("<d", value).hex()}


def _str(value: str) -> Any:
    return value if _is_plain(value) else {"$str": value.encode("utf-8", "surrogatepass").hex()}


def _is_plain(text: str) -> bool:
    """Whether JSON keeps it: two halves of a pair, each a character of its own, would come back as one."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


_LEAVES: dict[type, Callable[[Any], Any]] = {
    int: _int,
    float: _float,
    str: _str,
    complex: lambda value: {"$complex": struct.pack("<dd", value.real, value.imag).hex()},
    torch.dtype: lambda value: {"$dtype": str(value).removeprefix("torch.")},
    torch.device: lambda value: {"$device": str(value)},
}


def _factory_name(value: collections.defaultdict[Any, Any], path: str) -> str | None:
    factory: Any = value.default_factory
    if factory is None:
        return None
    for name, known in FACTORIES.items():
        if factory is known:
            return name
    raise RefusedError(
        f"{path} is a defaultdict whose default comes from {_describe(factory)}, which a checkpoint cannot keep: "
        f"use one of {', '.join(FACTORIES)}, or a dict"
    )


def _describe(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    kind = type(value).__qualname__
    return f"the {kind} {name}" if isinstance(name, str) else f"a {kind}"
