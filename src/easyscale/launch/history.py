"""What the events of a run say, line by line: while it runs, or after. Runs in commands that look at runs."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from easyscale.core import events
from easyscale.core.errors import EasyScaleError
from easyscale.core.events import (
    CheckpointEvent,
    EndEvent,
    FailureEvent,
    LossEvent,
    PlanEvent,
    RescaleEvent,
    ResumeEvent,
    StartEvent,
    StepEvent,
)
from easyscale.launch.budget import FailureBudget

_NEWEST_STEPS = 200
_STEP_MARK = b'"type":"step"'
_MARK_WITHIN = 60


class History:
    """Events in order. Steps may be millions: only the newest are kept, and understood when asked for.

    Attributes:
        changes: losses, rescales and the failure, oldest first.
        checkpoint: the newest one that was written, or that the run began from.
        resumed_at: the global step that it began with.
        lost: workers lost so far.
        plan: the planner's newest decision.
    """

    def __init__(self) -> None:
        self.start: StartEvent | None = None
        self.end: EndEvent | None = None
        self.changes: list[RescaleEvent | LossEvent | FailureEvent] = []
        self.checkpoint: str | None = None
        self.resumed_at = 0
        self.lost = 0
        self.plan: PlanEvent | None = None
        self._budget = FailureBudget(allowed=0)
        self._steps: deque[bytes] = deque(maxlen=_NEWEST_STEPS)

    def add(self, line: bytes) -> None:
        """The next line.

        Raises:
            EasyScaleError: it is no event of this version.
        """
        if _STEP_MARK in line[:_MARK_WITHIN]:
            self._steps.append(line)
            self._budget.progressed()
            return
        event = events.from_line(line)
        if isinstance(event, StartEvent):
            self.start = event
        elif isinstance(event, EndEvent):
            self.end = event
        elif isinstance(event, CheckpointEvent):
            self.checkpoint = event.path or self.checkpoint
        elif isinstance(event, ResumeEvent):
            self.checkpoint, self.resumed_at = event.path, event.global_step
        elif isinstance(event, PlanEvent):
            self.plan = event
        elif not isinstance(event, StepEvent):
            self.changes.append(event)
            if isinstance(event, LossEvent):
                self.lost += 1
                self._budget.note(event.failures_in_a_row)

    @property
    def failures(self) -> int:
        """Losses that count against ``--max-failures`` now."""
        return self._budget.used

    @property
    def steps(self) -> list[StepEvent]:
        """The newest, in order.

        Raises:
            EasyScaleError: one of them is no event of this version.
        """
        return [event for event in map(events.from_line, self._steps) if isinstance(event, StepEvent)]

    @property
    def has_steps(self) -> bool:
        return bool(self._steps)

    @property
    def rescales(self) -> list[RescaleEvent]:
        return [event for event in self.changes if isinstance(event, RescaleEvent)]

    @property
    def placement(self) -> str | None:
        """Of the newest generation; None where the script said how many ESTs there are, and nothing has changed."""
        return self.rescales[-1].placement if self.rescales else self.start.placement if self.start else None

    @property
    def members(self) -> list[int]:
        """Workers by rank: those that stay keep their order, and new ones come behind them."""
        found = list(range(self.start.num_workers)) if self.start else []
        for event in self.rescales:
            found = [worker for worker in found if worker not in event.left] + event.joined
        return found

    @property
    def steps_per_s(self) -> float | None:
        """Over the newest steps, those since the last change if there are two."""
        times = [step.t for step in self.steps]
        changed_at = self.changes[-1].t if self.changes else 0.0
        since = [t for t in times if t > changed_at]
        if len(since) >= 2:
            times = since
        return None if len(times) < 2 or times[-1] <= times[0] else (len(times) - 1) / (times[-1] - times[0])


class HistoryReader:
    """Reads a file that grows. A last line that is not complete is read when it is; its writer may have died in it."""

    def __init__(self, path: Path) -> None:
        self.history = History()
        self._path = path
        self._offset = 0
        self._number = 0

    def read(self) -> None:
        """Take the lines that have come; a file that is not there yet has none.

        Raises:
            EasyScaleError: a line is no event of this version, or the file cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._offset += len(line)
                    self._number += 1
                    self.history.add(line)
        except FileNotFoundError:
            return
        except OSError as error:
            raise EasyScaleError(f"{self._path} cannot be read ({error.strerror})") from error
        except EasyScaleError as error:
            raise EasyScaleError(f"{self._path}, line {self._number}: {error}") from error
