"""What a run may do with its workers. Runs in the launcher."""

from __future__ import annotations

from dataclasses import dataclass, field

from easyscale.core.errors import RefusedError
from easyscale.core.job import Fault
from easyscale.core.placement import Placement
from easyscale.launch.devices import Devices
from easyscale.schedule.replan import PlanRules

STEPS_THAT_FORGIVE = 10
"""After so many global steps without a loss the earlier ones do not count any more."""


@dataclass(frozen=True, slots=True)
class Elasticity:
    """Which changes of membership are allowed, and which are asked for from the beginning.

    Attributes:
        min_workers: no fewer may be asked for; when new workers cannot be started and fewer are left, the run ends.
        max_workers: no more may be asked for.
        schedule: changes at fixed global steps, in their order: to a placement, or to a number of workers.
        replaces: whether workers that were lost are replaced.
        max_failures: so many workers may be lost in a row, without ten global steps between.
        hang_timeout_s: how long a worker may say nothing before it is killed.
        faults: where workers fail on purpose (tests, ``verify --kill``).
        plan: when ESTs move to where they are faster; None: never by themselves.
        devices: what the workers run on.
    """

    min_workers: int = 1
    max_workers: int = 1
    schedule: tuple[tuple[int, Placement | int], ...] = ()
    replaces: bool = True
    max_failures: int = 20
    hang_timeout_s: float = 30.0
    faults: tuple[Fault, ...] = ()
    plan: PlanRules | None = None
    devices: Devices = field(default_factory=Devices)

    @property
    def may_move(self) -> bool:
        """Whether ESTs may be asked to move."""
        return self.min_workers < self.max_workers or bool(self.schedule) or self.plan is not None

    def check(self, target: Placement, num_ests: int) -> None:
        """Whether the job may go on with ``target``.

        Raises:
            RefusedError: it may not.
        """
        low, high = self.min_workers, self.max_workers
        if target.num_ests != num_ests:
            raise RefusedError(f"placement {target} holds {target.num_ests} ESTs but the job has {num_ests}")
        if not low <= target.num_workers <= high:
            raise RefusedError(
                f"{target.num_workers} workers were asked for, but the job was started with --workers {low}:{high}: "
                f"ask for {low} to {high}"
            )
