"""The planner's place in a run: hears the workers' reports, lets the job master move ESTs, says why. In the launcher.

What is decided, and when, is ``schedule/replan.py``'s; this file knows no rules of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from easyscale.core.errors import RefusedError
from easyscale.core.events import PlanEvent
from easyscale.core.messages import StepReport
from easyscale.core.placement import Placement
from easyscale.launch.devices import Slots
from easyscale.launch.elasticity import Elasticity
from easyscale.launch.master import Master
from easyscale.schedule.profiler import Work
from easyscale.schedule.replan import Replanner, Verdict


class Planning:
    """Plans one run, if it is to be planned.

    Args:
        rules: what the run may do with its workers.
        tell: told of each decision.
        save: given the run's profile when it has changed.
    """

    def __init__(
        self, rules: Elasticity, tell: Callable[[PlanEvent], None], save: Callable[[dict[str, Any]], None]
    ) -> None:
        self._slots = Slots(rules.devices)
        self._replanner = None if rules.plan is None else Replanner(rules.plan)
        self._tell = tell
        self._save = save
        self._reports: dict[int, dict[int, StepReport]] = {}
        self._known: tuple[int, Placement] | None = None

    def start(self, worker: int, alive: Collection[int]) -> list[list[float]]:
        """A worker starts beside those ``alive``; how fast it is to pretend to be."""
        return self._slots.assign(worker, alive)

    def hold(self, *, is_held: bool) -> None:
        """Somebody has asked for a placement, which is left as it is; or for a number of workers, which ends that."""
        if self._replanner is not None:
            self._replanner.is_held = is_held

    def heard(self, report: StepReport) -> None:
        """A worker has finished a step."""
        if self._replanner is not None:
            self._reports.setdefault(report.global_step, {})[report.worker_rank] = report

    def finished(self, global_step: int, master: Master, now: float) -> None:
        """All workers have finished a step: move ESTs, if that is worth while."""
        if self._replanner is None:
            return
        reports = self._reports.pop(global_step, {})
        self._reports = {step: later for step, later in self._reports.items() if step > global_step}
        if self._known != (master.generation, master.placement):
            self._known = (master.generation, master.placement)
            self._replanner.begin({worker: self._slots.kind(worker) for worker in master.members}, master.placement)
        if master.wanted != master.placement:
            return
        works = {w: Work(len(report.turns), sum(report.turns.values())) for w, report in reports.items()}
        cycle_s = max((report.cycle_s for report in reports.values()), default=0.0)
        verdict = self._replanner.step(global_step, works, cycle_s)
        if verdict is None or not self._is_done(verdict, master, now):
            return
        self._tell(self._event(verdict, global_step))
        self.end()

    def end(self) -> None:
        """Keep what was measured."""
        if self._replanner is not None and self._replanner.profiler.measured_by_kind:
            profiler = self._replanner.profiler
            self._save({"capability": profiler.capability_by_kind, "sync_s_by_devices": profiler.sync_s_by_devices})

    def _is_done(self, verdict: Verdict, master: Master, now: float) -> bool:
        """Ask for the move; whether the verdict stands."""
        assert self._replanner is not None
        if verdict.decision == "stay":
            return True
        try:
            master.scale(verdict.placement, now, verdict.workers, "plan")
        except RefusedError:
            self._replanner.refused()
            return False
        return True

    def _event(self, verdict: Verdict, global_step: int) -> PlanEvent:
        assert self._replanner is not None
        workers = [
            {
                "worker": worker,
                "kind": self._slots.kind(worker),
                "ests": len(ranks),
                "capability": verdict.capability_by_worker[worker],
            }
            for worker, ranks in zip(verdict.workers, verdict.placement.ranks_by_worker, strict=True)
        ]
        return PlanEvent(
            t=time.time(),
            global_step=global_step,
            decision=verdict.decision,
            reason=verdict.reason,
            placement=str(verdict.placement),
            workers=workers,
            capability=self._replanner.profiler.capability_by_kind,
            steps_per_s=verdict.plan.steps_per_s,
            waste=verdict.plan.waste,
            measured_steps_per_s=None if verdict.measured_step_s is None else 1 / verdict.measured_step_s,
        )
