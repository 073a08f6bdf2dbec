"""What a running job shows of its devices' speed. Pure: told of steps, asked for capabilities. Runs in the job master.

A worker's capability is 1 over the median seconds of work of one EST in its newest steps, so single outliers do not
count; neither do the first steps after workers began or moved. Workers of one kind count as equally fast unless one
differs clearly. A kind that was not measured yet has its speed from a table, corrected by the kinds that were.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

WINDOW = 8
"""So many of the newest steps are looked at: a worker counts as slow after five slow steps."""
ENOUGH = 5
"""Fewer measurements say nothing."""
SKIPPED = 2
"""So many steps after a change are not measured: caches are cold, connections and buffers new."""
ALIKE = 0.15
"""Workers of a kind within this share of its speed are equally fast."""


class Work(NamedTuple):
    """What one worker did in one global step: its ESTs, and their seconds of work without waiting for others."""

    ests: int
    seconds: float


class Profiler:
    """Measures workers and steps.

    Args:
        table: mini-batches/s of one EST by kind, as far as they are known before; any unit will do, as long as it is
            the same for all.
    """

    def __init__(self, table: Mapping[str, float]) -> None:
        self._table = dict(table)
        self._kind_by_worker: dict[int, str] = {}
        self._turns: dict[int, deque[float]] = {}
        self._cycles: deque[float] = deque(maxlen=WINDOW)
        self._overheads: deque[float] = deque(maxlen=WINDOW)
        self._measured: dict[str, float] = {}
        self._sync_by_devices: dict[int, float] = {}
        self._to_skip = 0

    def begin(self, kind_by_worker: Mapping[int, str]) -> None:
        """A generation begins with these workers. What is known of those that stay is kept; steps are timed anew."""
        self._kind_by_worker = dict(kind_by_worker)
        stay = {worker: turns for worker, turns in self._turns.items() if worker in kind_by_worker}
        self._turns = {worker: stay.get(worker, deque(maxlen=WINDOW)) for worker in kind_by_worker}
        self._cycles.clear()
        self._overheads.clear()
        self._to_skip = SKIPPED

    def note(self, works: Mapping[int, Work], cycle_s: float) -> None:
        """A global step is finished.

        Args:
            works: of each worker.
            cycle_s: from the end of the step before to the end of this one; 0 if that is not known.
        """
        if self._to_skip:
            self._to_skip -= 1
            return
        for worker, work in works.items():
            self._turns[worker].append(work.seconds / work.ests)
        if cycle_s > 0:
            self._cycles.append(cycle_s)
            self._overheads.append(max(0.0, cycle_s - max(work.seconds for work in works.values())))
        self._measured.update(self._measure())
        if self.is_settled:
            self._sync_by_devices[len(works)] = statistics.median(self._overheads)

    @property
    def is_settled(self) -> bool:
        """Whether enough steps of this generation were timed."""
        return len(self._cycles) >= ENOUGH

    @property
    def step_s(self) -> float | None:
        """Seconds of a global step in this generation; None before it is settled."""
        return statistics.median(self._cycles) if self.is_settled else None

    @property
    def sync_s_by_devices(self) -> tuple[tuple[int, float], ...]:
        """What a step takes beside its ESTs' work, by number of workers, as far as it was measured."""
        return tuple(sorted(self._sync_by_devices.items()))

    @property
    def capability_by_kind(self) -> dict[str, float]:
        """Mini-batches/s of one EST: measured, or the table's corrected by what was measured."""
        ratios = [speed / self._table[kind] for kind, speed in self._measured.items() if kind in self._table]
        ratio = statistics.median(ratios) if ratios else 1.0
        return {**{kind: speed * ratio for kind, speed in self._table.items()}, **self._measured}

    @property
    def measured_by_kind(self) -> dict[str, float]:
        """Of the kinds that this job has run on."""
        return dict(self._measured)

    def capability(self, worker: int) -> float | None:
        """Mini-batches/s of one EST on this worker; None if nothing is known of it, nor of its kind."""
        kind = self._kind_by_worker[worker]
        of_kind, own = self.capability_by_kind.get(kind), self._own(worker)
        if own is None or (of_kind is not None and abs(own / of_kind - 1) <= ALIKE):
            return of_kind
        return own

    def _own(self, worker: int) -> float | None:
        turns = self._turns[worker]
        return 1 / max(statistics.median_low(turns), 1e-9) if len(turns) >= ENOUGH else None

    def _measure(self) -> dict[str, float]:
        """A kind is as fast as its median worker; of two that differ the faster one shows what it can do."""
        found: dict[str, list[float]] = {}
        for worker in sorted(self._kind_by_worker):
            own = self._own(worker)
            if own is not None:
                found.setdefault(self._kind_by_worker[worker], []).append(own)
        return {kind: statistics.median_high(speeds) for kind, speeds in found.items()}
