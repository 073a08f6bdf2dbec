"""What kinds of devices the workers of a run have, and how they pretend to differ in speed. Runs in the launcher."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

ANY_KIND = "device"
"""The kind of all devices where nobody named kinds."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a run. A worker has one of them for its life, the first one that is free when it starts.

    Attributes:
        kinds: the kind of each device; empty: as many as are needed, all of one kind.
        speed_by_kind: how fast workers pretend to be, 1 the machine's own speed; a kind that is not named is that fast.
        slowdowns: from a global step on a worker pretends to be this fast, times the speed of its kind.
    """

    kinds: tuple[str, ...] = ()
    speed_by_kind: Mapping[str, float] = field(default_factory=dict)
    slowdowns: tuple[tuple[int, int, float], ...] = ()

    def speeds(self, worker: int, kind: str) -> list[list[float]]:
        """From which global step on how fast ``worker`` is; empty if it never pretends."""
        speed = self.speed_by_kind.get(kind, 1.0)
        changes = [[step, speed * factor] for step, number, factor in sorted(self.slowdowns) if number == worker]
        return [[0, speed], *changes] if speed < 1 or changes else []


class Slots:
    """Which worker has which device."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._slot_by_worker: dict[int, int] = {}

    def assign(self, worker: int, alive: Collection[int]) -> list[list[float]]:
        """Give a device to a worker that starts beside those ``alive``; its speeds, as ``Devices.speeds``."""
        taken = {slot for other, slot in self._slot_by_worker.items() if other in alive}
        self._slot_by_worker[worker] = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        return self._devices.speeds(worker, self.kind(worker))

    def kind(self, worker: int) -> str:
        """Of the device that a worker has. One that replaces a worker whose process has not ended may find none free;
        then it shares the last one's kind.
        """
        kinds = self._devices.kinds
        return kinds[min(self._slot_by_worker.get(worker, worker), len(kinds) - 1)] if kinds else ANY_KIND
