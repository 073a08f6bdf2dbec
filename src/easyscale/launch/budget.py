"""How many workers a job may lose before it is given up. Runs in the launcher."""

from __future__ import annotations

from easyscale.launch.elasticity import STEPS_THAT_FORGIVE


class FailureBudget:
    """Counts losses, which enough steps of progress make forgotten.

    Args:
        allowed: losses in a row.

    Attributes:
        used: losses one after another, without enough steps between.
    """

    def __init__(self, allowed: int) -> None:
        self.used = 0
        self._allowed = allowed
        self._steps_since = 0

    def progressed(self) -> None:
        """All workers have finished a global step."""
        self._steps_since += 1
        if self._steps_since >= STEPS_THAT_FORGIVE:
            self.used = 0

    def note(self, used: int) -> None:
        """A worker was lost, and so many are counted now."""
        self.used = used
        self._steps_since = 0

    def spend(self, why: str) -> str | None:
        """A worker was lost; the sentence to give up with, if that was one too many."""
        self.note(self.used + 1)
        if self.used <= self._allowed:
            return None
        return (
            f"{self.used} workers were lost in a row, with fewer than {STEPS_THAT_FORGIVE} global steps between two "
            f"of them (--max-failures {self._allowed}); the last: {why}"
        )
