"""Where a job is to go next: what was asked for, planned, or is needed because workers are leaving. In the launcher."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from easyscale.core.placement import Placement
from easyscale.launch.elasticity import Elasticity
from easyscale.launch.roster import Worker


@dataclass(frozen=True, slots=True)
class Goal:
    """A placement, at which global step (None: as soon as can be), and why."""

    placement: Placement
    at_step: int | None
    reason: str


class Wishes:
    """What is wanted of a job's membership.

    Attributes:
        target: where the job goes as soon as it can.
    """

    def __init__(self, placement: Placement, rules: Elasticity) -> None:
        self.target = placement
        self._rules = rules
        self._schedule = deque(rules.schedule)
        self._workers: tuple[int, ...] = ()
        self._reason = "replacement"

    @property
    def is_planned(self) -> bool:
        """Whether a change at a global step is to come."""
        return bool(self._schedule)

    def ask(self, target: Placement, workers: Sequence[int] = (), reason: str = "scale") -> None:
        """Somebody wants the job there, now; on these ``workers`` by rank, as far as they are there then."""
        self.target, self._workers, self._reason = target, tuple(workers), reason

    def in_order(self, workers: Sequence[int]) -> list[int]:
        """Workers that stay, by rank: those that were asked for come first."""
        return [w for w in self._workers if w in workers] + [w for w in workers if w not in self._workers]

    def place(self, wanted: Placement | int) -> Placement:
        """A placement, also where only a number of workers was given."""
        return Placement.even(self.target.num_ests, wanted) if isinstance(wanted, int) else wanted

    def skip_to(self, global_step: int) -> None:
        """The job begins at this step: changes planned for earlier ones are wanted now, in one."""
        while self._schedule and self._schedule[0][0] <= global_step:
            self.target = self.place(self._schedule.popleft()[1])

    def drop(self, placement: Placement) -> None:
        """Nothing is wanted any more: stay at ``placement``."""
        self._schedule.clear()
        self.target, self._workers = placement, ()

    def begin(self, placement: Placement, at_step: int | None) -> None:
        """The job is at ``placement`` now."""
        if self._schedule and at_step == self._schedule[0][0]:
            self.target = self.place(self._schedule.popleft()[1])
        if placement == self.target:
            self._reason, self._workers = "replacement", ()

    def goal(self, placement: Placement, present: Sequence[Worker]) -> Goal | None:
        """What comes next for a job at ``placement`` whose members ``present`` are there."""
        staying = [one for one in present if not one.is_leaving]
        if len(staying) < len(present):
            if not staying and not self._rules.replaces:
                return None
            return Goal(Placement.even(placement.num_ests, max(1, len(staying))), None, "preemption")
        if placement != self.target and (self._rules.replaces or self._reason != "replacement"):
            return Goal(self.target, None, self._reason)
        if self._schedule:
            step, wanted = self._schedule[0]
            return Goal(self.place(wanted), step, "schedule")
        return None
