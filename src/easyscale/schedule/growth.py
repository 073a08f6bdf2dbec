"""How a job's step shortens as devices of one kind are added: the numbers at which it does, and its times. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, inf

from easyscale.schedule.model import TOLERANCE, JobModel, Kind
from easyscale.schedule.planner import step_time
from easyscale.schedule.search import Supply, ests_in, fastest, is_faster


def growth(job: JobModel, held: Mapping[str, int], kind: Kind, most: int, time: float) -> Iterator[tuple[int, float]]:
    """Numbers of devices added to ``held`` that beat ``time`` and all smaller numbers, each with its step's time.

    Args:
        job: the job that grows.
        held: what it has (kind -> how many).
        kind: of the devices added, up to ``most`` of them.
        time: seconds of a step on what it has; infinite if it cannot run there.
    """
    if job.sync_s_by_devices or job.allowed_sizes is not None:
        yield from _one_by_one(job, held, kind, most, time)
    else:
        mates = job.kinds if job.can_mix_kinds else (kind,)
        supply = [Supply(held[mate.name], mate) for mate in mates if held.get(mate.name, 0) > 0]
        yield from _by_times(job.num_ests, supply, kind, most, time)


def _one_by_one(
    job: JobModel, held: Mapping[str, int], kind: Kind, most: int, best: float
) -> Iterator[tuple[int, float]]:
    if not job.can_mix_kinds:
        held = {kind.name: held.get(kind.name, 0)}
    for count in range(1, most + 1):
        time = step_time(job, {**held, kind.name: held.get(kind.name, 0) + count}, bound=best)
        if is_faster(time, best):
            best = time
            yield count, time


def _by_times(num_ests: int, supply: list[Supply], kind: Kind, most: int, best: float) -> Iterator[tuple[int, float]]:
    """The next shorter time that is possible at all says how many devices it needs: no number is tried in vain."""
    count = 1
    while count <= most:
        time = fastest([*supply, Supply(count, kind)], num_ests)
        if is_faster(time, best):
            best = time
            yield count, time
        target = inf if best == inf else _next_shorter([*(mate for _, mate in supply), kind], best)
        room = kind.limit if target == inf else ests_in(target, kind)
        if room == 0:
            return
        there = sum(devices * (mate.limit if target == inf else ests_in(target, mate)) for devices, mate in supply)
        count = max(count + 1, ceil((num_ests - there) / room))


def _next_shorter(kinds: list[Kind], time: float) -> float:
    """The longest time below ``time`` in which some device can run a whole number of ESTs."""
    below = time * (1 - TOLERANCE)
    return max(min(kind.limit, ceil(below * kind.capability) - 1) / kind.capability for kind in kinds)
