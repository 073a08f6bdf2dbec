"""Failures and reclaims as device changes: drawn from a rate, or read from a trace. Runs in ``easyscale simulate``.

Promise: the same seed gives the same failures, whatever the policy.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import Counts
from easyscale.sim.trace import Cause, DeviceChange

_DAY_S = 86_400.0
_CAUSES: dict[str, Cause] = {"serving": "serving", "reclaim": "reclaim", "failure": "failure"}


@dataclass(frozen=True, slots=True)
class Rate:
    """How often devices go, and for how long.

    Attributes:
        cause: "failure", or "reclaim" of spot devices.
        per_device_day: how often each goes in a day, with exponential times between.
        away_s: until it is back.
    """

    cause: Cause
    per_device_day: float
    away_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.per_device_day < math.inf and 0 < self.away_s < math.inf):
            raise RefusedError(
                f"a {self.cause} {self.per_device_day} times a day for {self.away_s} s: give a rate of 0 or "
                f"more and a time above 0"
            )


def draw_changes(
    kinds: tuple[str, ...], capacity: Counts, rate: Rate, until_s: float, seed: int
) -> Iterator[DeviceChange]:
    """Devices that go and come back, never more of a kind than there are."""
    per_device_day, repair_s = rate.per_device_day, rate.away_s
    if not per_device_day:
        return
    draw = random.Random(f"{rate.cause} {seed}")
    for kind, count in zip(kinds, capacity, strict=True):
        at_s = 0.0
        down_until: list[float] = []
        while True:
            at_s += draw.expovariate(per_device_day * count / _DAY_S)
            if at_s >= until_s:
                break
            down_until = [back_s for back_s in down_until if back_s > at_s]
            if len(down_until) < count:
                down_until.append(at_s + repair_s)
                yield DeviceChange(at_s, kind, -1, rate.cause)
                yield DeviceChange(at_s + repair_s, kind, 1, rate.cause)


def read_changes(path: Path) -> list[DeviceChange]:
    """A CSV of t_s, kind, count (below 0: devices go) and, if you like, cause: reclaim, failure or serving."""
    if not path.is_file():
        raise RefusedError(f"{path} does not exist: give a CSV with t_s, kind, count")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    changes = []
    for number, row in enumerate(rows, start=2):
        cause = row.get("cause") or "reclaim"
        try:
            changes.append(DeviceChange(float(row["t_s"]), row["kind"].upper(), int(row["count"]), _CAUSES[cause]))
        except (KeyError, ValueError):
            raise RefusedError(
                f"{path}, row {number}: give t_s, kind, count as numbers and cause as one of {', '.join(_CAUSES)}"
            ) from None
    return sorted(changes, key=lambda change: change.at_s)
