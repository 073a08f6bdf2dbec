"""How long each change of membership took, phase by phase. Runs in the launcher."""

from __future__ import annotations

from easyscale.core.events import RescaleEvent
from easyscale.core.messages import Moved
from easyscale.launch.actions import Begun


class RescaleLog:
    """Gathers what belongs to one change until all of it is known."""

    def __init__(self) -> None:
        self._open: list[_Change] = []

    def begin(self, begun: Begun, now: float) -> None:
        """A generation begins."""
        self._open.append(_Change(begun, now))

    def moved(self, message: Moved) -> None:
        """A worker has gone on in it."""
        for change in self._open:
            if change.begun.form.generation == message.generation:
                change.pauses.append(message.pause_s)

    def step(self, global_step: int, now: float) -> list[RescaleEvent]:
        """A global step is finished: the changes that are told now."""
        done = [change for change in self._open if global_step >= change.global_step]
        self._open = [change for change in self._open if change not in done]
        return [change.event(now) for change in done]

    def rest(self) -> list[RescaleEvent]:
        """Changes that no step followed."""
        done, self._open = self._open, []
        return [change.event(None) for change in done]


class _Change:
    def __init__(self, begun: Begun, now: float) -> None:
        self.begun = begun
        self.began_at = now
        self.pauses: list[float] = []
        old = [message for message in begun.formed if message.worker_rank not in begun.form.joiners]
        self.global_step = max((message.global_step for message in old), default=0)

    def event(self, first_step_at: float | None) -> RescaleEvent:
        begun, form = self.begun, self.begun.form
        border = self._last("border") or begun.staffed_at
        met = self._last("met") or border
        restored = self._last("restored") or met
        seconds = {
            "decide": begun.started_at - begun.decided_at,
            "start": begun.staffed_at - begun.started_at,
            "drain": border - begun.staffed_at,
            "rendezvous": met - border,
            "restore": restored - met,
            "begin": self.began_at - restored,
        }
        if self.pauses:
            seconds["pause"] = max(self.pauses)
        if first_step_at is not None:
            seconds["first_step"] = first_step_at - self.began_at
        return RescaleEvent(
            t=self.began_at,
            generation=form.generation,
            global_step=self.global_step,
            before=str(begun.before),
            placement=form.placement,
            reason=begun.reason,
            joined=[worker for worker in form.members if worker not in begun.members_before],
            left=[worker for worker in begun.members_before if worker not in form.members],
            seconds={name: round(max(0.0, value), 6) for name, value in seconds.items()},
        )

    def _last(self, phase: str) -> float | None:
        """When the last of those that had the state came so far; joiners wait for them."""
        joiners = self.begun.form.joiners
        times = [m.times[phase] for m in self.begun.formed if m.worker_rank not in joiners and phase in m.times]
        return max(times, default=None)
