"""What a job may ask for under the published rules. Runs in ``easyscale simulate --published``.

Kept with its errors on purpose: of two ways to use the same GPUs the slower one is offered at the faster one's rank,
ESTs stand on GPUs that are not there, and a single kind is never said to waste anything. ``easyscale.schedule`` has
none of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PublishedProposal:
    """GPUs of each kind, ESTs on each GPU of a kind, and what is said of them."""

    gpus: Counts
    ests: Counts
    waste: float
    speed_up: float

    @property
    def total(self) -> int:
        return sum(self.gpus)


def proposals(num_ests: int, perf: Sequence[float], pool: Counts) -> list[PublishedProposal]:
    """All of them, best first; ``perf`` is speed per kind in units of the last kind."""
    found = [*_mixed(num_ests, perf, pool), *_single(num_ests, perf, pool)]
    found.sort(key=lambda each: (-each.speed_up, -each.gpus[0]))
    kept: dict[Counts, PublishedProposal] = {}
    for each in found:
        # The error: a speed-up is compared with a waste, so the later and slower one nearly always wins.
        if each.gpus not in kept or each.speed_up > kept[each.gpus].waste:
            kept[each.gpus] = each
    return list(kept.values())


def _mixed(num_ests: int, perf: Sequence[float], pool: Counts) -> Iterator[PublishedProposal]:
    seen: set[tuple[int, Counts]] = set()
    kinds = range(len(perf))
    subsets = [set(chosen) for size in range(2, len(perf) + 1) for chosen in itertools.combinations(kinds, size)]
    for unit in range(1, num_ests + 1):
        for vector in itertools.product(*(sorted({math.floor(unit * p), math.ceil(unit * p)}) for p in perf)):
            for subset in subsets:
                ests = tuple(a if kind in subset else 0 for kind, a in enumerate(vector))
                if (unit, ests) in seen or all(a > num_ests for kind, a in enumerate(ests) if kind in subset):
                    continue
                seen.add((unit, ests))
                for gpus in _tight(num_ests, ests, pool):
                    if sum(1 for count in gpus if count) > 1:
                        yield _valued(num_ests, perf, gpus, ests, unit)


def _single(num_ests: int, perf: Sequence[float], pool: Counts) -> Iterator[PublishedProposal]:
    for kind, speed in enumerate(perf):
        for per_gpu in range(1, num_ests + 1):
            count = math.ceil(num_ests / per_gpu)
            if count <= pool[kind]:
                yield _single_kind(num_ests, len(perf), kind, count, speed)


def _single_kind(num_ests: int, kinds: int, kind: int, count: int, speed: float) -> PublishedProposal:
    gpus = tuple(count if each == kind else 0 for each in range(kinds))
    ests = tuple(math.ceil(num_ests / count) if each == kind else 0 for each in range(kinds))
    return PublishedProposal(gpus, ests, 0.0, count * speed)


def _tight(num_ests: int, ests: Counts, pool: Counts) -> Iterator[Counts]:
    """Counts of GPUs that hold all ESTs and, without the one that was added last, would not."""
    order = sorted((kind for kind in range(len(ests)) if ests[kind]), key=lambda kind: -ests[kind])

    def fill(position: int, room: int, counts: tuple[tuple[int, int], ...]) -> Iterator[Counts]:
        if room <= 0:
            by_kind = dict(counts)
            yield tuple(by_kind.get(kind, 0) for kind in range(len(ests)))
        elif position < len(order):
            kind = order[position]
            for count in range(min(pool[kind], math.ceil(room / ests[kind])) + 1):
                yield from fill(position + 1, room - count * ests[kind], (*counts, (kind, count)))

    return fill(0, num_ests, ())


def _valued(num_ests: int, perf: Sequence[float], gpus: Counts, ests: Counts, unit: int) -> PublishedProposal:
    used = [kind for kind in range(len(perf)) if gpus[kind]]
    load = max(ests[kind] / (unit * perf[kind]) for kind in used)
    placed = sum(gpus[kind] * ests[kind] for kind in used)
    idle = sum(gpus[kind] * (unit * perf[kind] - ests[kind] / load) for kind in used)
    capacity = sum(gpus[kind] * unit * perf[kind] for kind in used)
    waste = (idle + (placed - num_ests) / load) / capacity
    return PublishedProposal(gpus, ests, waste, (1 - waste) * sum(gpus[kind] * perf[kind] for kind in used))
