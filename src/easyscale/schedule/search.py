"""The planner's inner loop: the shortest time in which given devices can run all ESTs of a step. Pure integers.

In a time ``t`` a device of capability C runs ``floor(t * C)`` ESTs, so the shortest time is some ``k / C``. For each
kind these are in order already, and whatever is enough for one is enough for all later ones: binary search finds the
first, and no list of them is ever made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, inf
from typing import NamedTuple

from easyscale.schedule.model import TOLERANCE, Kind


class Supply(NamedTuple):
    """The devices of one kind that may be used. In a list of them, the fastest kind comes first."""

    devices: int
    kind: Kind


def fastest(supply: Sequence[Supply], num_ests: int) -> float:
    """The shortest time for ``num_ests`` ESTs on any number of these devices; infinite if they do not fit."""
    rows = [(devices, kind.pace, kind.limit) for devices, kind in supply]
    if sum(devices * limit for devices, _, limit in rows) < num_ests:
        return inf

    def is_enough(time: float) -> bool:
        left = num_ests
        for devices, pace, limit in rows:
            ests = int(time * pace)
            left -= devices * (ests if ests < limit else limit)
            if left <= 0:
                return True
        return False

    return _first(supply, num_ests / sum(devices * pace for devices, pace, _ in rows), is_enough)


def fastest_on(supply: Sequence[Supply], num_ests: int, least: int, most: int) -> float:
    """The shortest time on ``least`` to ``most`` of these devices with an EST or more on each, or infinite."""
    most = min(most, num_ests, sum(devices for devices, _ in supply))
    if least > most:
        return inf

    def is_enough(time: float) -> bool:
        left, used = num_ests, 0
        for ests, devices in sorted(((ests_in(time, kind), devices) for devices, kind in supply), reverse=True):
            if ests == 0 or used == most or (left <= 0 and used >= least):
                break
            taken = min(devices, most - used)
            used += taken
            left -= taken * ests
        return left <= 0 and used >= least

    return _first(supply, lower_bound(supply, num_ests, least, most), is_enough)


def fewest(supply: Sequence[Supply], num_ests: int, time: float) -> int:
    """The smallest number of devices that run all ESTs in ``time``, in which all devices together can run them."""
    used = 0
    for ests, devices in sorted(((ests_in(time, kind), devices) for devices, kind in supply), reverse=True):
        if devices * ests >= num_ests:
            return used - (-num_ests // ests)
        used += devices
        num_ests -= devices * ests
    raise AssertionError(f"{num_ests} ESTs are left over after {time} s on all devices")


def ests_in(time: float, kind: Kind) -> int:
    """How many ESTs one device of ``kind`` runs in ``time``."""
    ests = int(time * kind.pace)
    return ests if ests < kind.limit else kind.limit


def lower_bound(supply: Sequence[Supply], num_ests: int, least: int, most: int) -> float:
    """A time that no choice of ``least`` to ``most`` devices beats: ESTs cut at will, one EST on the slowest used."""
    capability, slowest, used = 0.0, inf, 0
    for devices, kind in supply:
        if used < least:
            slowest = kind.pace
        taken = min(devices, most - used)
        capability += taken * kind.pace
        used += taken
    return max(num_ests / capability, 1 / slowest)


def is_faster(time: float, other: float) -> bool:
    """By more than rounding."""
    return time < other * (1 - TOLERANCE)


def _first(supply: Sequence[Supply], lower: float, is_enough: Callable[[float], bool]) -> float:
    """The smallest ``k / C`` not below ``lower`` that is enough, over the kinds in ``supply``."""
    best = inf
    for _, kind in supply:
        capability = kind.capability
        low = max(1, ceil(lower * capability))
        high = kind.limit if best == inf else min(kind.limit, ceil(best * capability) - 1)
        if low > high or not is_enough(high / capability):
            continue
        while low < high:
            middle = (low + high) // 2
            if is_enough(middle / capability):
                high = middle
            else:
                low = middle + 1
        best = high / capability
    return best
