"""Devices that fail, are reclaimed, or are wanted by serving: what that does to jobs. Runs in ``easyscale simulate``.

Promise: a failure hits a device drawn from all that there are, so a job is hit in proportion to what it holds;
serving and reclaims have priority, and what a policy does not give back is taken.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import JobRecord
from easyscale.sim.settings import Settings
from easyscale.sim.trace import DeviceChange

if TYPE_CHECKING:
    from easyscale.sim.loop import Simulation


@dataclass(frozen=True, slots=True)
class GiveBack:
    """One time that jobs gave devices back.

    Attributes:
        at_s: when they were wanted.
        jobs: how many jobs gave some.
        devices: how many; what was free anyway is not counted.
        took_s: until the last of them was free.
    """

    at_s: float
    jobs: int
    devices: int
    took_s: float


class Devices:
    """What comes and goes, for one simulation."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._random = random.Random(settings.seed)
        self._is_wanted = False

    def change(self, simulation: Simulation, change: DeviceChange) -> None:
        books = simulation.books
        if change.kind not in books.kinds:
            raise RefusedError(
                f"{change.kind} changes at {change.at_s:g} s but the cluster has {', '.join(books.kinds)}"
            )
        kind = books.kind_index(change.kind)
        if books.capacity[kind] + change.count < 0:
            raise RefusedError(
                f"{-change.count} {change.kind} go at {change.at_s:g} s ({change.cause}) but there are "
                f"{books.capacity[kind]}: make the trace of devices and --cluster agree"
            )
        if change.cause == "failure" and change.count < 0:
            for _ in range(-change.count):
                self._fail(simulation, kind)
            return
        books.set_capacity(tuple(n + change.count * (k == kind) for k, n in enumerate(books.capacity)))
        self._is_wanted |= books.free[kind] < 0

    def enforce(self, simulation: Simulation) -> None:
        """The policy has decided: take what is still missing, then say how long giving back took."""
        books = simulation.books
        for kind in range(len(books.kinds)):
            for record in self._latest_first(simulation, kind):
                if books.free[kind] >= 0:
                    break
                self._shrink(simulation, record, kind, -books.free[kind])
        if self._is_wanted:
            self._is_wanted = False
            self._time_give_back(simulation)

    def _time_give_back(self, simulation: Simulation) -> None:
        """A worker goes when its current mini-batch is done, or at the deadline; the draw is where in it it stands."""
        jobs, devices, took_s = 0, 0, 0.0
        for record, before in simulation.changed():
            gone = sum(max(0, old - new) for old, new in zip(before, record.held, strict=True))
            if gone:
                jobs, devices = jobs + 1, devices + gone
                model = record.job.model
                slowest = min(model.capability_by_kind[simulation.books.kinds[k]] for k, n in enumerate(before) if n)
                took_s = max(took_s, min(self._settings.give_back_s, self._random.random() / slowest))
        if devices:
            simulation.recorder.give_backs.append(GiveBack(simulation.books.now_s, jobs, devices, took_s))

    def _fail(self, simulation: Simulation, kind: int) -> None:
        books = simulation.books
        hit = self._random.randrange(books.capacity[kind]) - max(0, books.free[kind])
        holder: JobRecord | None = None
        for record in books.running() if hit >= 0 else ():
            if hit < record.held[kind]:
                holder = record
                break
            hit -= record.held[kind]
        books.set_capacity(tuple(n - (k == kind) for k, n in enumerate(books.capacity)))
        simulation.recorder.failures += 1
        if holder is not None:
            self._lose_work(simulation, holder)
            self._shrink(simulation, holder, kind, 1)

    def _lose_work(self, simulation: Simulation, record: JobRecord) -> None:
        """Back to the last checkpoint: one is made every so often, and at each rescale."""
        progress = simulation.progress[record]
        progress.advance(simulation.books.now_s)
        since_checkpoint_s = (simulation.books.now_s - record.changed_s) % max(1e-9, self._settings.checkpoint_s)
        made_s = max(0.0, min(since_checkpoint_s, simulation.books.now_s - record.changed_s - progress.rescale_s))
        progress.lose(min(progress.steps_done, made_s / progress.step_s))

    def _shrink(self, simulation: Simulation, record: JobRecord, kind: int, count: int) -> None:
        left = [n - min(n, count) * (k == kind) for k, n in enumerate(record.held)]
        if not simulation.policy.is_elastic or simulation.is_too_small(record, tuple(left)):
            left = [0] * len(left)
        simulation.hold(record, tuple(left))

    @staticmethod
    def _latest_first(simulation: Simulation, kind: int) -> Iterator[JobRecord]:
        """Jobs without a guarantee first, then by priority, then the latest."""
        if simulation.books.free[kind] >= 0:
            return
        holders = [record for record in simulation.books.running() if record.held[kind]]
        holders.sort(key=lambda record: (record.job.min_devices > 0, record.job.priority, -record.order))
        yield from holders
