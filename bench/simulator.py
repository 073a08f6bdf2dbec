"""The simulator's time and memory: the paper's trace, a month of ten clusters, and how the price of an event grows.

Limits: the paper's trace under all policies in 2 s; ElasticFlow's ten clusters together (69,351 jobs, 60 days) on 4,000
GPUs in 3 minutes and 1 GB; the price of an event grows no faster than the logarithm of the jobs that wait. Traces are
read from ../shared/data; a part whose data is absent says so and is left out. Exits with 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import gc
import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

from easyscale.schedule.cluster import ClusterJob
from easyscale.schedule.model import JobModel
from easyscale.schedule.policies import POLICIES, named
from easyscale.sim.experiment import Experiment, run_policy
from easyscale.sim.loop import Simulation
from easyscale.sim.settings import Settings
from easyscale.sim.step_times import read_step_times
from easyscale.sim.trace import TraceJob
from easyscale.sim.traces.columns import Recorded
from easyscale.sim.traces.read import Reading, read_trace
from plain import report

DATA = Path(__file__).parents[2] / "shared" / "data"
PAPER_S, MERGED_S, MERGED_MIB = 2.0, 180.0, 1024.0
WAITING = (1_000, 10_000, 100_000)
ARRIVAL_S = 3.2 * 103.0 / 64
"""So that as much work arrives as 64 GPUs do, and as many jobs wait in the end as in the beginning."""


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def paper() -> dict[str, Any]:
    """Seconds of one call of all policies, reading included. The limit is on processor time: others may be at work."""
    begin, cpu = time.perf_counter(), time.process_time()
    times = read_step_times(DATA / "step_times" / "easyscale_step_times.csv", "D1+D2 hetero", 1.0)
    kinds, capacity = ("V100", "P100", "T4"), (32, 16, 16)
    reading = Reading(kinds, times, None, Recorded(dict.fromkeys(kinds, 1.0), "V100"))
    jobs = read_trace([DATA / "paper" / "workload_test.csv"], reading)
    seconds = {}
    for policy in POLICIES.values():
        start = time.process_time()
        run_policy(Experiment(kinds, capacity, jobs), policy)
        seconds[policy.name] = round(time.process_time() - start, 3)
    cpu_s, all_s = time.process_time() - cpu, time.perf_counter() - begin
    return {"cpu_s": round(cpu_s, 3), "all_s": round(all_s, 3), "by_policy_s": seconds}


def merged(policy: str, gpus: int) -> dict[str, Any]:
    """ElasticFlow's ten clusters as one."""
    begin = time.perf_counter()
    paths = sorted((DATA / "traces" / "elasticflow" / "raw").glob("cluster*.csv"))
    jobs = read_trace(paths, Reading(("V100",), None, None, Recorded({"V100": 1.0}, "V100")))
    outcome = run_policy(Experiment(("V100",), (gpus,), jobs), named(policy))
    seconds = time.perf_counter() - begin
    return {
        "policy": policy,
        "gpus": gpus,
        "jobs": len(jobs),
        "events": outcome.summary.events,
        "seconds": round(seconds, 1),
        "peak_mib": round(peak_mib()),
        "mean_jct_s": round(outcome.summary.mean_jct_s, 1),
        "rescales": outcome.summary.rescales,
        "most_waiting": max(outcome.recorder.waiting),
    }


def price(policy: str, waiting: int, events: int) -> float:
    """Microseconds of processor time for an event while ``waiting`` jobs wait for 64 GPUs."""
    models = {size: JobModel(size, {"V100": 1.0}) for size in (1, 2, 4, 8)}
    many = waiting + events
    jobs = []
    for number in range(many):
        size = (1, 1, 2, 4, 8)[number % 5]
        submit_s = 0.0 if number < waiting else ARRIVAL_S * (number - waiting + 1)
        job = ClusterJob(f"job-{number}", models[size], "V100", submit_s)
        jobs.append(TraceJob(job, 100.0 + number % 7))
    simulation = Simulation(("V100",), (64,), named(policy), Settings())
    simulation.load(jobs)
    simulation.advance(until_s=100.0)
    before = simulation.num_events
    gc.collect()
    begin = time.process_time()
    simulation.advance(until_s=ARRIVAL_S * events)
    return 1e6 * (time.process_time() - begin) / (simulation.num_events - before)


def growth(policy: str, events: int) -> dict[str, Any]:
    prices = {str(waiting): round(min(price(policy, waiting, events) for _ in range(3)), 1) for waiting in WAITING}
    first, last = prices[str(WAITING[0])], prices[str(WAITING[-1])]
    return {
        "policy": policy,
        "us_per_event_by_waiting": prices,
        "grew": round(last / first, 2),
        "log_grew": round(math.log(WAITING[-1]) / math.log(WAITING[0]), 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["paper", "merged", "growth"], help="only this one")
    parser.add_argument("--gpus", type=int, default=4000)
    parser.add_argument("--policies", default="easyscale,fifo,backfill")
    parser.add_argument("--events", type=int, default=3000)
    given = parser.parse_args()
    policies = given.policies.split(",")
    results: dict[str, Any] = {}
    missed = []
    if not DATA.is_dir():
        results["left_out"] = "paper and merged: there is no ../shared/data"
    elif given.part in (None, "paper"):
        results["paper"] = paper()
        missed += ["paper"] * (results["paper"]["cpu_s"] > PAPER_S)
    if DATA.is_dir() and given.part in (None, "merged"):
        results["merged"] = [merged(policy, given.gpus) for policy in policies]
        missed += ["merged"] * any(each["seconds"] > MERGED_S for each in results["merged"])
        missed += ["memory"] * any(each["peak_mib"] > MERGED_MIB for each in results["merged"])
    if given.part in (None, "growth"):
        results["growth"] = [growth(policy, given.events) for policy in policies]
        missed += ["growth"] * any(each["grew"] > each["log_grew"] for each in results["growth"])
    report("simulator", **results, missed=missed)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
