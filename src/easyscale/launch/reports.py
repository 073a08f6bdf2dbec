"""What a run says while it goes on, to the event log and to the listener: steps, changes, losses. In the launcher."""

from __future__ import annotations

import time
from collections.abc import Iterable

from easyscale.core.events import CheckpointEvent, LossEvent, PlanEvent, RescaleEvent, ResumeEvent
from easyscale.core.messages import Logged, Moved, Resumed, Saved, StepReport
from easyscale.launch.actions import Begun
from easyscale.launch.folder import EventLog
from easyscale.launch.rescales import RescaleLog
from easyscale.launch.spec import Listener
from easyscale.launch.steps import StepMerger, to_event


class Reports:
    """Joins what workers report.

    Args:
        members: numbers of the workers of the first generation.
    """

    def __init__(self, members: Iterable[int], event_log: EventLog, listener: Listener) -> None:
        self._first_step = dict.fromkeys(members, 0)
        self._steps = StepMerger(self._first_step)
        self._rescales = RescaleLog()
        self._event_log = event_log
        self._listener = listener

    @property
    def finished_steps(self) -> int:
        """Global steps that all workers have reported."""
        return self._steps.finished_steps

    @property
    def last_finished(self) -> int | None:
        """The last of them."""
        return self._steps.last_finished

    @property
    def progress(self) -> str:
        """The same in words."""
        if self.last_finished is None:
            return "before all workers had reported a global step"
        return f"the last global step that all workers had reported is {self.last_finished}"

    def log(self, message: Logged) -> None:
        """A worker's scalars of a step that it may not live to report."""
        self._steps.log(message)

    def step(self, message: StepReport) -> list[int]:
        """A worker has finished a step; the steps that all have finished with that."""
        return self._tell(self._steps.add(message))

    def moved(self, message: Moved) -> None:
        """A worker has gone on in a new generation."""
        self._rescales.moved(message)

    def lost(self, worker: int, why: str, failures: int) -> None:
        """A worker is gone, and the job goes on."""
        self._event_log.write(LossEvent(time.time(), worker, why, failures))

    def resumed(self, message: Resumed) -> None:
        """A worker goes on from a checkpoint, as all do."""
        is_first = not any(self._first_step.values())
        self._first_step[message.worker_rank] = message.global_step
        self.wait_for(self._first_step)
        if is_first:
            event = ResumeEvent(time.time(), message.global_step, message.path, message.notes)
            self._event_log.write(event)
            self._listener.checkpoint(event)

    def saved(self, message: Saved) -> None:
        """A checkpoint was written, or was not."""
        times = (message.stalled_s, message.written_s)
        event = CheckpointEvent(
            time.time(), message.global_step, *times, message.num_bytes, message.path, message.reason
        )
        self._event_log.write(event)
        self._listener.checkpoint(event)

    def planned(self, event: PlanEvent) -> None:
        """The planner has decided something."""
        self._event_log.write(event)
        self._listener.planned(event)

    def begin(self, begun: Begun, now: float) -> None:
        """A generation begins; its joiners report from its first step on."""
        border = max(message.global_step for message in begun.formed)
        self._first_step.update(dict.fromkeys(begun.form.joiners, border))
        self._rescales.begin(begun, now)

    def wait_for(self, workers: Iterable[int]) -> list[int]:
        """Steps are finished when these have reported them; those that are with that."""
        return self._tell(self._steps.change({worker: self._first_step[worker] for worker in workers}))

    def end(self) -> None:
        """No step comes any more."""
        self._write(self._rescales.rest())

    def _tell(self, finished: list[StepReport]) -> list[int]:
        for whole in finished:
            event = to_event(whole, time.time())
            self._event_log.write(event)
            self._write(self._rescales.step(whole.global_step, time.time()))
            self._listener.step(event, whole.total_steps)
        return [whole.global_step for whole in finished]

    def _write(self, rescales: Iterable[RescaleEvent]) -> None:
        for event in rescales:
            self._event_log.write(event)
            self._listener.rescale(event)
