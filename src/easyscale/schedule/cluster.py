"""What a cluster policy sees and says: jobs, what they hold, decisions. Runs in cluster scheduler and simulator.

Counts of devices are tuples in the order of the cluster's kinds. A policy is one function from the cluster's books to
decisions, each of which is in force before the function goes on; see ``easyscale.schedule.policies``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from easyscale.core.errors import RefusedError
from easyscale.schedule.model import JobModel

if TYPE_CHECKING:
    from easyscale.schedule.books import Books

Counts = tuple[int, ...]


class PolicyError(RefusedError):
    """A policy decided something that cannot be. The sentence names the policy."""


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """What a job asks of the cluster.

    Attributes:
        name: unique in the cluster.
        model: its ESTs and their speed on each kind; ``can_mix_kinds`` says whether it is eligible for D2.
        preferred: the kind that a rigid scheduler gives it, and the only one that a homogeneous one does.
        submit_s: when it was submitted.
        priority: higher goes first, and may take devices from lower.
        min_devices: the guaranteed minimum; 0 is a job that runs on what is left and can be taken from at any moment.
        max_devices: never more than these.
        gang: how many devices a rigid scheduler gives it.
    """

    name: str
    model: JobModel
    preferred: str
    submit_s: float = 0.0
    priority: int = 0
    min_devices: int = 0
    max_devices: int = 0
    gang: int = 0

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "max_devices", self.max_devices or self.model.num_ests)
        put(self, "gang", self.gang or self.model.num_ests)
        if self.preferred not in self.model.capability_by_kind:
            raise RefusedError(
                f"job {self.name} prefers {self.preferred} but has no capability there: choose from "
                f"{', '.join(self.model.capability_by_kind)}"
            )
        if not 0 <= self.min_devices <= self.max_devices:
            raise RefusedError(
                f"job {self.name} asks for at least {self.min_devices} and at most {self.max_devices} devices: "
                f"give a minimum of 0 or more that is not above the maximum"
            )


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job in the books. Policies read it; the books alone write it.

    Attributes:
        job: what it asks.
        order: its number in the order of submission, which decides every tie.
        held: its devices now.
        changed_s: when ``held`` last changed.
        finish_s: when it will end if nothing changes; infinite while it does not run.
        remaining_s: while it waits, seconds of work left on its gang.
        home: index of the kind that a job which may not mix kinds has started on: on another its bits would change.
        is_done: it has ended.
        version: grows with every change, so that what was noted about an earlier state is known to be stale.
    """

    job: ClusterJob
    order: int
    held: Counts
    changed_s: float = 0.0
    finish_s: float = float("inf")
    remaining_s: float = float("inf")
    home: int | None = None
    is_done: bool = False
    version: int = 0
    num_held: int = field(default=0)

    @property
    def is_running(self) -> bool:
        return self.num_held > 0


@dataclass(frozen=True, slots=True)
class Decision:
    """From now on the job holds these devices, all of them; none means that it waits."""

    record: JobRecord
    held: Counts


Policy = Callable[["Books"], Iterator[Decision]]
"""One pure signature for all: read the books, yield decisions. Each is in the books when the generator goes on."""


def parse_cluster(text: str) -> tuple[tuple[str, ...], Counts]:
    """Read ``V100:32,P100:16`` as kinds and their counts, in the order written."""
    kinds: list[str] = []
    counts: list[int] = []
    for part in text.split(","):
        kind, _, count = part.strip().partition(":")
        if not kind or not count.isdigit() or int(count) < 1 or kind.upper() in kinds:
            raise RefusedError(
                f"cluster {text!r} is not a list of kinds and how many there are, each kind once: "
                f"write it as V100:32,P100:16"
            )
        kinds.append(kind.upper())
        counts.append(int(count))
    return tuple(kinds), tuple(counts)
