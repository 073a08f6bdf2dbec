"""What the planner knows of a job (``JobModel``) and what it answers (``Plan``). Runs in job master, simulator, CLI.

Every value here is frozen, cannot be wrong once made, and is hashable, so that answers can be kept by question.
Units: capability is mini-batches/s of ONE EST on a kind; times are seconds of one global step.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from easyscale.core.errors import RefusedError
from easyscale.core.table import Table

TOLERANCE = 1e-9
"""Two times are equal when they differ by no more than this share of them: ``3 / 0.3`` is ``1 / 0.1``."""


class Kind(NamedTuple):
    """A kind of device as one job sees it."""

    name: str
    capability: float
    limit: int
    """The most ESTs that one device can hold: its memory's limit, or all of the job's."""
    pace: float
    """Capability, larger by the tolerance: ``int(t * pace)`` ESTs are done in a time t, whatever was rounded."""


@dataclass(frozen=True, slots=True)
class JobModel:
    """A job as the planner sees it.

    Attributes:
        num_ests: number of ESTs, fixed for the job's life.
        capability_by_kind: mini-batches/s of one EST alone on a device of the kind. A kind that is not named here is
            never used.
        max_ests_by_kind: the most ESTs that fit into the memory of a device; a kind that is not named has no limit.
        can_mix_kinds: whether one plan may use several kinds at once. Only at determinism level D2 are bits the same.
        allowed_sizes: numbers of devices that the user allows; None allows every number.
        sync_s_by_devices: points ``(number of devices, seconds)`` of what synchronising costs in each step; between
            two points a straight line, outside of them the nearest point's. Empty: nothing.
    """

    num_ests: int
    capability_by_kind: Mapping[str, float]
    max_ests_by_kind: Mapping[str, int] = field(default_factory=dict)
    can_mix_kinds: bool = True
    allowed_sizes: tuple[int, ...] | None = None
    sync_s_by_devices: tuple[tuple[int, float], ...] = ()
    kinds: tuple[Kind, ...] = field(init=False, repr=False, compare=False)
    """All kinds that can hold an EST, fastest first, of equals by name."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self)
        put = object.__setattr__
        put(self, "capability_by_kind", Table(self.capability_by_kind))
        put(self, "max_ests_by_kind", Table(self.max_ests_by_kind))
        if self.allowed_sizes is not None:
            put(self, "allowed_sizes", tuple(sorted(set(self.allowed_sizes))))
        put(self, "sync_s_by_devices", tuple(sorted(self.sync_s_by_devices)))
        put(self, "kinds", tuple(self._kinds()))
        put(self, "_hash", hash(self._values()))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        # made anew in the other process, because hashes of names differ between processes
        capability, limits = dict(self.capability_by_kind), dict(self.max_ests_by_kind)
        return JobModel, (self.num_ests, capability, limits, *self._values()[3:])

    def only(self, *names: str) -> JobModel:
        """The same job, allowed on these kinds alone."""
        unknown = sorted(set(names) - set(self.capability_by_kind))
        if unknown:
            raise RefusedError(
                f"the job has no capability for {', '.join(unknown)}: choose from {', '.join(self.capability_by_kind)}"
            )
        capability = {name: self.capability_by_kind[name] for name in names}
        limits = {name: limit for name, limit in self.max_ests_by_kind.items() if name in names}
        return JobModel(self.num_ests, capability, limits, *self._values()[3:])  # type: ignore[arg-type]

    def sync_s(self, num_devices: int) -> float:
        """Seconds of a step that go into synchronising ``num_devices`` devices."""
        points = self.sync_s_by_devices
        if not points:
            return 0.0
        right = bisect_left(points, (num_devices,))
        if right == len(points) or right == 0 or points[right][0] == num_devices:
            return points[min(right, len(points) - 1)][1]
        (x0, y0), (x1, y1) = points[right - 1 : right + 1]
        return y0 + (y1 - y0) * (num_devices - x0) / (x1 - x0)

    @property
    def is_sync_rising(self) -> bool:
        """Whether more devices never cost less to synchronise."""
        costs = [cost for _, cost in self.sync_s_by_devices]
        return costs == sorted(costs)

    @property
    def slowest_capability(self) -> float:
        """What speed-ups are measured against: one device of the job's slowest kind."""
        return min(self.capability_by_kind.values())

    def _values(self) -> tuple[object, ...]:
        return (
            self.num_ests,
            self.capability_by_kind,
            self.max_ests_by_kind,
            self.can_mix_kinds,
            self.allowed_sizes,
            self.sync_s_by_devices,
        )

    def _kinds(self) -> Iterator[Kind]:
        for name in sorted(self.capability_by_kind, key=lambda name: (-self.capability_by_kind[name], name)):
            capability = float(self.capability_by_kind[name])
            limit = min(self.num_ests, self.max_ests_by_kind.get(name, self.num_ests))
            if limit > 0:
                yield Kind(name, capability, limit, capability * (1 + TOLERANCE))


