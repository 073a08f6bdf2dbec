"""The planner's time on a small and on a very large job; the simulator asks it hundreds of thousands of times.

Limits: 64 ESTs on 64 devices of 3 kinds under 1 ms; 1,024 ESTs, 6 kinds, 3,000 devices under 20 ms; all proposals of
such a job under 100 ms, from the least to the most that it can hold. Beside them, without limits: plans that follow a
current one, plans with a cost of synchronising, and an answer that is kept. Exits with 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from easyscale.schedule.model import JobModel
from easyscale.schedule.planner import best_plan, best_plan_cached
from easyscale.schedule.proposals import give_up, proposals
from plain import milliseconds, report

SMALL = JobModel(64, {"V100": 3.1, "P100": 2.4, "T4": 1.0})
SMALL_DEVICES = {"V100": 24, "P100": 20, "T4": 20}
SPEEDS = {"H100": 9.7, "A100": 7.3, "A10": 5.9, "V100": 3.1, "P100": 2.4, "T4": 1.0}
LARGE = JobModel(1024, SPEEDS)
LARGE_DEVICES = dict.fromkeys(SPEEDS, 500)
SYNC = JobModel(1024, SPEEDS, sync_s_by_devices=((1, 0.0), (1024, 0.2)))
LIMIT_MS = {"small_plan": 1.0, "large_plan": 20.0, "large_proposals": 100.0}


def plans(rounds: int) -> dict[str, dict[str, float]]:
    small_before = best_plan(SMALL, {"V100": 10, "P100": 20, "T4": 4})
    large_before = best_plan(LARGE, dict.fromkeys(SPEEDS, 80))
    best_plan_cached(SMALL, SMALL_DEVICES)
    return {
        "small_plan": milliseconds(lambda: best_plan(SMALL, SMALL_DEVICES), rounds),
        "small_plan_from_current": milliseconds(lambda: best_plan(SMALL, SMALL_DEVICES, small_before), rounds),
        "small_plan_kept": milliseconds(lambda: best_plan_cached(SMALL, SMALL_DEVICES), rounds),
        "large_plan": milliseconds(lambda: best_plan(LARGE, LARGE_DEVICES), rounds),
        "large_plan_from_current": milliseconds(lambda: best_plan(LARGE, LARGE_DEVICES, large_before), rounds),
        "large_plan_with_sync": milliseconds(lambda: best_plan(SYNC, LARGE_DEVICES), rounds),
    }


def all_proposals(job: JobModel, held_of_each: int, rounds: int) -> dict[str, float]:
    """Of a job that holds so many devices of each kind while all others are free, without a limit to its growth."""
    held = dict.fromkeys(SPEEDS, held_of_each)
    free = {kind: count - held_of_each for kind, count in LARGE_DEVICES.items()}
    found = len(proposals(job, held, free, best=None))
    return {"found": found, **milliseconds(lambda: proposals(job, held, free, best=None), rounds)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    results: dict[str, dict[str, Any]] = plans(rounds)
    by_held = {6 * each: all_proposals(LARGE, each, rounds) for each in (0, 1, 5, 20, 85)}
    worst = max(by_held.values(), key=lambda times: times["median_ms"])
    results["large_proposals"] = {"least_ms": worst["least_ms"], "median_ms": worst["median_ms"], "by_held": by_held}
    results["large_proposals_with_sync"] = all_proposals(SYNC, 20, rounds=1)
    results["large_give_up"] = milliseconds(lambda: give_up(LARGE, dict.fromkeys(SPEEDS, 85), 100), rounds)
    missed = [name for name, limit in LIMIT_MS.items() if results[name]["median_ms"] > limit]
    report("planner", **results, limits_ms=LIMIT_MS, missed=missed)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
