"""What ESTs carry from step to step beside what all workers hold alike: kept by every worker, so that none is missed.

Runs in the worker. With ``rng="stepwise"`` and buffers broadcast an EST carries nothing.
"""

from __future__ import annotations

from typing import Any

from easyscale.train.turns import Turns


class Contexts:
    """The contexts of all ESTs as they were at the last border."""

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        return

    def give(self, turns: Turns) -> None:
        return

    def of_streams(self) -> dict[int, Any]:
        return {}
