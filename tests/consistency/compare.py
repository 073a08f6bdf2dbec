"""Compares what jobs did, step by step and tensor by tensor: equal in every bit, or the first difference by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Steps = Sequence[Mapping[str, str]]
"""Hash by tensor name, after each global step."""


def first_difference(found: Steps, expected: Steps) -> str | None:
    """Say where two runs part, or None."""
    for number, (a, b) in enumerate(zip(found, expected, strict=False)):
        if a.keys() != b.keys():
            return f"step {number}: names differ: {sorted(a.keys() ^ b.keys())}"
        wrong = [name for name in b if a[name] != b[name]]
        if wrong:
            return f"step {number}: {len(wrong)} of {len(b)} tensors differ: {', '.join(wrong[:6])}"
    if len(found) != len(expected):
        return f"{len(found)} steps instead of {len(expected)}"
    return None


def assert_same_steps(found: Steps, expected: Steps, what: str) -> None:
    assert expected, f"{what}: nothing to compare"
    difference = first_difference(found, expected)
    assert difference is None, f"{what}: {difference}"


def assert_same_run(found: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    """Tensors, logged scalars and whatever the script returned."""
    assert_same_steps(found["steps"], expected["steps"], what)
    assert found["scalars"] == expected["scalars"], f"{what}: logged values differ"
    assert found["returned"] == expected["returned"], f"{what}: the script returned other values"
