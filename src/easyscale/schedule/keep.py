"""Of equally fast plans with equally many devices, the one that moves the fewest ESTs. Pure.

A chosen device keeps the ESTs it runs now, as far as it has room, and each must run one at least. So a choice keeps
``min(sum of what its devices keep, num_ests - devices that run nothing now)``, and it is enough to decide how many
devices of each size of room are chosen: those that keep most come first. Greed would be right if there were room
enough with any choice; where there is not, the few choices with enough room are tried one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from easyscale.schedule.model import Plan, Share


class Batch(NamedTuple):
    """``devices`` devices of a kind, with room for ``room`` ESTs each, of which ``ests`` are there."""

    kind: str
    devices: int
    room: int
    ests: int = 0


class Group:
    """All devices with the same room, whatever their kind."""

    def __init__(self, batches: Sequence[Batch], current: Plan) -> None:
        self.room = batches[0].room
        self.size = sum(batch.devices for batch in batches)
        self.busy: list[Batch] = []
        self.idle: list[Batch] = []
        for kind, left, room, _ in batches:
            for _, devices, ests in (share for share in current.shares if share.kind == kind):
                stays = min(left, devices)
                self.busy.append(Batch(kind, stays, room, min(room, ests)))
                left -= stays
            self.idle.append(Batch(kind, left, room))
        self.busy.sort(key=lambda batch: -batch.ests)
        self.num_busy = sum(batch.devices for batch in self.busy)

    def take(self, count: int) -> list[Batch]:
        """The ``count`` devices that keep most."""
        taken = []
        for batch in (*self.busy, *self.idle):
            devices = min(batch.devices, count)
            if devices:
                taken.append(Batch(batch.kind, devices, batch.room, batch.ests))
                count -= devices
        return taken


def keeping(current: Plan, batches: Sequence[Batch], size: int, num_ests: int) -> list[Share]:
    """Shares of ``num_ests`` ESTs on ``size`` of the devices in ``batches`` (most room first) that keep the most."""
    groups = [Group(list(same), current) for _, same in groupby(batches, key=lambda batch: batch.room)]
    counts = _greedy(groups, size)
    if sum(count * group.room for count, group in zip(counts, groups, strict=True)) < num_ests:
        bound = _kept(groups, counts, num_ests)
        counts = _tried(groups, size, num_ests, bound)
    taken = [batch for count, group in zip(counts, groups, strict=True) for batch in group.take(count)]
    taken.sort(key=lambda batch: batch.ests > 0)  # idle ones are filled first
    there = [Batch(kind, devices, room, max(1, ests)) for kind, devices, room, ests in taken]
    return spread(there, num_ests - sum(batch.devices * batch.ests for batch in there))


def spread(batches: Iterable[Batch], change: int) -> list[Share]:
    """Change the sum of ESTs by ``change``, batch by batch and device by device: up to their room, or down to 1."""
    shares = []
    for kind, devices, room, ests in batches:
        step = (room if change > 0 else 1) - ests
        changed = min(devices, change // step) if step else 0
        change -= changed * step
        shares.append(Share(kind, changed, ests + step))
        if change and step and changed < devices:
            shares.append(Share(kind, 1, ests + change))
            change, changed = 0, changed + 1
        shares.append(Share(kind, devices - changed, ests))
    return shares


def _greedy(groups: Sequence[Group], size: int) -> list[int]:
    """How many of each group if room did not matter: those that keep most, then idle ones with most room."""
    busy = [(-batch.ests, index, batch.devices) for index, group in enumerate(groups) for batch in group.busy]
    idle = [(0, index, group.size - group.num_busy) for index, group in enumerate(groups)]
    counts = [0] * len(groups)
    for _, index, devices in sorted(busy) + idle:
        taken = min(devices, size)
        counts[index] += taken
        size -= taken
    return counts


def _kept(groups: Sequence[Group], counts: Sequence[int], num_ests: int) -> int:
    kept = started = 0
    for group, count in zip(groups, counts, strict=True):
        kept += sum(batch.devices * batch.ests for batch in group.take(count))
        started += max(0, count - group.num_busy)
    return min(kept, num_ests - started)


def _tried(groups: Sequence[Group], size: int, num_ests: int, bound: int) -> list[int]:
    """Numbers for each group that have room enough and keep most; no choice keeps more than ``bound``."""
    best, most = -1, list[int]()
    for counts in _with_room(groups, size, num_ests):
        kept = _kept(groups, counts, num_ests)
        if kept > best:
            best, most = kept, counts
        if kept >= bound:
            break
    return most


def _with_room(groups: Sequence[Group], size: int, num_ests: int) -> Iterator[list[int]]:
    """All ways to take ``size`` devices that have room for ``num_ests`` ESTs, the most roomy first."""
    if not groups:
        yield []
        return
    group, later = groups[0], groups[1:]
    least = max(0, size - sum(other.size for other in later))
    for count in range(min(size, group.size), least - 1, -1):
        # fewer here is more of those with less room: once it is too little, it stays so
        if count * group.room + _most_room(later, size - count) < num_ests:
            break
        for counts in _with_room(later, size - count, num_ests - count * group.room):
            yield [count, *counts]


def _most_room(groups: Sequence[Group], size: int) -> int:
    most = 0
    for group in groups:
        taken = min(size, group.size)
        most += taken * group.room
        size -= taken
    return most
