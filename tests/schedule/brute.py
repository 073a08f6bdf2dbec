"""Every division of ESTs over devices, one by one, in exact fractions: what the planner's answers are held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from hypothesis import strategies as st

from easyscale.schedule.model import JobModel, Plan

Division = tuple[tuple[int, ...], ...]
"""For each kind in order of names, ESTs on each used device, most first."""


@cache
def partitions(total: int, parts: int, largest: int) -> list[tuple[int, ...]]:
    """All ways to write ``total`` as a sum of at most ``parts`` numbers up to ``largest``, most first."""
    if total == 0:
        return [()]
    if parts == 0:
        return []
    return [
        (first, *rest)
        for first in range(min(total, largest), 0, -1)
        for rest in partitions(total - first, parts - 1, first)
    ]


def divisions(total: int, rooms: tuple[tuple[int, int], ...]) -> Iterator[Division]:
    """All divisions of ``total`` ESTs over kinds, of which each has (devices, most ESTs on one)."""
    if not rooms:
        if total == 0:
            yield ()
        return
    (devices, largest), *rest = rooms
    for here in range(total, -1, -1):
        for parts in partitions(here, devices, largest):
            for others in divisions(total - here, tuple(rest)):
                yield (parts, *others)


@dataclass(frozen=True)
class Best:
    """The shortest step, of equals the fewest devices, of equals the fewest ESTs moved."""

    step_s: Fraction
    num_devices: int
    moves: int


def brute_best(
    job: JobModel, devices: Mapping[str, int], current: Plan | None = None, max_devices: int | None = None
) -> Best | None:
    """None where there is no plan."""
    names = sorted(job.capability_by_kind)
    speeds = [Fraction(repr(job.capability_by_kind[name])) for name in names]
    rooms = tuple((devices.get(name, 0), job.max_ests_by_kind.get(name, job.num_ests)) for name in names)
    before = [Counter() if current is None else Counter(ests_on(current, name)) for name in names]
    best: Best | None = None
    for division in divisions(job.num_ests, rooms):
        size = sum(len(parts) for parts in division)
        used = [name for name, parts in zip(names, division, strict=True) if parts]
        if not is_allowed(job, size, used, current, max_devices):
            continue
        compute_s = max(parts[0] / speed for parts, speed in zip(division, speeds, strict=True) if parts)
        moves = 0 if current is None else sum(map(moved, before, division))
        found = Best(compute_s + exact_sync_s(job, size), size, moves)
        if best is None or key(found) < key(best):
            best = found
    return best


def is_allowed(job: JobModel, size: int, used: list[str], current: Plan | None, max_devices: int | None) -> bool:
    if job.allowed_sizes is not None and size not in job.allowed_sizes:
        return False
    if max_devices is not None and size > max_devices:
        return False
    if job.can_mix_kinds:
        return True
    return len(used) == 1 and (current is None or used[0] in current.devices_by_kind)


def exact_sync_s(job: JobModel, size: int) -> Fraction:
    points = [(x, Fraction(repr(y))) for x, y in job.sync_s_by_devices]
    if not points or size <= points[0][0]:
        return points[0][1] if points else Fraction(0)
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        if x0 <= size <= x1:
            return y0 + (y1 - y0) * Fraction(size - x0, x1 - x0)
    return points[-1][1]


def moved(before: Counter[int], after: tuple[int, ...]) -> int:
    """ESTs that arrive on a device when the fullest stays the fullest."""
    old = sorted(before.elements(), reverse=True)
    return sum(max(0, ests - (old[index] if index < len(old) else 0)) for index, ests in enumerate(after))


def ests_on(plan: Plan, kind: str) -> list[int]:
    return [share.ests for share in plan.shares if share.kind == kind for _ in range(share.devices)]


def key(best: Best) -> tuple[Fraction, int, int]:
    return best.step_s, best.num_devices, best.moves


NAMES = ("A", "B", "C")
capabilities = st.integers(1, 80).map(lambda tenths: tenths / 10)
sync_points = st.lists(
    st.tuples(st.integers(1, 8), st.integers(0, 30).map(lambda hundredths: hundredths / 100)),
    max_size=3,
    unique_by=lambda point: point[0],
).map(tuple)


@st.composite
def jobs(draw: st.DrawFn, max_ests: int = 12, is_plain: bool = False) -> JobModel:
    """Small jobs of up to three kinds; plain ones without sizes and synchronising costs."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    num_ests = draw(st.integers(1, max_ests))
    return JobModel(
        num_ests,
        {name: draw(capabilities) for name in names},
        {name: draw(st.integers(0, num_ests)) for name in names if draw(st.booleans())},
        draw(st.booleans()),
        None if is_plain else draw(st.none() | st.lists(st.integers(1, 8), min_size=1, max_size=4).map(tuple)),
        () if is_plain else draw(sync_points),
    )


@st.composite
def fleets(draw: st.DrawFn, most: int = 8) -> dict[str, int]:
    """Up to ``most`` devices of three kinds."""
    counts = {}
    for name in NAMES:
        counts[name] = draw(st.integers(0, most))
        most -= counts[name]
    return counts
