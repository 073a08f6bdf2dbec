"""How long the ESTs of this worker work, and how a worker pretends to be slower. Runs in the worker process.

Only what grows with the number of ESTs counts as work: loading a mini-batch, forward, backward, contexts in and out.
Waiting for other workers does not, nor what is done once in a step. Changes no number, only time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence


class Pace:
    """A stopwatch for turns.

    Args:
        speeds: ``(global step, speed)``, steps rising: from that step on the worker waits after each turn until the
            turn has taken ``1 / speed`` of its time. Before the first one, and without any, it does not wait.
    """

    def __init__(self, speeds: Sequence[tuple[int, float]] = ()) -> None:
        self._speeds = tuple(speeds)
        self._began: float | None = None
        self._seconds: dict[int, float] = {}
        self._last_end: float | None = None

    def begin(self) -> None:
        """The work of a turn begins."""
        self._began = time.perf_counter()

    def end(self, virtual_rank: int, global_step: int) -> None:
        """The work of ``virtual_rank``'s turn is done."""
        if self._began is None:
            return
        worked_s = time.perf_counter() - self._began
        speed = self._speed(global_step)
        if speed < 1:
            time.sleep(worked_s * (1 / speed - 1))
        self._seconds[virtual_rank] = self._seconds.get(virtual_rank, 0.0) + time.perf_counter() - self._began
        self._began = None

    def end_step(self) -> tuple[dict[int, float], float]:
        """Seconds of work by virtual rank, and from the end of the step before to now (0: there was none)."""
        now = time.perf_counter()
        cycle_s = 0.0 if self._last_end is None else now - self._last_end
        seconds, self._seconds, self._last_end = self._seconds, {}, now
        return seconds, cycle_s

    def _speed(self, global_step: int) -> float:
        return next((speed for first, speed in reversed(self._speeds) if first <= global_step), 1.0)
