"""Several policies on one trace, and how they compare. Runs in ``easyscale simulate``, benches, tests.

Promise: each policy sees the same jobs, the same failures and the same demand of serving.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from easyscale.schedule.cluster import Counts
from easyscale.schedule.policies import NamedPolicy
from easyscale.sim.loop import Simulation
from easyscale.sim.recorder import Recorder
from easyscale.sim.report import Summary, summarise
from easyscale.sim.serving import Serving
from easyscale.sim.settings import Settings
from easyscale.sim.trace import DeviceChange, TraceJob

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Experiment:
    """What all policies have in common.

    Attributes:
        kinds, capacity: the cluster.
        jobs: the trace.
        settings: how the cluster behaves.
        changes: devices that come and go, serving's aside.
        serving: a serving cluster with priority, if there is one.
        until_s: when the simulation stops; infinite waits for the last job.
    """

    kinds: tuple[str, ...]
    capacity: Counts
    jobs: Sequence[TraceJob]
    settings: Settings = field(default_factory=Settings)
    changes: Sequence[DeviceChange] = ()
    serving: Serving | None = None
    until_s: float = inf


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy's run."""

    summary: Summary
    recorder: Recorder
    serving: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        told = self.summary.to_json()
        return told if self.serving is None else {**told, "serving": self.serving}


def run_policy(experiment: Experiment, policy: NamedPolicy, on_progress: OnProgress | None = None) -> Outcome:
    def tell(done: int, total: int) -> None:
        assert on_progress is not None
        on_progress(policy.name, done, total)

    simulation = Simulation(
        experiment.kinds, experiment.capacity, policy, experiment.settings, tell if on_progress else None
    )
    changes, serving = list(experiment.changes), experiment.serving
    total = 0
    if serving is not None:
        total = experiment.capacity[experiment.kinds.index(serving.kind)]
        changes += serving.changes(total)
    recorder = simulation.run(experiment.jobs, changes, experiment.until_s)
    summary = summarise(policy.name, recorder, simulation.num_events)
    figures = None if serving is None else serving.figures(total, summary, recorder)
    return Outcome(summary, recorder, figures)


def comparison(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """For each policy, how many times longer jobs take under every other one."""
    jcts = {outcome.summary.policy: outcome.summary.mean_jct_s for outcome in outcomes}
    return {
        name: {other: other_s / own_s for other, other_s in jcts.items() if other != name}
        for name, own_s in jcts.items()
        if own_s > 0
    }
