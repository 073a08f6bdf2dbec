"""The simulated cluster: events in order of time, a policy in between, exact times. Runs in ``easyscale simulate``.

The state is the same ``Books`` that a cluster scheduler keeps, the policy and the planner are production's. Promise:
the same trace, policy and settings give the same numbers in every bit; a policy that breaks a rule is refused by its
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any

from easyscale.core.errors import RefusedError
from easyscale.schedule import offers
from easyscale.schedule.books import Books
from easyscale.schedule.cluster import Counts, JobRecord, PolicyError
from easyscale.schedule.policies import NamedPolicy
from easyscale.sim.devices import Devices
from easyscale.sim.progress import Progress
from easyscale.sim.queue import EventQueue, What
from easyscale.sim.recorder import Recorder
from easyscale.sim.settings import Settings
from easyscale.sim.trace import DeviceChange, TraceJob


class Simulation:
    """One policy on one trace.

    Args:
        kinds: kinds of device.
        capacity: how many of each.
        policy: who decides.
        settings: how the cluster behaves.
        on_progress: called now and then with jobs done and jobs in all.
    """

    def __init__(
        self,
        kinds: tuple[str, ...],
        capacity: Counts,
        policy: NamedPolicy,
        settings: Settings | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.policy = policy
        self.books = Books(kinds, capacity)
        self.progress: dict[JobRecord, Progress] = {}
        self.recorder = Recorder(self.books)
        self.num_events = 0
        self._queue = EventQueue()
        self._devices = Devices(self.settings)
        self._before: dict[JobRecord, tuple[Counts, tuple[float, float, float]]] = {}
        self._is_deciding = False
        self._num_jobs = 0
        self._on_progress = on_progress

    def run(self, jobs: Iterable[TraceJob], changes: Iterable[DeviceChange] = (), until_s: float = inf) -> Recorder:
        """Simulate until all jobs have ended, or until a time."""
        self.load(jobs, changes)
        self.advance(until_s)
        if self.recorder.num_done < self._num_jobs and until_s == inf:
            raise PolicyError(self._stuck())
        end_s = self.books.now_s if until_s == inf else until_s
        self.books.now_s = end_s
        self.recorder.close(end_s, self.progress)
        return self.recorder

    def load(self, jobs: Iterable[TraceJob], changes: Iterable[DeviceChange] = ()) -> None:
        """What is going to happen."""
        for job in jobs:
            self._check(job)
            self._num_jobs += 1
            self._queue.push(job.job.submit_s, What.ARRIVAL, job)
        for change in changes:
            self._queue.push(change.at_s, What.DEVICES, change)

    def advance(self, until_s: float = inf) -> None:
        """Let it happen, until a time or until all jobs have ended."""
        while self._queue and self.recorder.num_done < self._num_jobs and self._queue.next_s() <= until_s:
            at_s, what, payload = self._queue.pop()
            if what is not What.FINISH or self._is_current(payload):
                self.num_events += 1
                self.books.now_s = at_s
                self._handle(what, payload)

    def _handle(self, what: What, payload: Any) -> None:
        if what is What.DECIDE:
            self._is_deciding = False
            self._decide()
            return
        if what is What.FINISH:
            self._finish(payload[0])
        elif what is What.ARRIVAL:
            self._arrive(payload)
        else:
            self._devices.change(self, payload)
        self._ask_to_decide(at_once=min(self.books.free) < 0)

    def _ask_to_decide(self, at_once: bool) -> None:
        """Devices that are wanted back do not wait for the interval."""
        if at_once and self.settings.interval_s:
            self._queue.push(self.books.now_s, What.DECIDE)
        if self._is_deciding:
            return
        self._is_deciding = True
        now, interval = self.books.now_s, self.settings.interval_s
        at_s = now if not interval else -(-now // interval) * interval
        self._queue.push(max(now, at_s), What.DECIDE)

    def _arrive(self, trace_job: TraceJob) -> None:
        progress = Progress.of(trace_job, self.books.kinds, self.settings.rescale_s)
        record = self.books.submit(trace_job.job, progress.gang_seconds(trace_job.job))
        self.progress[record] = progress
        self.recorder.arrive(record, trace_job)

    def _finish(self, record: JobRecord) -> None:
        progress = self.progress.pop(record)
        progress.advance(self.books.now_s)
        self.recorder.finish(record, progress, self.books.now_s)
        self.books.finish(record)
        if self._on_progress is not None:
            self._on_progress(self.recorder.num_done, self._num_jobs)

    def _is_current(self, payload: tuple[JobRecord, int]) -> bool:
        record, version = payload
        progress = self.progress.get(record)
        return progress is not None and progress.version == version

    # -- deciding ----------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        for count, decision in enumerate(self.policy.decide(self.books), start=1):
            if count > self.settings.max_decisions:
                raise PolicyError(f"policy {self.policy.name!r} does not come to an end at {self.books.now_s:g} s")
            self.books.check(decision, self.policy.name)
            self.hold(decision.record, decision.held)
        self._devices.enforce(self)
        self._settle()

    def hold(self, record: JobRecord, held: Counts) -> None:
        """The job holds these devices from now on, whoever decided it."""
        if held == record.held:
            return
        progress = self.progress[record]
        if record not in self._before:
            progress.advance(self.books.now_s)
            self._before[record] = (record.held, progress.snapshot())
        progress.change(self.books.now_s, held)
        self._expect(record, progress, held)
        self.books.hold(record, held)

    def _settle(self) -> None:
        """The round is over: a job that holds something else than before has been rescaled, once."""
        for record, (held, snapshot) in self._before.items():
            progress = self.progress[record]
            if record.held == held:
                progress.restore(snapshot)
                self._expect(record, progress, held)
                self.books.touch(record)
            else:
                self.recorder.rescale(record, progress, held, self.books.now_s)
            if record.is_running:
                self._queue.push(progress.finish_s, What.FINISH, (record, progress.version))
        self._before = {}
        self.recorder.mark(self.books.now_s)

    def changed(self) -> Iterator[tuple[JobRecord, Counts]]:
        """Jobs that this round has changed so far, and what they held before it."""
        return ((record, held) for record, (held, _) in self._before.items())

    def is_too_small(self, record: JobRecord, held: Counts) -> bool:
        """Whether the job cannot go on with this."""
        return offers.step_s(self.books.kinds, record.job.model, held) == inf

    @staticmethod
    def _expect(record: JobRecord, progress: Progress, held: Counts) -> None:
        record.finish_s = progress.finish_s
        record.remaining_s = inf if any(held) else progress.gang_seconds(record.job)

    # -- refusals ----------------------------------------------------------------------------------------------------

    def _check(self, trace_job: TraceJob) -> None:
        job = trace_job.job
        room = sum(n for kind, n in zip(self.books.kinds, self.books.capacity, strict=True) if kind == job.preferred)
        if not self.policy.is_elastic and job.gang > room:
            raise RefusedError(
                f"policy {self.policy.name!r} gives job {job.name} {job.gang} {job.preferred} at once but the "
                f"cluster has {room}: give a larger --cluster or leave the job out"
            )

    def _stuck(self) -> str:
        waiting = [record.job.name for record in self.books.waiting()]
        return (
            f"policy {self.policy.name!r} leaves {len(waiting)} jobs waiting for ever, {waiting[0]} first, though "
            f"nothing runs: {self.books.describe(self.books.free)} are free"
        )
