"""How long a job's best step is and on how many devices, when their number matters as well as their speed. Pure.

It matters if only some numbers are allowed, if there is a greatest number, or if synchronising more devices costs more:
then the shortest computation need not be the shortest step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heapreplace
from math import ceil, inf
from typing import NamedTuple

from easyscale.schedule.model import TOLERANCE, JobModel
from easyscale.schedule.search import Supply, fastest, fastest_on, fewest, is_faster, lower_bound


class Step(NamedTuple):
    """The best step: its time, the computation's part of it, and the number of devices; None: the fewest that do it."""

    step_s: float
    compute_s: float
    size: int | None


NONE = Step(inf, inf, None)


def best_step(job: JobModel, supply: Sequence[Supply], max_devices: int | None = None, bound: float = inf) -> Step:
    """The best step of ``job`` on at most ``max_devices`` of ``supply``; infinite if there is none.

    A caller who needs no step that takes ``bound`` or longer says so; he may get another one then.
    """
    most = sum(devices for devices, _ in supply) if max_devices is None else max_devices
    if job.allowed_sizes is not None:
        return _by_sizes(job, supply, [size for size in job.allowed_sizes if size <= most])
    if job.sync_s_by_devices and not job.is_sync_rising:
        return _by_sizes(job, supply, range(1, min(most, job.num_ests) + 1))
    is_capped = max_devices is not None
    first = fastest_on(supply, job.num_ests, 1, most) if is_capped else fastest(supply, job.num_ests)
    return _by_times(job, supply, first, bound) if job.sync_s_by_devices else Step(first, first, None)


def _by_sizes(job: JobModel, supply: Sequence[Supply], sizes: Iterable[int]) -> Step:
    """Any cost: the most promising number of devices first, until no other can be better."""
    bounds = sorted((lower_bound(supply, job.num_ests, size, size) + job.sync_s(size), size) for size in sizes)
    best, best_size = NONE, 0
    for bound, size in bounds:
        if bound > best.step_s * (1 + TOLERANCE):
            break
        compute_s = fastest_on(supply, job.num_ests, size, size)
        step_s = compute_s + job.sync_s(size)
        if is_faster(step_s, best.step_s) or (not is_faster(best.step_s, step_s) and size < best_size):
            best, best_size = Step(step_s, compute_s, size), size
    return best


def _by_times(job: JobModel, supply: Sequence[Supply], first: float, bound: float) -> Step:
    """A cost that never falls with more devices: of each time from ``first`` on the fewest devices are best."""
    if first == inf:
        return NONE
    best, cheapest = NONE, job.sync_s(1)
    for compute_s in _times_from(supply, first):
        if compute_s + cheapest > min(bound, best.step_s) * (1 + TOLERANCE):
            break
        size = fewest(supply, job.num_ests, compute_s)
        step_s = compute_s + job.sync_s(size)
        if not is_faster(best.step_s, step_s):
            best = Step(step_s, compute_s, None)
        if size == 1:
            break
    return best


def _times_from(supply: Sequence[Supply], first: float) -> Iterator[float]:
    """All times from ``first`` on in which some device runs a whole number of ESTs, in order."""
    heap = []
    for index, (_, kind) in enumerate(supply):
        ests = max(1, ceil(first * kind.capability * (1 - TOLERANCE)))
        heap.append((ests / kind.capability, index, ests))
    heapify(heap)
    while heap[0][0] < inf:
        time, index, ests = heap[0]
        yield time
        kind = supply[index].kind
        following = (ests + 1) / kind.capability if ests < kind.limit else inf
        heapreplace(heap, (following, index, ests + 1))
