"""The way back from ``encode``: JSON and tensors to Python objects of the very same types. Runs in the worker.

Only the types named here are ever made; nothing in a checkpoint says which code runs.
"""

from __future__ import annotations

import collections
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from easyscale.core.errors import RefusedError
from easyscale.train.checkpoint.encode import FACTORIES, NUMPY_KINDS


def decode(structure: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The object that ``encode`` was given.

    Raises:
        RefusedError: ``structure`` is nothing that ``encode`` of this version wrote.
    """
    try:
        return _Decoder(tensors).visit(structure)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, struct.error, RuntimeError) as error:
        raise RefusedError(f"the checkpoint's state cannot be read ({type(error).__name__}: {error})") from error


class _Decoder:
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._parameters: dict[str, Tensor] = {}

    def visit(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.visit(item) for item in node]
        if not isinstance(node, dict):
            return node
        tag = next(iter(node), "")
        if not tag.startswith("$"):
            return {key: self.visit(item) for key, item in node.items()}
        if tag in _LEAVES:
            return _LEAVES[tag](node[tag])
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](self.visit(item) for item in node[tag])
        if tag in _WITH_TENSORS:
            return _WITH_TENSORS[tag](self, node)
        raise ValueError(f"{tag!r} is a kind of value that this version does not know")

    def mapping(self, node: Any) -> Any:
        (tag, pairs), *_ = node.items()
        items = {self.visit(key): self.visit(item) for key, item in pairs}
        if tag == "$counter":
            counter: collections.Counter[Any] = collections.Counter()
            dict.update(counter, items)
            return counter
        if tag == "$defaultdict":
            factory = node["factory"]
            return collections.defaultdict(None if factory is None else FACTORIES[factory], items)
        if tag == "$dict":
            return items
        ordered = collections.OrderedDict(items)
        if "metadata" in node:
            ordered._metadata = self.visit(node["metadata"])  # type: ignore[attr-defined]
        return ordered

    def deque(self, node: Any) -> Any:
        return collections.deque([self.visit(item) for item in node["$deque"]], node["maxlen"])

    def tensor(self, node: Any) -> Tensor:
        name = node["$tensor"]
        needs_grad = node.get("requires_grad", False)
        if name not in self._parameters:
            value = self._tensors[name]
            if node.get("is_parameter", False):
                value = torch.nn.Parameter(value, requires_grad=needs_grad)
            elif needs_grad:
                value = value.detach().requires_grad_()
            self._parameters[name] = value
        return self._parameters[name]

    def array(self, node: Any) -> Any:
        dtype = np.dtype(node["dtype"])
        order: Any = "F" if node["is_fortran"] else "C"
        flat = np.frombuffer(self.raw(node["$array"]), _checked(dtype))
        return flat.reshape(node["shape"], order=order).copy(order)

    def raw(self, name: str) -> bytes:
        return self._tensors[name].numpy().tobytes()


def _checked(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in NUMPY_KINDS:
        raise ValueError(f"an array of dtype {dtype}")
    return dtype


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch.{name} is no dtype")
    return dtype


def _numpy_scalar(parts: list[str]) -> Any:
    return np.frombuffer(bytes.fromhex(parts[1]), _checked(np.dtype(parts[0])))[0]


_LEAVES: dict[str, Callable[[Any], Any]] = {
    "$int": lambda text: int(text, 16),
    "$float": lambda text: struct.unpack("<d", bytes.fromhex(text))[0],
    "$complex": lambda text: complex(*struct.unpack("<dd", bytes.fromhex(text))),
    "$str": lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
    "$dtype": _dtype,
    "$device": torch.device,
    "$numpy": _numpy_scalar,
}

_SEQUENCES: dict[str, Callable[[Any], Any]] = {
    "$tuple": tuple,
    "$size": torch.Size,
    "$set": set,
    "$frozenset": frozenset,
}

_WITH_TENSORS: dict[str, Callable[[_Decoder, Any], Any]] = {
    "$dict": _Decoder.mapping,
    "$ordered": _Decoder.mapping,
    "$counter": _Decoder.mapping,
    "$defaultdict": _Decoder.mapping,
    "$deque": _Decoder.deque,
    "$tensor": _Decoder.tensor,
    "$array": _Decoder.array,
    "$bytes": lambda decoder, node: decoder.raw(node["$bytes"]),
    "$bytearray": lambda decoder, node: bytearray(decoder.raw(node["$bytearray"])),
}
