"""When a run is ended before its script is at its end, and why. Runs in the launcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from easyscale.core.orders import Save
from easyscale.launch.failure import Failure, first_cause
from easyscale.launch.fleet import Fleet
from easyscale.launch.signals import StopSignals

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL: time for the script's ``finally`` blocks."""
SETTLE_S = 1.0
"""How long a lost connection waits for the news of whose end it was."""


class Verdict:
    """Gathers causes to end a run, and ends it.

    Args:
        signals: what the launcher itself was sent.
        grace_s: how long a last checkpoint may take.
    """

    def __init__(self, signals: StopSignals, grace_s: float) -> None:
        self._signals = signals
        self._grace_s = grace_s
        self._save_until: float | None = None
        self._is_saved = False
        self._causes: list[Failure] = []
        self._due_at: float | None = None
        self._kill_at: float | None = None

    @property
    def is_pending(self) -> bool:
        """Whether there is a reason to end the run."""
        return self._kill_at is not None or self._due_at is not None or self._signals.received is not None

    def note(self, cause: Failure) -> None:
        """Note a cause; what happens after the workers were asked to end is none."""
        if self._kill_at is not None or self._signals.received is not None:
            return
        self._causes.append(cause)
        if self._due_at is None or not cause.is_secondary:
            self._due_at = time.monotonic() + (SETTLE_S if cause.is_secondary else 0)

    def saved(self) -> None:
        """The checkpoint that was asked for is written, or will not be."""
        self._is_saved = True

    def execute(self, fleet: Fleet, can_save: Callable[[], bool]) -> None:
        """Ask the workers to end when there is a reason, and kill those that do not in time.

        Args:
            can_save: whether there is something that a checkpoint could keep.
        """
        now = time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                fleet.kill()
        elif (self._due_at is not None and now >= self._due_at) or (
            self._signals.received is not None and self._is_done_saving(fleet, now, can_save)
        ):
            self._end(fleet, now)

    def _end(self, fleet: Fleet, now: float) -> None:
        fleet.terminate()
        self._kill_at = now + GRACE_S

    def _is_done_saving(self, fleet: Fleet, now: float, can_save: Callable[[], bool]) -> bool:
        """A run that was sent a signal first writes a checkpoint, where it has a place for some."""
        if self._save_until is None:
            self._save_until = now + (self._grace_s if can_save() else 0.0)
            if self._save_until > now:
                fleet.order(Save())
        return self._is_saved or now >= self._save_until

    def cause(self, finished: Iterable[int]) -> Failure | None:
        """The first of all causes, if there is one.

        Args:
            finished: workers whose script ended well.
        """
        return first_cause(self._causes, list(finished)) if self._causes else None
