"""Small clusters and jobs for tests of the simulator, drawn ones too, and where shared data lies."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import strategies as st

from easyscale.schedule.cluster import ClusterJob, Counts
from easyscale.schedule.model import JobModel
from easyscale.schedule.policies import POLICIES, NamedPolicy, named
from easyscale.sim.loop import Simulation
from easyscale.sim.recorder import Recorder
from easyscale.sim.settings import Settings
from easyscale.sim.trace import DeviceChange, TraceJob

SHARED = Path(__file__).parents[3] / "shared" / "data"
KINDS = ("V100", "T4")
SPEED = {"V100": 2.0, "T4": 1.0}


def shared(name: str) -> Path:
    """A file of the shared data, or the test is skipped."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"shared data {name} is not on this machine (looked in ../shared/data)")
    return path


def job(
    name: str,
    num_ests: int = 4,
    steps: float = 100.0,
    submit_s: float = 0.0,
    preferred: str = "V100",
    can_mix: bool = True,
    kind_of_model: str = "",
    rescale_s: float | None = None,
    **asks: int,
) -> TraceJob:
    """A job that makes 2 mini-batches/s of an EST on a V100 and 1 on a T4."""
    model = JobModel(num_ests, SPEED, can_mix_kinds=can_mix)
    return TraceJob(ClusterJob(name, model, preferred, submit_s, **asks), steps, rescale_s, kind_of_model)


def run(
    jobs: Iterable[TraceJob],
    policy: str | NamedPolicy = "easyscale",
    capacity: Counts = (4, 4),
    changes: Iterable[DeviceChange] = (),
    **settings: float,
) -> Recorder:
    chosen = named(policy) if isinstance(policy, str) else policy
    return Simulation(KINDS, capacity, chosen, Settings(**settings)).run(jobs, changes)


every_policy = pytest.mark.parametrize("policy", sorted(POLICIES))
elastic_policies = pytest.mark.parametrize("policy", sorted(name for name in POLICIES if POLICIES[name].is_elastic))


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    """Up to twelve jobs of all sorts for a cluster of 4 V100 and 4 T4."""
    jobs = []
    for number in range(draw(st.integers(1, 12))):
        num_ests = draw(st.integers(1, 8))
        gang = draw(st.integers(1, min(4, num_ests)))
        jobs.append(
            job(
                f"job-{number}",
                num_ests,
                steps=draw(st.sampled_from([0.5, 1.0, 7.3, 40.0, 333.0])),
                submit_s=draw(st.sampled_from([0.0, 0.0, 1.0, 10.5, 60.0])),
                preferred=draw(st.sampled_from(KINDS)),
                can_mix=draw(st.booleans()),
                priority=draw(st.integers(0, 2)),
                min_devices=draw(st.integers(0, gang)),
                max_devices=draw(st.integers(gang, num_ests)),
                gang=gang,
            )
        )
    return jobs
