"""What happened, as it is counted while it happens. Runs in ``easyscale simulate``.

Promise: integrals are exact between events; per job one record, whatever the number of events.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from easyscale.schedule import offers
from easyscale.schedule.books import Books
from easyscale.schedule.cluster import Counts, JobRecord
from easyscale.sim.devices import GiveBack
from easyscale.sim.progress import Progress
from easyscale.sim.trace import TraceJob


@dataclass(slots=True)
class JobStats:
    """One job's life.

    Attributes:
        device_s: seconds that it held a device of each kind.
        busy_s: those in which the devices computed for it, weighted by their capability.
        paused_s: device seconds in a rescale.
        segments: since when it held what and which share of it computed, for drawing; None where there are too many
            jobs.
    """

    name: str
    model: str
    num_ests: int
    submit_s: float
    steps: float
    order: int
    start_s: float | None = None
    end_s: float | None = None
    rescales: int = 0
    preemptions: int = 0
    device_s: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    paused_s: float = 0.0
    steps_done: float = 0.0
    lost_steps: float = 0.0
    segments: list[tuple[float, Counts, float]] | None = None
    _since_s: float = 0.0
    _resume_s: float = 0.0
    _busy: float = 0.0

    @property
    def jct_s(self) -> float:
        assert self.end_s is not None
        return self.end_s - self.submit_s

    @property
    def queued_s(self) -> float:
        assert self.start_s is not None
        return self.start_s - self.submit_s

    def close_segment(self, now_s: float, held: Counts) -> None:
        for kind, count in enumerate(held):
            self.device_s[kind] += count * (now_s - self._since_s)
        total = sum(held)
        paused_s = max(0.0, min(now_s, self._resume_s) - self._since_s)
        self.paused_s += total * paused_s
        self.busy_s += self._busy * total * (now_s - self._since_s - paused_s)

    def spans(self, end_s: float) -> Iterator[tuple[float, float, Counts, float]]:
        """(from, to, devices, share of them that computes) for each time that it held some; nothing if not kept."""
        segments = self.segments or []
        ends = [*(at_s for at_s, _, _ in segments[1:]), end_s]
        for (from_s, held, busy), to_s in zip(segments, ends[: len(segments)], strict=True):
            if any(held):
                yield from_s, to_s, held, busy

    def open_segment(self, now_s: float, resume_s: float, held: Counts, busy: float) -> None:
        self._since_s, self._resume_s, self._busy = now_s, resume_s, busy
        if self.segments is not None:
            self.segments.append((now_s, held, busy))


class Recorder:
    """Counts what happens to the books of one simulation.

    Attributes:
        jobs: in order of submission.
        times_s, held_by_kind, capacity_by_kind, waiting, running: one entry for each time that something changed.
        give_backs: each time that serving or a reclaim took devices from jobs.
        failures: devices that failed.
    """

    MAX_DRAWN_JOBS = 2000

    def __init__(self, books: Books) -> None:
        self._books = books
        self.kinds = books.kinds
        self.first_capacity = books.capacity
        self.jobs: list[JobStats] = []
        self.num_done = 0
        self.times_s = array("d")
        self.held_by_kind = [array("l") for _ in books.kinds]
        self.capacity_by_kind = [array("l") for _ in books.kinds]
        self.waiting = array("l")
        self.running = array("l")
        self.give_backs: list[GiveBack] = []
        self.failures = 0
        self.end_s = 0.0
        self._stats: dict[JobRecord, JobStats] = {}

    def arrive(self, record: JobRecord, trace_job: TraceJob) -> None:
        job = trace_job.job
        is_drawn = len(self.jobs) < self.MAX_DRAWN_JOBS
        stats = JobStats(
            job.name,
            trace_job.kind_of_model,
            job.model.num_ests,
            job.submit_s,
            trace_job.steps,
            record.order,
            device_s=[0.0] * len(self.kinds),
            segments=[] if is_drawn else None,
        )
        self.jobs.append(stats)
        self._stats[record] = stats

    def rescale(self, record: JobRecord, progress: Progress, before: Counts, now_s: float) -> None:
        """The job holds something else than ``before`` from now on."""
        stats = self._stats[record]
        stats.close_segment(now_s, before)
        if not any(before) and stats.start_s is None:
            stats.start_s = now_s
        elif any(before) and not any(record.held):
            stats.preemptions += 1
        else:
            stats.rescales += 1
        busy = 1 - offers.waste(self.kinds, record.job.model, record.held) if record.is_running else 0.0
        stats.open_segment(now_s, progress.since_s, record.held, busy)

    def finish(self, record: JobRecord, progress: Progress, now_s: float) -> None:
        stats = self._stats.pop(record)
        stats.close_segment(now_s, record.held)
        stats.open_segment(now_s, now_s, (0,) * len(self.kinds), 0.0)
        stats.end_s = now_s
        stats.steps_done, stats.lost_steps = progress.steps_done, progress.lost_steps
        self.num_done += 1

    def mark(self, now_s: float) -> None:
        """The state after a round of decisions; of several at one time the last counts."""
        if not self.times_s or self.times_s[-1] != now_s:
            self.times_s.append(now_s)
            for column in (*self.held_by_kind, *self.capacity_by_kind, self.waiting, self.running):
                column.append(0)
        for kind, free in enumerate(self._books.free):
            self.held_by_kind[kind][-1] = self._books.capacity[kind] - free
            self.capacity_by_kind[kind][-1] = self._books.capacity[kind]
        self.waiting[-1] = self._books.num_waiting
        self.running[-1] = self._books.num_running

    def close(self, now_s: float, progress: Mapping[JobRecord, Progress]) -> None:
        """The simulation is over; jobs that have not ended are counted until here."""
        for record, stats in self._stats.items():
            progress[record].advance(now_s)
            stats.close_segment(now_s, record.held)
            stats.steps_done, stats.lost_steps = progress[record].steps_done, progress[record].lost_steps
        self.end_s = now_s
        self.mark(now_s)
