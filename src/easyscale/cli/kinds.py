"""Kinds of devices as one types them: ``V100:2,T4:4`` counts them, ``V100=3.1,T4=1.0`` gives each a value.

Runs in the launcher's process. What is wrong is said in one sentence that names the option and shows the right form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from easyscale.core.errors import RefusedError

Value = TypeVar("Value")


def parsed_counts(option: str, text: str) -> dict[str, int]:
    """``V100:2,T4:4`` as numbers of devices by kind."""
    counts = _parsed(option, text, ":", int, "V100:2,T4:4")
    for kind, count in counts.items():
        if count < 0:
            raise RefusedError(f"{option} {text!r} gives {count} devices of {kind}: write 0 or more")
    return counts


def parsed_speeds(option: str, text: str) -> dict[str, float]:
    """``V100=3.1,T4=1.0`` as numbers by kind."""
    return _parsed(option, text, "=", float, "V100=3.1,T4=1.0")


def parsed_limits(option: str, text: str) -> dict[str, int]:
    """``V100=8,T4=4`` as whole numbers by kind."""
    return _parsed(option, text, "=", int, "V100=8,T4=4")


def written_counts(count_by_kind: dict[str, int]) -> str:
    """The form that ``parsed_counts`` reads."""
    return ",".join(f"{kind}:{count}" for kind, count in count_by_kind.items() if count) or "no devices"


def _parsed(option: str, text: str, sign: str, read: Callable[[str], Value], example: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for part in text.split(","):
        name, found, value = (word.strip() for word in part.partition(sign))
        if not (name and found and value):
            raise RefusedError(
                f"{option} {text!r} is not kinds and numbers, each as KIND{sign}NUMBER: write it as {example}"
            )
        if name in values:
            raise RefusedError(f"{option} {text!r} names {name} twice: name each kind once")
        try:
            values[name] = read(value)
        except ValueError:
            raise RefusedError(
                f"{option} {text!r}: {value!r} is not a number for {name}: write it as {example}"
            ) from None
    return values
