"""Changes to a whole trace: a network, costs of a rescale by model, all submitted at once. Runs in ``easyscale
simulate``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import ClusterJob
from easyscale.schedule.model import JobModel
from easyscale.sim.trace import TraceJob


@dataclass(frozen=True, slots=True)
class Network:
    """What synchronising a step costs, given nodes of a size: jobs are thought to be packed onto the fewest nodes.

    Attributes:
        node_size: devices in a node.
        inside_s: seconds per step while all devices are in one node.
        between_s: seconds per step beyond that.
    """

    node_size: int
    inside_s: float
    between_s: float

    def __post_init__(self) -> None:
        if self.node_size < 1 or self.inside_s < 0 or self.between_s < 0:
            raise RefusedError(
                f"nodes of {self.node_size} with costs {self.inside_s}, {self.between_s} s: none below 0"
            )

    def points(self, most: int) -> tuple[tuple[int, float], ...]:
        found = {1: 0.0, 2: self.inside_s, self.node_size: self.inside_s, self.node_size + 1: self.between_s}
        if self.node_size == 1:
            found = {1: 0.0, 2: self.between_s}
        return tuple(sorted((devices, cost) for devices, cost in found.items() if devices <= max(2, most)))


def with_network(jobs: list[TraceJob], network: Network) -> list[TraceJob]:
    models: dict[JobModel, JobModel] = {}

    def with_it(model: JobModel) -> JobModel:
        if model not in models:
            models[model] = JobModel(
                model.num_ests,
                model.capability_by_kind,
                model.max_ests_by_kind,
                model.can_mix_kinds,
                model.allowed_sizes,
                network.points(model.num_ests),
            )
        return models[model]

    return [_with_job(job, replace(job.job, model=with_it(job.job.model))) for job in jobs]


def with_rescale_costs(jobs: list[TraceJob], cost_by_model: Mapping[str, float]) -> list[TraceJob]:
    """A cost for each model named; the others keep theirs."""
    models = {job.kind_of_model for job in jobs}
    unknown = sorted(set(cost_by_model) - models)
    if unknown:
        raise RefusedError(
            f"a rescale cost is given for {', '.join(unknown)}, but the trace has {', '.join(sorted(models))}"
        )
    return [replace(job, rescale_s=cost_by_model.get(job.kind_of_model, job.rescale_s)) for job in jobs]


def as_backlog(jobs: list[TraceJob]) -> list[TraceJob]:
    """All submitted at time 0, in the same order."""
    return [_with_job(job, replace(job.job, submit_s=0.0)) for job in jobs]


def _with_job(job: TraceJob, changed: ClusterJob) -> TraceJob:
    return replace(job, job=changed)
