"""A serving cluster with priority, and elastic jobs on what it leaves. Runs in ``easyscale simulate``.

Serving's demand is a curve of GPUs held, its duty a curve of how busy those are. Promise: in the simulation serving
always has what it wants when it wants it, at most ``give_back_s`` late.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easyscale.core.errors import RefusedError
from easyscale.sim.recorder import Recorder
from easyscale.sim.report import Summary, integral
from easyscale.sim.trace import DeviceChange

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Curve:
    """A step function of time; repeated from its start on when it is over, if it is periodic."""

    times_s: tuple[float, ...]
    values: tuple[float, ...]
    period_s: float | None = None

    def at(self, at_s: float) -> float:
        if self.period_s:
            at_s = self.times_s[0] + (at_s - self.times_s[0]) % self.period_s
        return self.values[max(0, bisect_right(self.times_s, at_s) - 1)]


@dataclass(frozen=True, slots=True)
class Serving:
    """What serving does to a cluster.

    Attributes:
        kind: of GPU that it uses.
        demand: GPUs held.
        duty: the share of each held GPU that is busy.
        begin_s: where in the curves the simulation's time 0 is.
        until_s: how long is simulated.
    """

    kind: str
    demand: Curve
    duty: Curve
    begin_s: float
    until_s: float

    def changes(self, total: int) -> Iterator[DeviceChange]:
        """Devices leave the pool of training jobs and come back."""
        left = total
        for at_s in self._times():
            now_left = total - self._held(at_s, total)
            if now_left != left:
                yield DeviceChange(at_s, self.kind, now_left - left, "serving")
                left = now_left

    def figures(self, total: int, summary: Summary, recorder: Recorder) -> dict[str, Any]:
        """The whole cluster with and without elastic jobs, of all kinds. A job that failed is one that lost work."""
        times = self._times()
        held = [float(self._held(at_s, total)) for at_s in times]
        busy = [n * self.duty.at(self.begin_s + at_s) for at_s, n in zip(times, held, strict=True)]
        there = sum(recorder.first_capacity) * self.until_s
        held_s = integral(times, held, 0.0, self.until_s, held[0])
        busy_s = integral(times, busy, 0.0, self.until_s, busy[0])
        elastic_s = sum(summary.device_s_by_kind.values())
        return {
            "allocation_without": held_s / there,
            "allocation_with": (held_s + elastic_s) / there,
            "allocation_gain": elastic_s / held_s if held_s else 0.0,
            "utilisation_without": busy_s / there,
            "utilisation_with": (busy_s + summary.busy_device_s) / there,
            "utilisation_gain": summary.busy_device_s / busy_s if busy_s else 0.0,
            "training_gpu_hours": elastic_s / 3600,
            "jobs_completed": summary.jobs - summary.unfinished,
            "jobs_failed": sum(1 for job in recorder.jobs if job.lost_steps > 0),
            "preemptions_per_day": summary.give_backs.get("jobs_hit_per_day", 0.0),
            "give_back_mean_s": summary.give_backs.get("mean_s", 0.0),
            "give_back_max_s": summary.give_backs.get("max_s", 0.0),
        }

    def _held(self, at_s: float, total: int) -> int:
        return min(total, round(self.demand.at(self.begin_s + at_s)))

    def _times(self) -> list[float]:
        """Times of the simulation at which a curve changes."""
        found = {0.0}
        for curve in (self.demand, self.duty):
            period = curve.period_s or 0.0
            repeats = int((self.begin_s + self.until_s) // period) + 1 if period else 1
            for repeat in range(repeats):
                found.update(at_s + repeat * period - self.begin_s for at_s in curve.times_s)
        return sorted(at_s for at_s in found if 0 <= at_s < self.until_s)


def read_curve(path: Path, scale: float = 1.0, column: str | None = None, is_daily: bool = False) -> Curve:
    """A CSV of t_s and a value; the second column unless another is named."""
    if not path.is_file():
        raise RefusedError(f"curve {path} does not exist: give a CSV with t_s and a value")
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        names = list(reader.fieldnames or ())
        value = column or (names[1] if len(names) > 1 else "")
        if "t_s" not in names or value not in names:
            raise RefusedError(f"{path} has the columns {', '.join(names)}: a curve has t_s and {value or 'a value'}")
        points = sorted((float(row["t_s"]), float(row[value]) * scale) for row in reader)
    if not points:
        raise RefusedError(f"{path} has no rows: a curve needs one or more")
    times, values = zip(*points, strict=True)
    return Curve(times, values, DAY_S if is_daily else None)
