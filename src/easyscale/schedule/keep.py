"""Of equally fast plans with equally many devices, the one that moves the fewest ESTs. Pure.

A chosen device keeps the ESTs it runs now, as far as it has room, and each must run one at least. So a choice keeps
``min(sum of what its devices keep, num_ests - devices that run nothing now)``, and it is enough to decide how many
devices of each size of room are chosen: those that keep most come first. Where any choice has room enough, greed is
right; where not, tight.py looks for the best that has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from easyscale.schedule.group import Batch, Group
from easyscale.schedule.model import Plan, Share
from easyscale.schedule.tight import most_kept


def keeping(current: Plan, batches: Sequence[Batch], size: int, num_ests: int) -> list[Share]:
    """Shares of ``num_ests`` ESTs on ``size`` of the devices in ``batches`` (most room first) that keep the most."""
    groups = [Group(list(same), current) for _, same in groupby(batches, key=lambda batch: batch.room)]
    counts = _greedy(groups, size)
    if sum(count * group.room for count, group in zip(counts, groups, strict=True)) < num_ests:
        counts = most_kept(groups, size, num_ests)
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
    busy = [(-batch.ests, index, batch.devices) for index, group in enumerate(groups) for batch in group.batches]
    counts = [0] * len(groups)
    for _, index, devices in sorted(busy):
        taken = min(devices, size)
        counts[index] += taken
        size -= taken
    return counts
