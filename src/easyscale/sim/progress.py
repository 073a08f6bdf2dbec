"""How far one job is: steps done, the pace, when it will end. Runs in ``easyscale simulate``.

Promise: time is exact; between changes nothing is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from easyscale.schedule import offers
from easyscale.schedule.cluster import ClusterJob, Counts
from easyscale.schedule.model import JobModel
from easyscale.sim.trace import TraceJob


@dataclass(slots=True, eq=False)
class Progress:
    """A job's work on simulated time.

    Attributes:
        steps_left: global steps to go, as of ``since_s``.
        step_s: seconds of one; infinite while it does not run.
        since_s: from when on steps are made: behind the last rescale.
        finish_s: when it ends if nothing changes.
        version: grows with each change; an event for an earlier one is void.
        lost_steps: steps that a failure threw away and that were made again.
    """

    kinds: tuple[str, ...]
    model: JobModel
    steps_left: float
    rescale_s: float
    step_s: float = inf
    since_s: float = 0.0
    finish_s: float = inf
    version: int = 0
    lost_steps: float = 0.0
    steps_done: float = 0.0

    @classmethod
    def of(cls, trace_job: TraceJob, kinds: tuple[str, ...], rescale_s: float) -> Progress:
        own = trace_job.rescale_s
        return cls(kinds, trace_job.job.model, trace_job.steps, rescale_s if own is None else own)

    def advance(self, now_s: float) -> None:
        """Count the steps made until now."""
        if now_s <= self.since_s or self.step_s == inf:
            return
        done = self.steps_left if now_s >= self.finish_s else min(self.steps_left, (now_s - self.since_s) / self.step_s)
        self.steps_done += done
        self.steps_left -= done
        self.since_s = now_s

    def change(self, now_s: float, held: Counts) -> None:
        """Other devices from now on, behind a rescale."""
        self.step_s = offers.step_s(self.kinds, self.model, held) if any(held) else inf
        self.since_s = now_s + self.rescale_s
        self._predict()

    def lose(self, steps: float) -> None:
        """A failure threw these steps away."""
        self.lost_steps += steps
        self.steps_left += steps
        self._predict()

    def snapshot(self) -> tuple[float, float, float]:
        return self.step_s, self.since_s, self.finish_s

    def restore(self, before: tuple[float, float, float]) -> None:
        """Nothing has changed after all."""
        self.step_s, self.since_s, self.finish_s = before
        self.version += 1

    def gang_seconds(self, job: ClusterJob) -> float:
        """Time that the rest of the work takes on the job's gang, which is what a rigid scheduler knows."""
        held = tuple(job.gang if kind == job.preferred else 0 for kind in self.kinds)
        return self.steps_left * offers.step_s(self.kinds, self.model, held)

    def _predict(self) -> None:
        self.finish_s = self.since_s + self.steps_left * self.step_s if self.step_s < inf else inf
        self.version += 1
