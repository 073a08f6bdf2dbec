"""A mapping as a value: it cannot change, iterates by name and has a hash, so that it can be part of a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Table(Mapping[str, Value], Generic[Value]):
    """Equal to every mapping with the same items."""

    __slots__ = ("_value_by_name",)

    def __init__(self, value_by_name: Mapping[str, Value]) -> None:
        self._value_by_name = {name: value_by_name[name] for name in sorted(value_by_name)}

    def __getitem__(self, name: str) -> Value:
        return self._value_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._value_by_name)

    def __len__(self) -> int:
        return len(self._value_by_name)

    def __hash__(self) -> int:
        return hash(tuple(self._value_by_name.items()))

    def __repr__(self) -> str:
        return repr(self._value_by_name)