class Share(NamedTuple):
    """``devices`` devices of one kind that run ``ests`` ESTs each."""

    kind: str
    devices: int
    ests: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How many ESTs each device runs, and what comes of it.

    Attributes:
        shares: fastest kind first, then most ESTs first; a kind and number of ESTs occurs once.
        compute_s: time until the slowest device is through with its ESTs: the greatest ``ests / capability``.
        sync_s: what synchronising adds.
        waste: the share of the used devices' capability that is not used, as the paper defines it; in [0, 1).
        speedup: mini-batches/s relative to one device of the job's slowest kind.
    """

    shares: tuple[Share, ...]
    num_ests: int
    compute_s: float
    sync_s: float
    waste: float
    speedup: float

    @classmethod
    def of(cls, job: JobModel, shares: Sequence[Share]) -> Plan:
        """The plan of these shares, in any order, for ``job``; refuses what cannot be."""
        order = {kind.name: index for index, kind in enumerate(job.kinds)}
        count_by_share: dict[tuple[str, int], int] = {}
        for kind, devices, ests in shares:
            if kind not in order or not 1 <= ests <= job.kinds[order[kind]].limit:
                raise RefusedError(f"{ests} ESTs on one {kind} were asked for, which the job does not allow: plan anew")
            count_by_share[kind, ests] = count_by_share.get((kind, ests), 0) + devices
        merged = [Share(kind, devices, ests) for (kind, ests), devices in count_by_share.items() if devices > 0]
        merged.sort(key=lambda share: (order[share.kind], -share.ests))
        placed = sum(devices * ests for _, devices, ests in merged)
        if placed != job.num_ests:
            raise RefusedError(f"the plan places {placed} ESTs but the job has {job.num_ests}: place each of them once")
        return cls.trusted(job, tuple(merged))

    @classmethod
    def trusted(cls, job: JobModel, shares: tuple[Share, ...]) -> Plan:
        """As ``of``, for shares that are known to be right and in order."""
        capability = job.capability_by_kind
        compute_s = max(ests / capability[kind] for kind, _, ests in shares)
        devices = sum(share.devices for share in shares)
        sync_s = job.sync_s(devices)
        per_s = job.num_ests / (compute_s + sync_s)
        offered = sum(count * capability[kind] for kind, count, _ in shares)
        waste = max(0.0, 1 - per_s / offered)
        return cls(shares, job.num_ests, compute_s, sync_s, waste, per_s / job.slowest_capability)

    @property
    def step_s(self) -> float:
        """Seconds of one global step."""
        return self.compute_s + self.sync_s

    @property
    def steps_per_s(self) -> float:
        return 1 / self.step_s

    @property
    def mini_batches_per_s(self) -> float:
        """Of all ESTs together."""
        return self.num_ests / self.step_s

    @property
    def num_devices(self) -> int:
        return sum(share.devices for share in self.shares)

    @property
    def devices_by_kind(self) -> dict[str, int]:
        """How many devices of each kind the plan uses; fastest kind first."""
        count_by_kind: dict[str, int] = {}
        for kind, devices, _ in self.shares:
            count_by_kind[kind] = count_by_kind.get(kind, 0) + devices
        return count_by_kind

    @property
    def mixes_kinds(self) -> bool:
        """Whether determinism level D2 is needed for equal bits."""
        return len(self.devices_by_kind) > 1

    def ests_by_device(self, kind: str) -> list[int]:
        """ESTs on each used device of ``kind``, most first."""
        return [ests for name, devices, ests in self.shares if name == kind for _ in range(devices)]

    def moves_from(self, current: Plan) -> int:
        """The least number of ESTs that start on a device anew when this plan follows ``current``."""
        moved = 0
        for kind in self.devices_by_kind:
            before = current.ests_by_device(kind)
            for index, ests in enumerate(self.ests_by_device(kind)):
                moved += max(0, ests - before[index]) if index < len(before) else ests
        return moved

    def __str__(self) -> str:
        return " + ".join(f"{devices} {kind} x {ests}" for kind, devices, ests in self.shares)


def _check(job: JobModel) -> None:
    if job.num_ests < 1:
        raise RefusedError(f"num_ests is {job.num_ests}: a job has at least 1 EST")
    if not job.capability_by_kind:
        raise RefusedError("no capability was given: name at least one kind with its mini-batches/s, as in V100=3.1")
    for kind, capability in sorted(job.capability_by_kind.items()):
        if not (math.isfinite(capability) and capability > 0):
            raise RefusedError(f"the capability of {kind} is {capability}: give mini-batches/s of one EST, above 0")
    for kind, limit in sorted(job.max_ests_by_kind.items()):
        if kind not in job.capability_by_kind:
            raise RefusedError(
                f"a memory limit was given for {kind}, which has no capability: choose from "
                f"{', '.join(sorted(job.capability_by_kind))}"
            )
        if limit < 0:
            raise RefusedError(f"the most ESTs on one {kind} are {limit}: give 0 (none fits) or more")
    if job.allowed_sizes is not None and not job.allowed_sizes:
        raise RefusedError("no number of devices is allowed: name one or more, or None for every number")
    for size in job.allowed_sizes or ():
        if size < 1:
            raise RefusedError(f"a number of devices of {size} was allowed: each must be 1 or more")
    counts = [devices for devices, _ in job.sync_s_by_devices]
    if len(set(counts)) < len(counts) or any(devices < 1 for devices in counts):
        raise RefusedError(f"synchronising costs are given for {counts} devices: each number once, and 1 or more")
    if not all(math.isfinite(cost) and cost >= 0 for _, cost in job.sync_s_by_devices):
        raise RefusedError("a synchronising cost is below 0 or not a number: give seconds per step")
