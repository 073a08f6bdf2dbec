"""When a run is ended before its script is at its end, and why. Runs in the launcher."""

from __future__ import annotations

import time
from collections.abc import Iterable

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
    """

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals
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

    def execute(self, fleet: Fleet) -> None:
        """Ask the workers to end when there is a reason, and kill those that do not in time."""
        now = time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                fleet.kill()
        elif self._signals.received is not None or (self._due_at is not None and now >= self._due_at):
            fleet.terminate()
            self._kill_at = now + GRACE_S

    def cause(self, finished: Iterable[int]) -> Failure | None:
        """The first of all causes, if there is one.

        Args:
            finished: workers whose script ended well.
        """
        return first_cause(self._causes, list(finished)) if self._causes else None
