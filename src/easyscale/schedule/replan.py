"""When a running job moves its ESTs, where to, and when it goes back. Pure: told of steps, answers with verdicts.

Runs in the job master, beside the state machine that makes the changes. Time is counted in global steps: there is no
clock. Each worker is a kind of its own for the planner, so that a slow one gets fewer ESTs than its neighbours.

Promises: a move comes ``cooldown`` steps or more after the one before, unless workers came or went; none is made for
less than ``gain``, nor is a worker left out for less. A division that turned out slower than the one before is left
again, as soon as that is known, and not tried a second time until a worker's speed has changed or other workers are
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from easyscale.core.placement import Placement
from easyscale.schedule.model import JobModel, Plan, Share
from easyscale.schedule.planner import best_plan, to_placement
from easyscale.schedule.profiler import Profiler, Work

CHANGED = 0.2
"""A worker's speed has changed when it differs by this share from what it was at the last decision."""
SLOWER = 0.05
"""A move is taken back when steps take longer than before by this share."""

Division = tuple[tuple[int, int], ...]
"""How many ESTs each worker runs, in order of workers."""


@dataclass(frozen=True, slots=True)
class PlanRules:
    """When a job may move its ESTs.

    Attributes:
        gain: the least speed-up for which it does: 0.1 is ten per cent more steps in the same time.
        cooldown: global steps between two moves, at least.
        table: mini-batches/s of one EST by kind, as far as they are known before.
        limits: the most ESTs on a device, by kind.
        min_workers: no fewer workers may be left.
    """

    gain: float = 0.1
    cooldown: int = 10
    table: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    min_workers: int = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided after a global step.

    Attributes:
        decision: "move", "back" (to the division before, since this one is slower) or "stay".
        reason: one sentence.
        placement: where the job goes, or stays.
        workers: by rank in it.
        plan: its plan, with each worker as a kind of its own.
        measured_step_s: seconds of a global step where the job is; None before they were measured.
    """

    decision: Literal["move", "back", "stay"]
    reason: str
    placement: Placement
    workers: tuple[int, ...]
    plan: Plan
    capability_by_worker: Mapping[int, float]
    measured_step_s: float | None


@dataclass(frozen=True, slots=True)
class _Trial:
    """A move that has to show that it was right: what it left, and what was known and predicted then."""

    placement: Placement
    workers: tuple[int, ...]
    step_s: float
    speeds: Mapping[int, float]
    predicted_s: float


class Replanner:
    """Follows one job.

    Args:
        rules: when it may move.

    Attributes:
        is_held: somebody has said exactly where the ESTs are to be: measure, and decide nothing.
    """

    def __init__(self, rules: PlanRules) -> None:
        self.is_held = False
        self.profiler = Profiler(rules.table)
        self._rules = rules
        self._kind_by_worker: dict[int, str] = {}
        self._placement: Placement | None = None
        self._is_new = False
        self._may_move_at = 0
        self._wanted: tuple[Division, _Trial | None] | None = None
        self._trial: _Trial | None = None
        self._speeds: dict[int, float] = {}
        self._bias: dict[Division, tuple[float, Mapping[int, float]]] = {}

    def begin(self, kind_by_worker: Mapping[int, str], placement: Placement) -> None:
        """A generation begins: these workers, by rank, with this placement."""
        wanted, self._wanted, self._trial = self._wanted, None, None
        is_planned = wanted is not None and wanted[0] == _division(tuple(kind_by_worker), placement)
        if wanted is not None and is_planned:
            self._trial = wanted[1]
        self._is_new = self._is_new or not is_planned
        self._kind_by_worker, self._placement = dict(kind_by_worker), placement
        self.profiler.begin(kind_by_worker)

    def step(self, global_step: int, works: Mapping[int, Work], cycle_s: float) -> Verdict | None:
        """All workers have finished a step of this generation; what is decided now, if anything."""
        assert self._placement is not None
        division = _division(tuple(self._kind_by_worker), self._placement)
        if {worker: work.ests for worker, work in works.items()} != dict(division):
            return None
        self.profiler.note(works, cycle_s)
        if self._wanted is not None or self.is_held:
            return None
        speeds = self._known_speeds()
        if speeds is None:
            return None
        if self._trial is not None:
            return self._judge(self._trial, speeds, global_step) if self.profiler.is_settled else None
        if self._is_new:
            return self._consider(speeds, global_step)
        is_due = self.profiler.is_settled and global_step >= self._may_move_at and _differ(self._speeds, speeds)
        return self._consider(speeds, global_step) if is_due else None

    def refused(self) -> None:
        """The last move will not come about."""
        self._wanted = None

    # -- deciding ----------------------------------------------------------------------------------------------

    def _consider(self, speeds: dict[int, float], global_step: int) -> Verdict | None:
        is_new, self._is_new = self._is_new, False
        assert self._placement is not None
        job = self._job(speeds)
        workers = tuple(self._kind_by_worker)
        here = _division(workers, self._placement)
        current = _plan_of(job, here)
        best = self._best(job, current)
        changed = self._changed(speeds)
        if best is None:
            return None
        there = tuple(sorted((int(kind), ests) for kind, _, ests in best.shares))
        now_s = self.profiler.step_s or current.step_s
        tried = self._bias_of(there, speeds)
        gain = now_s / (best.step_s * (now_s / current.step_s if tried is None else tried)) - 1
        if there == here or gain < self._rules.gain:
            if not is_new:
                return None
            self._speeds = speeds
            return self._stay(current, speeds, _why_stay(there == here, tried, gain, self._rules.gain))
        trial = _Trial(self._placement, workers, now_s, speeds, best.step_s) if self.profiler.is_settled else None
        self._wanted = (there, trial)
        self._may_move_at = global_step + self._rules.cooldown
        self._speeds = speeds
        placement, members = _placed(best, workers)
        reason = f"{changed or 'the speeds that were measured'}: {gain:.0%} faster is expected"
        return Verdict("move", reason, placement, members, best, speeds, self.profiler.step_s)

    def _judge(self, trial: _Trial, speeds: dict[int, float], global_step: int) -> Verdict:
        """Whether a move was right."""
        measured_s = self.profiler.step_s
        assert measured_s is not None
        assert self._placement is not None
        self._trial = None
        workers = tuple(self._kind_by_worker)
        here = _division(workers, self._placement)
        job = self._job(speeds)
        plan = _plan_of(job, here)
        can_return = set(trial.workers) == set(workers)
        times = f"a step takes {measured_s:.3g} s and took {trial.step_s:.3g} s before the move"
        if measured_s <= trial.step_s * (1 + SLOWER):
            return self._stay(plan, speeds, times)
        if not can_return or _is_not_to_blame(trial, here, speeds):
            why = "workers are slower for themselves" if can_return else "workers have left meanwhile"
            return self._stay(plan, speeds, f"{times}, but {why}")
        self._bias[here] = (measured_s / trial.predicted_s, trial.speeds)
        self._wanted = (_division(trial.workers, trial.placement), None)
        self._may_move_at = global_step + self._rules.cooldown
        before = _plan_of(job, self._wanted[0])
        return Verdict(
            "back", f"{times}: back to where it was", trial.placement, trial.workers, before, speeds, measured_s
        )

    def _stay(self, plan: Plan, speeds: dict[int, float], reason: str) -> Verdict:
        assert self._placement is not None
        workers = tuple(self._kind_by_worker)
        return Verdict("stay", reason, self._placement, workers, plan, speeds, self.profiler.step_s)

    def _bias_of(self, division: Division, speeds: Mapping[int, float]) -> float | None:
        """How much longer a step took than predicted where it was tried and left, with workers as fast as these."""
        bias, speeds_then = self._bias.get(division, (None, {}))
        return bias if not _differ(speeds_then, speeds) else None

    def _changed(self, speeds: Mapping[int, float]) -> str:
        """What is different from the last decision, in words."""
        if speeds.keys() != self._speeds.keys():
            return "workers came or went" if self._speeds else ""
        words = []
        for worker in _differ(self._speeds, speeds):
            ratio = speeds[worker] / self._speeds[worker]
            how = "slow" if ratio < 1 else "faster"
            words.append(f"worker {worker} ({self._kind_by_worker[worker]}) is {how}, {ratio:.2g} of its speed before")
        return ", ".join(words)

    # -- what the planner is asked -----------------------------------------------------------------------------

    def _known_speeds(self) -> dict[int, float] | None:
        speeds = {worker: self.profiler.capability(worker) for worker in self._kind_by_worker}
        known = {worker: speed for worker, speed in speeds.items() if speed is not None}
        return known if len(known) == len(speeds) else None

    def _job(self, speeds: Mapping[int, float]) -> JobModel:
        assert self._placement is not None
        rules = self._rules
        limits = {str(w): rules.limits[kind] for w, kind in self._kind_by_worker.items() if kind in rules.limits}
        capability = {str(worker): speed for worker, speed in speeds.items()}
        return JobModel(self._placement.num_ests, capability, limits, sync_s_by_devices=self.profiler.sync_s_by_devices)

    def _best(self, job: JobModel, current: Plan) -> Plan | None:
        """On all workers; without some of them only if that is so much faster that it would be worth a move."""
        devices = dict.fromkeys(job.capability_by_kind, 1)
        on_all = best_plan(replace(job, allowed_sizes=(len(devices),)), devices, current)
        sizes = tuple(range(max(1, self._rules.min_workers), len(devices) + 1))
        best = best_plan(replace(job, allowed_sizes=sizes), devices, current) if sizes else None
        if best is None or (on_all is not None and on_all.step_s < best.step_s * (1 + self._rules.gain)):
            return on_all
        return best


def best_placement(rules: PlanRules, kinds: Sequence[str], even: Placement) -> Placement:
    """Where a job begins with a worker on each of these devices; ``even`` if not all of their speeds are known."""
    if not set(kinds) <= rules.table.keys():
        return even
    workers = range(len(kinds))
    capability = {str(worker): rules.table[kinds[worker]] for worker in workers}
    limits = {str(worker): rules.limits[kinds[worker]] for worker in workers if kinds[worker] in rules.limits}
    job = JobModel(even.num_ests, capability, limits, True, (len(kinds),))
    plan = best_plan(job, dict.fromkeys(capability, 1))
    return even if plan is None else _placed(plan, workers)[0]


def _division(workers: Sequence[int], placement: Placement) -> Division:
    return tuple(sorted((w, len(ranks)) for w, ranks in zip(workers, placement.ranks_by_worker, strict=True)))


def _plan_of(job: JobModel, division: Division) -> Plan:
    free = JobModel(job.num_ests, job.capability_by_kind, {}, True, None, job.sync_s_by_devices)
    return Plan.of(free, [Share(str(worker), 1, ests) for worker, ests in division])


def _placed(plan: Plan, workers: Sequence[int]) -> tuple[Placement, tuple[int, ...]]:
    """Virtual ranks in blocks that suit the reduction; workers in the order that they have."""
    placed = to_placement(plan)
    ranks = dict(zip(map(int, placed.kind_by_worker), placed.placement.ranks_by_worker, strict=True))
    members = tuple(worker for worker in workers if worker in ranks)
    return Placement(tuple(ranks[worker] for worker in members)), members


def _differ(before: Mapping[int, float], now: Mapping[int, float]) -> list[int]:
    """Workers whose speed has changed clearly, or that are not in both."""
    both = sorted(before.keys() & now.keys())
    changed = [w for w in both if not 1 / (1 + CHANGED) <= now[w] / before[w] <= 1 + CHANGED]
    return sorted([*changed, *(before.keys() ^ now.keys())])


def _is_not_to_blame(trial: _Trial, here: Division, speeds: Mapping[int, float]) -> bool:
    """Whether a worker is slower than before a move that gave it nothing more to do, and others are not."""
    before = dict(_division(trial.workers, trial.placement))
    slower = [worker for worker in _differ(trial.speeds, speeds) if speeds[worker] < trial.speeds[worker]]
    return len(slower) < len(speeds) and any(ests <= before[worker] for worker, ests in here if worker in slower)


def _why_stay(is_best: bool, tried: float | None, gain: float, least: float) -> str:
    if is_best:
        return "the ESTs are divided as well as can be"
    if tried is not None:
        return f"the division that looks best was tried: its steps took {tried:.2g} times as long as predicted"
    return f"the best division would be {gain:.1%} faster, and moves are made for {least:.0%} or more"
