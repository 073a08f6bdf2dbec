"""Devices that have room for equally many ESTs in a plan's time, and what each of them runs now. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from easyscale.schedule.model import Plan


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
        busy: list[Batch] = []
        idle: list[Batch] = []
        for kind, left, room, _ in batches:
            for _, devices, ests in (share for share in current.shares if share.kind == kind):
                stays = min(left, devices)
                busy.append(Batch(kind, stays, room, min(room, ests)))
                left -= stays
            idle.append(Batch(kind, left, room))
        busy.sort(key=lambda batch: -batch.ests)
        self.num_busy = sum(batch.devices for batch in busy)
        self.batches = (*busy, *idle)
        """Those that keep most come first, idle ones last."""

    def take(self, count: int) -> list[Batch]:
        """The ``count`` devices that keep most."""
        taken = []
        for batch in self.batches:
            devices = min(batch.devices, count)
            if devices:
                taken.append(Batch(batch.kind, devices, batch.room, batch.ests))
                count -= devices
        return taken

    def keeps(self, count: int) -> int:
        """The most ESTs that ``count`` devices keep."""
        kept = 0
        for _, devices, _, ests in self.batches:
            taken = devices if devices < count else count
            kept += taken * ests
            count -= taken
            if not count:
                break
        return kept


def kept(groups: Sequence[Group], counts: Sequence[int], num_ests: int) -> int:
    """What these numbers of devices of each group keep if each of them must run one EST at least."""
    keeps = started = 0
    for group, count in zip(groups, counts, strict=True):
        keeps += group.keeps(count)
        started += max(0, count - group.num_busy)
    return min(keeps, num_ests - started)
