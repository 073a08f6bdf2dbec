"""What an event costs does not grow with the jobs that wait: Python calls are counted, so that no clock decides."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from easyscale.schedule.cluster import ClusterJob
from easyscale.schedule.model import JobModel
from easyscale.schedule.policies import POLICIES, named
from easyscale.sim.loop import Simulation
from easyscale.sim.trace import TraceJob

pytestmark = pytest.mark.slow

MODELS = {size: JobModel(size, {"V100": 1.0}) for size in (1, 2, 4, 8)}


def calls_per_event(policy: str, waiting: int) -> float:
    """Jobs of five sizes wait for 64 GPUs; as many arrive as end."""
    jobs = [
        TraceJob(
            ClusterJob(
                f"job-{n}", MODELS[(1, 1, 2, 4, 8)[n % 5]], "V100", 0.0 if n < waiting else 5.15 * (n - waiting)
            ),
            100.0 + n % 7,
        )
        for n in range(waiting + 300)
    ]
    simulation = Simulation(("V100",), (64,), named(policy))
    simulation.load(jobs)
    simulation.advance(until_s=100.0)
    before = simulation.num_events
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    profiler = sys.getprofile()
    sys.setprofile(count)
    try:
        simulation.advance(until_s=1000.0)
    finally:
        sys.setprofile(profiler)
    return calls / (simulation.num_events - before)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_ten_times_as_many_waiting_jobs_cost_no_more_than_a_logarithm(policy: str) -> None:
    assert calls_per_event(policy, 10_000) <= 4 / 3 * calls_per_event(policy, 1_000)
