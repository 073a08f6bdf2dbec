"""The oracle's plain DDP programs with the product's communication hook. Runs in the members of a fleet."""

from __future__ import annotations

from typing import Any

from consistency import oracle
from easyscale import tree_hook


def train(rank: int, size: int, store_path: str, program: str, epochs: int) -> dict[str, Any]:
    """Train ``program`` as rank ``rank`` of ``size``, averaging with ``easyscale.tree_hook``."""
    oracle.HOOKS["product"] = tree_hook
    return oracle.run(rank, size, store_path, program, epochs, {}, "product")
