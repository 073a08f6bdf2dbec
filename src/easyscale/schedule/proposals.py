"""What a job asks the cluster for, and what it loses when devices are taken. Pure; job master, simulator, CLI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf

from easyscale.core.errors import RefusedError
from easyscale.schedule.growth import growth
from easyscale.schedule.model import JobModel, Plan
from easyscale.schedule.planner import Devices, as_key, best_plan, unused


@dataclass(frozen=True, slots=True)
class Proposal:
    """A job asks for ``count`` more devices of ``kind``.

    Attributes:
        job: who asks.
        held: what it holds (kind and number, in order of names).
        kind: of the devices added.
        count: how many.
        step_s: seconds of a global step with them.
        gain: the speed-up over the best plan on the devices held, minus 1. A job that cannot run on those is compared
            with nothing, and its gain is the plan's ``speedup``.
        gain_per_device: ``gain / count``, by which proposals of all jobs compare.
    """

    job: JobModel = field(repr=False)
    held: Devices
    kind: str
    count: int
    step_s: float
    gain: float
    gain_per_device: float

    @property
    def devices(self) -> dict[str, int]:
        """All that the job would hold."""
        held = dict(self.held)
        return {**held, self.kind: held.get(self.kind, 0) + self.count}

    @property
    def plan(self) -> Plan:
        """The best plan on ``devices``, made when asked for; what it leaves unused brings nothing any more."""
        plan = best_plan(self.job, self.devices, best_plan(self.job, dict(self.held)))
        assert plan is not None  # step_s is its time
        return plan


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A way to return devices.

    Attributes:
        returned: kind and number of the devices that go, in order of names.
        plan: the best plan on what stays; None if the job cannot run on it.
        loss: the share of the job's speed that goes with them: 0 nothing, 1 all of it.
    """

    returned: Devices
    plan: Plan | None
    loss: float


def proposals(
    job: JobModel,
    held: Mapping[str, int],
    free: Mapping[str, int],
    max_growth: int | None = None,
    best: int | None = 3,
) -> tuple[Proposal, ...]:
    """The ``best`` proposals (None: all) that gain, by gain per device, ties to more devices, then the faster kind.

    For each kind and number of added devices, of which numbers that gain nothing over a smaller one are left out. A job
    that runs and may not mix kinds asks for the kind it runs on.

    Args:
        job: who asks.
        held: what it holds now (kind -> how many).
        free: what it may be given.
        max_growth: the most devices to add at once; None for no limit.
        best: how many to return.
    """
    base = best_plan(job, held)
    now_s = inf if base is None else base.step_s
    most = job.num_ests if max_growth is None else min(max_growth, job.num_ests)
    key = as_key(held)
    found = []
    for kind in job.kinds:
        if base is not None and not job.can_mix_kinds and kind.name not in base.devices_by_kind:
            continue
        for count, step_s in growth(job, held, kind, min(free.get(kind.name, 0), most), now_s):
            gain = now_s / step_s - 1 if base is not None else job.num_ests / step_s / job.slowest_capability
            found.append(Proposal(job, key, kind.name, count, step_s, gain, gain / count))
    found.sort(key=lambda proposal: (-round(proposal.gain_per_device, 9), -proposal.count))
    return tuple(found[:best])


def proposals_cached(
    job: JobModel,
    held: Mapping[str, int],
    free: Mapping[str, int],
    max_growth: int | None = None,
    best: int | None = 3,
) -> tuple[Proposal, ...]:
    """``proposals``, kept for the next time that the same is asked."""
    most = job.num_ests if max_growth is None else min(max_growth, job.num_ests)
    wanted = {kind.name: min(free.get(kind.name, 0), most) for kind in job.kinds}
    return _proposals_cached(job, as_key(held), as_key(wanted), best)


def give_up(job: JobModel, held: Mapping[str, int], must_return: int | Mapping[str, int]) -> tuple[GiveUp, ...]:
    """Ways to return devices, the one with the least loss first.

    Args:
        job: who returns them.
        held: what it holds now (kind -> how many).
        must_return: how many of each kind: there is one way then. Or how many of any kind: the way that loses least,
            and for each kind the way that returns as many of it as it can and chooses the rest to lose least.
    """
    before = best_plan(job, held)
    options: dict[Devices, GiveUp] = {}
    for returned in _ways(job, held, before, must_return):
        stays = {kind: count - returned.get(kind, 0) for kind, count in held.items()}
        plan = best_plan(job, stays, before)
        loss = 0.0 if before is None else 1.0 if plan is None else max(0.0, 1 - before.step_s / plan.step_s)
        key = as_key(returned)
        options.setdefault(key, GiveUp(key, plan, loss))
    return tuple(sorted(options.values(), key=lambda option: (round(option.loss, 9), option.returned)))


@lru_cache(maxsize=1 << 16)
def _proposals_cached(job: JobModel, held: Devices, free: Devices, best: int | None) -> tuple[Proposal, ...]:
    return proposals(job, dict(held), dict(free), None, best)


def _ways(
    job: JobModel, held: Mapping[str, int], before: Plan | None, must_return: int | Mapping[str, int]
) -> Iterator[dict[str, int]]:
    if not isinstance(must_return, int):
        for kind in sorted(must_return):
            _refuse_more_than_held(must_return[kind], held.get(kind, 0), kind)
        yield dict(must_return)
        return
    _refuse_more_than_held(must_return, sum(held.values()), "devices")
    yield _least_loss(job, held, before, must_return)
    for kind in sorted(held):
        first = min(held[kind], must_return)
        rest = _least_loss(job, {**held, kind: held[kind] - first}, before, must_return - first)
        yield {**rest, kind: rest.get(kind, 0) + first}


def _least_loss(job: JobModel, held: Mapping[str, int], before: Plan | None, count: int) -> dict[str, int]:
    """Which ``count`` devices to return: of those that the best plan on the others does not use, the slowest first."""
    stays = sum(held.values()) - count
    plan = best_plan(job, held, before, max_devices=stays) if stays > 0 else None
    returned: dict[str, int] = {}
    spare = unused(plan, held)
    for kind in sorted(spare, key=lambda kind: (job.capability_by_kind.get(kind, 0.0), kind)):
        returned[kind] = min(spare[kind], count)
        count -= returned[kind]
    return returned


def _refuse_more_than_held(asked: int, held: int, what: str) -> None:
    if not 0 <= asked <= held:
        raise RefusedError(f"{asked} {what} were to be returned but the job holds {held}: ask for at most {held}")
