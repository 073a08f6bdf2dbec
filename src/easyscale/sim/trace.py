"""What happens to the cluster from outside: jobs, and devices that come and go. Runs in ``easyscale simulate``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import ClusterJob


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job, and the work that the scheduler does not know of.

    Attributes:
        job: what it asks of the cluster.
        steps: global steps until it is done; a fraction is meant.
        rescale_s: what each change of its devices costs it; None takes the simulation's.
        kind_of_model: a name for reports ("bert").
    """

    job: ClusterJob
    steps: float
    rescale_s: float | None = None
    kind_of_model: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.steps) and self.steps > 0):
            raise RefusedError(f"job {self.job.name} has {self.steps} steps of work: give a number above 0")
        if not (math.isfinite(self.job.submit_s) and self.job.submit_s >= 0):
            raise RefusedError(f"job {self.job.name} is submitted at {self.job.submit_s} s: give 0 or later")


Cause = Literal["serving", "reclaim", "failure"]


@dataclass(frozen=True, slots=True)
class DeviceChange:
    """Devices of one kind leave the pool (``count`` below 0) or come back.

    Attributes:
        at_s: when.
        kind: which kind.
        count: how many more there are.
        cause: "serving" and "reclaim" tell the jobs beforehand, a "failure" does not.
    """

    at_s: float
    kind: str
    count: int
    cause: Cause = "serving"
