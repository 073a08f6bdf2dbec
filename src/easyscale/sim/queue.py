"""The order of simulated events: time, then what kind, then who came first. Runs in ``easyscale simulate``.

Promise: a total order, so that a simulation repeats by construction.
"""

from __future__ import annotations

import heapq
import itertools
from enum import IntEnum
from typing import Any


class What(IntEnum):
    """Kinds of events; of those at the same time a lower one comes first. Deciding comes after all that can be
    known.
    """

    FINISH = 0
    DEVICES = 1
    ARRIVAL = 2
    DECIDE = 3


class EventQueue:
    """A heap of (time, kind of event, counter, payload)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Any]] = []
        self._counter = itertools.count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, at_s: float, what: What, payload: Any = None) -> None:
        heapq.heappush(self._heap, (at_s, int(what), next(self._counter), payload))

    def next_s(self) -> float:
        """The time of the next event; there must be one."""
        return self._heap[0][0]

    def pop(self) -> tuple[float, What, Any]:
        at_s, what, _, payload = heapq.heappop(self._heap)
        return at_s, What(what), payload
