"""The intra-job decision: how many ESTs each device runs. Pure; runs in job master, simulator and command line.

``best_plan`` promises the exact optimum: no division of the ESTs over the given devices has a shorter step; of equally
fast ones it uses the fewest devices, and of those it moves the fewest ESTs away from where they are (tight.py names the
one case in which it gives up looking for fewer). So what a plan leaves unused brings nothing (``unused``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import inf

from easyscale.schedule.choose import shares_of
from easyscale.schedule.model import JobModel, Plan
from easyscale.schedule.placing import PlacedPlan as PlacedPlan
from easyscale.schedule.placing import to_placement as to_placement
from easyscale.schedule.search import Supply, is_faster
from easyscale.schedule.tradeoff import best_step

Devices = tuple[tuple[str, int], ...]
"""Numbers of devices by kind as a key: in order of names, none of them 0."""


def best_plan(
    job: JobModel, devices: Mapping[str, int], current: Plan | None = None, max_devices: int | None = None
) -> Plan | None:
    """The best plan of ``job`` on ``devices`` (kind -> how many), or None if they cannot hold it.

    Args:
        job: what is to be planned.
        devices: what may be used. Kinds for which the job has no capability are left out.
        current: where the ESTs are now; decides between plans that are equally good. A job that may not mix kinds
            stays on the kind it has, because another one would change its bits.
        max_devices: use no more than these.
    """
    best: Plan | None = None
    for supply in _supplies(job, devices):
        if current is not None and not job.can_mix_kinds and supply[0].kind.name not in current.devices_by_kind:
            continue
        plan = _plan_on(job, supply, current, max_devices)
        if plan is not None and (best is None or _is_better(plan, best, current)):
            best = plan
    return best


def best_plan_cached(job: JobModel, devices: Mapping[str, int], current: Plan | None = None) -> Plan | None:
    """``best_plan``, kept for the next time that the same is asked: a simulation asks the same most of the time."""
    return _best_plan_cached(job, as_key(devices), current)


def as_key(devices: Mapping[str, int]) -> Devices:
    """The same devices as a hashable value."""
    return tuple(sorted((kind, count) for kind, count in devices.items() if count > 0))


def step_time(job: JobModel, devices: Mapping[str, int], bound: float = inf) -> float:
    """Seconds of a step of the best plan on ``devices``, without making it; infinite if there is none.

    Any time that is not below ``bound`` may be another one's.
    """
    return min((best_step(job, supply, bound=bound).step_s for supply in _supplies(job, devices)), default=inf)


def plans_by_size(job: JobModel, devices: Mapping[str, int]) -> tuple[Plan, ...]:
    """For each number of devices that gains over all smaller numbers, the best plan of that size; smallest first."""
    plans: list[Plan] = []
    largest = best_plan(job, devices)
    while largest is not None:
        plans.append(largest)
        largest = best_plan(job, devices, max_devices=largest.num_devices - 1) if largest.num_devices > 1 else None
    return tuple(reversed(plans))


def unused(plan: Plan | None, devices: Mapping[str, int]) -> dict[str, int]:
    """What of ``devices`` the plan does not use: it would bring nothing and can be given back."""
    used = {} if plan is None else plan.devices_by_kind
    left = {kind: devices[kind] - used.get(kind, 0) for kind in sorted(devices)}
    return {kind: count for kind, count in left.items() if count > 0}


@lru_cache(maxsize=1 << 16)
def _best_plan_cached(job: JobModel, devices: Devices, current: Plan | None) -> Plan | None:
    return best_plan(job, dict(devices), current)


def _supplies(job: JobModel, devices: Mapping[str, int]) -> Iterator[list[Supply]]:
    """What one plan may use together: all kinds, or, without level D2, each kind by itself."""
    usable = [Supply(devices[kind.name], kind) for kind in job.kinds if devices.get(kind.name, 0) > 0]
    if job.can_mix_kinds:
        if usable:
            yield usable
    else:
        for supply in usable:
            yield [supply]


def _plan_on(job: JobModel, supply: list[Supply], current: Plan | None, max_devices: int | None) -> Plan | None:
    step = best_step(job, supply, max_devices)
    if step.step_s == inf:
        return None
    return Plan.of(job, shares_of(supply, job.num_ests, step, current))


def _is_better(plan: Plan, best: Plan, current: Plan | None) -> bool:
    if is_faster(plan.step_s, best.step_s) or is_faster(best.step_s, plan.step_s):
        return plan.step_s < best.step_s
    if plan.num_devices != best.num_devices:
        return plan.num_devices < best.num_devices
    return current is not None and plan.moves_from(current) < best.moves_from(current)
