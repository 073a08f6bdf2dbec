"""Failures and reclaims as device changes: drawn from a rate, or read from a trace. Runs in ``easyscale simulate``.

Promise: the same seed gives the same failures, whatever the policy.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from pathlib import Path

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import Counts
from easyscale.sim.trace import Cause, DeviceChange

_DAY_S = 86_400.0
_CAUSES: dict[str, Cause] = {"serving": "serving", "reclaim": "reclaim", "failure": "failure"}


def draw_failures(
    kinds: tuple[str, ...], capacity: Counts, per_device_day: float, repair_s: float, until_s: float, seed: int
) -> Iterator[DeviceChange]:
    """Each device fails at this rate, with exponential times between, and is back when it is repaired."""
    if per_device_day <= 0:
        return
    draw = random.Random(f"failures {seed}")
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
                yield DeviceChange(at_s, kind, -1, "failure")
                yield DeviceChange(at_s + repair_s, kind, 1, "failure")


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
