"""What one job's devices are worth: the planner's answers for counts in the cluster's order, kept. Pure.

Runs in the cluster scheduler and the simulator. A job's speed on given devices is ``planner.best_plan``'s; here it
becomes
ways to grow and to give back that compare between jobs: speed-up per device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from easyscale.schedule.cluster import Counts
from easyscale.schedule.model import TOLERANCE, JobModel
from easyscale.schedule.planner import best_plan, step_time

Kinds = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """A way to change what a job holds.

    Attributes:
        kind: index of the kind whose number changes on purpose.
        count: by how many, always above 0.
        held: what the job holds afterwards. A growth leaves out what would bring nothing any more, of other kinds too.
        per_device: growing: the speed-up minus 1, per added device. Giving back: that of taking them again.
        step_s: seconds of a global step afterwards.
    """

    kind: int
    count: int
    held: Counts
    per_device: float
    step_s: float


@lru_cache(maxsize=1 << 18)
def step_s(kinds: Kinds, model: JobModel, held: Counts) -> float:
    """Seconds of a global step on these devices; infinite if they cannot hold the job."""
    return step_time(model, {kind: count for kind, count in zip(kinds, held, strict=True) if count})


@lru_cache(maxsize=1 << 16)
def waste(kinds: Kinds, model: JobModel, held: Counts) -> float:
    """The share of the capability of all these devices that is not used, those that bring nothing included."""
    seconds = step_s(kinds, model, held)
    capability = sum(
        count * model.capability_by_kind.get(kind, 0.0) for kind, count in zip(kinds, held, strict=True) if count
    )
    return 1.0 if seconds == inf or not capability else max(0.0, 1 - model.num_ests / seconds / capability)


@lru_cache(maxsize=1 << 16)
def useful(kinds: Kinds, model: JobModel, held: Counts) -> Counts:
    """What of these devices the best plan uses."""
    plan = best_plan(model, {kind: count for kind, count in zip(kinds, held, strict=True) if count})
    used = {} if plan is None else plan.devices_by_kind
    return tuple(used.get(kind, 0) for kind in kinds)


@lru_cache(maxsize=1 << 16)
def growths(kinds: Kinds, model: JobModel, held: Counts, max_devices: int, growth: float) -> tuple[Offer, ...]:
    """Ways to grow by one kind that gain; of counts that gain the same the smallest. At most ``growth`` times as
    many.
    """
    limit = min(max_devices, max(sum(held) + 1, int(sum(held) * growth)))
    return tuple(
        offer for kind in _growing_kinds(kinds, model, held) for offer in _growths_by(kinds, model, held, kind, limit)
    )


@lru_cache(maxsize=1 << 16)
def give_backs(kinds: Kinds, model: JobModel, held: Counts, min_devices: int) -> tuple[Offer, ...]:
    """Ways to give back devices of one kind and go on, for each kind and each speed that is left the most devices."""
    return tuple(offer for kind in range(len(kinds)) for offer in _give_backs_of(kinds, model, held, kind, min_devices))


def _growing_kinds(kinds: Kinds, model: JobModel, held: Counts) -> Iterator[int]:
    """A job that may not mix kinds stays on the one it has: its bits would change on another."""
    for kind, name in enumerate(kinds):
        if name in model.capability_by_kind and (model.can_mix_kinds or not any(held) or held[kind]):
            yield kind


def _growths_by(kinds: Kinds, model: JobModel, held: Counts, kind: int, limit: int) -> Iterator[Offer]:
    """More of one kind may mean none of another any more: what is held in the end counts against the limit."""
    now_s = last_s = step_s(kinds, model, held)
    for count in range(1, limit + 1):
        grown = _changed(held, kind, count)
        seconds = step_s(kinds, model, grown)
        if seconds >= last_s * (1 - TOLERANCE):
            continue
        used = useful(kinds, model, grown)
        if sum(used) <= limit:
            last_s = seconds
            yield Offer(kind, count, used, (now_s / seconds - 1) / count, seconds)


def _give_backs_of(kinds: Kinds, model: JobModel, held: Counts, kind: int, min_devices: int) -> Iterator[Offer]:
    now_s = step_s(kinds, model, held)
    most = min(held[kind], sum(held) - max(1, min_devices))
    last: Offer | None = None
    for count in range(1, most + 1):
        left = _changed(held, kind, -count)
        seconds = step_s(kinds, model, left)
        if last is not None and seconds > last.step_s * (1 + TOLERANCE):
            yield last
        if seconds == inf:
            return
        last = Offer(kind, count, left, (seconds / now_s - 1) / count, seconds)
    if last is not None:
        yield last


def _changed(held: Counts, kind: int, by: int) -> Counts:
    return (*held[:kind], held[kind] + by, *held[kind + 1 :])
