"""The cluster's books: who waits, who holds what, what is free. Runs in the cluster scheduler and the simulator.

Promise: a decision that cannot be is refused with the policy's name; asking for the first of many costs a logarithm of
their number. Orders that policies need are kept as indexes: caches of the books' state, which could be made anew any
time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

from easyscale.schedule.cluster import ClusterJob, Counts, Decision, JobRecord, PolicyError

Entry = tuple[Hashable, tuple[float, ...]]
"""A bucket, and the key that orders a record in it: smallest first, then by order of submission."""

_Noted = tuple[tuple[float, ...], int, int, JobRecord]


class _Bucket:
    """A heap of what was noted. What is stale is dropped when it is met, and all of it when the heap has doubled."""

    SMALL = 64

    def __init__(self) -> None:
        self.heap: list[_Noted] = []
        self._limit = self.SMALL

    def note(self, key: tuple[float, ...], record: JobRecord) -> None:
        if len(self.heap) >= self._limit:
            self.heap = [noted for noted in self.heap if noted[3].version == noted[2]]
            heapq.heapify(self.heap)
            self._limit = max(self.SMALL, 2 * len(self.heap))
        heapq.heappush(self.heap, (key, record.order, record.version, record))

    def first(self) -> _Noted | None:
        while self.heap:
            if self.heap[0][3].version == self.heap[0][2]:
                return self.heap[0]
            heapq.heappop(self.heap)
        return None

    def ascending(self) -> Iterator[_Noted]:
        first, heap = self.first(), self.heap
        frontier = [] if first is None else [(first, 0)]
        while frontier:
            noted, at = heapq.heappop(frontier)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(frontier, (heap[child], child))
            if noted[3].version == noted[2]:
                yield noted


@dataclass(frozen=True, slots=True)
class Index:
    """An order over records that a policy asks the books to keep.

    Attributes:
        name: for people.
        entries: where a record stands, computed whenever it changes. May read the record and nothing that changes
            without
            it.
    """

    name: str
    entries: Callable[[JobRecord], Iterable[Entry]]

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class Books:
    """State of a cluster as a policy reads it.

    Args:
        kinds: names of the kinds of device, which fixes the order of all counts.
        capacity: how many there are of each.
    """

    def __init__(self, kinds: tuple[str, ...], capacity: Counts) -> None:
        self.kinds = kinds
        self.capacity = capacity
        self.now_s = 0.0
        self._free = list(capacity)
        self._records: dict[str, JobRecord] = {}
        self._buckets_by_index: dict[Index, dict[Hashable, _Bucket]] = {}
        self._num_running = 0
        self._submitted = 0

    @property
    def free(self) -> Counts:
        """Devices that nobody holds, by kind. Below zero after devices were lost, until somebody gave some back."""
        return tuple(self._free)

    @property
    def num_running(self) -> int:
        return self._num_running

    @property
    def num_waiting(self) -> int:
        return len(self._records) - self._num_running

    def waiting(self) -> Iterator[JobRecord]:
        """In order of submission."""
        return (record for record in list(self._records.values()) if not record.is_running)

    def running(self) -> Iterator[JobRecord]:
        """In order of submission."""
        return (record for record in list(self._records.values()) if record.is_running)

    def record(self, name: str) -> JobRecord:
        return self._records[name]

    def kind_index(self, kind: str) -> int:
        return self.kinds.index(kind)

    # -- orders ------------------------------------------------------------------------------------------------------

    def buckets(self, index: Index) -> list[Hashable]:
        """Buckets of the index that have held something, in no order that a decision may depend on."""
        return list(self._buckets(index))

    def first(self, index: Index, bucket: Hashable) -> tuple[tuple[float, ...], JobRecord] | None:
        """The record with the smallest key in the bucket, and that key."""
        found = self._buckets(index).get(bucket)
        noted = None if found is None else found.first()
        return None if noted is None else (noted[0], noted[3])

    def ascending(self, index: Index, bucket: Hashable) -> Iterator[tuple[tuple[float, ...], JobRecord]]:
        """The bucket by rising key; the first k of it cost k log k. Decide nothing while iterating."""
        found = self._buckets(index).get(bucket)
        return iter(()) if found is None else ((noted[0], noted[3]) for noted in found.ascending())

    def _buckets(self, index: Index) -> dict[Hashable, _Bucket]:
        buckets = self._buckets_by_index.get(index)
        if buckets is None:
            buckets = self._buckets_by_index[index] = {}
            for record in self._records.values():
                self._note(index, buckets, record)
        return buckets

    @staticmethod
    def _note(index: Index, buckets: dict[Hashable, _Bucket], record: JobRecord) -> None:
        for name, key in index.entries(record):
            bucket = buckets.get(name)
            if bucket is None:
                bucket = buckets[name] = _Bucket()
            bucket.note(key, record)

    # -- changes, which come from whoever runs the cluster -----------------------------------------------------------

    def submit(self, job: ClusterJob, remaining_s: float = float("inf")) -> JobRecord:
        if job.name in self._records:
            raise PolicyError(f"a job named {job.name} is in the cluster already: give this one another name")
        record = JobRecord(job, self._submitted, (0,) * len(self.kinds), changed_s=self.now_s, remaining_s=remaining_s)
        self._submitted += 1
        self._records[job.name] = record
        self.touch(record)
        return record

    def finish(self, record: JobRecord) -> None:
        self._take(record, (0,) * len(self.kinds))
        self._num_running -= record.is_running
        record.num_held = 0
        record.is_done = True
        record.version += 1
        del self._records[record.job.name]

    def set_capacity(self, capacity: Counts) -> None:
        """Devices appeared or were lost; ``free`` may be below zero afterwards."""
        for kind, (new, old) in enumerate(zip(capacity, self.capacity, strict=True)):
            self._free[kind] += new - old
        self.capacity = capacity

    def hold(self, record: JobRecord, held: Counts) -> None:
        """The job holds this now, whoever decided it. A policy's decision is checked first."""
        self._take(record, held)
        was_running, record.num_held = record.is_running, sum(held)
        self._num_running += record.is_running - was_running
        record.changed_s = self.now_s
        if record.home is None and record.is_running and not record.job.model.can_mix_kinds:
            record.home = next(kind for kind, count in enumerate(held) if count)
        self.touch(record)

    def touch(self, record: JobRecord) -> None:
        """Something about the record has changed: note it anew wherever it is in order."""
        record.version += 1
        for index, buckets in self._buckets_by_index.items():
            self._note(index, buckets, record)

    def _take(self, record: JobRecord, held: Counts) -> None:
        for kind, (new, old) in enumerate(zip(held, record.held, strict=True)):
            self._free[kind] += old - new
        record.held = held

    def check(self, decision: Decision, policy: str) -> None:
        """Refuse a decision that cannot be, by the policy's name."""
        record, held = decision.record, decision.held
        job = record.job
        if self._records.get(job.name) is not record:
            raise PolicyError(f"policy {policy!r} gave devices to {job.name}, which is not in the cluster (any more)")
        said = f"policy {policy!r} gave {job.name} {self.describe(held)}"
        if len(held) != len(self.kinds) or min(held) < 0:
            raise PolicyError(f"{said}: give a count of 0 or more for each of {', '.join(self.kinds)}")
        for kind, new in enumerate(held):
            added = new - record.held[kind]
            if added > 0 and added > self._free[kind]:
                raise PolicyError(
                    f"{said}, which is {added} {self.kinds[kind]} more than it holds, but {max(0, self._free[kind])} "
                    f"are free: take them from another job first"
                )
        self._check_job(record, held, said)

    def _check_job(self, record: JobRecord, held: Counts, said: str) -> None:
        job, total = record.job, sum(held)
        used = [self.kinds[kind] for kind, count in enumerate(held) if count]
        unknown = [kind for kind in used if kind not in job.model.capability_by_kind]
        if unknown:
            raise PolicyError(f"{said}, but the job has no capability on {', '.join(unknown)}")
        if len(used) > 1 and not job.model.can_mix_kinds:
            raise PolicyError(f"{said}, but the job may not mix kinds (it is not eligible for D2): choose one kind")
        if record.home is not None and used not in ([], [self.kinds[record.home]]):
            raise PolicyError(f"{said}, but the job started on {self.kinds[record.home]} and may not change its kind")
        if total > job.max_devices:
            raise PolicyError(f"{said}, but the job allows at most {job.max_devices}")
        if record.is_running and total < min(job.min_devices, record.num_held):
            raise PolicyError(f"{said}, but {job.min_devices} are guaranteed to it")

    def describe(self, held: Counts) -> str:
        given = [f"{count} {kind}" for kind, count in zip(self.kinds, held, strict=False) if count]
        return " + ".join(given) or ("nothing" if len(held) == len(self.kinds) else str(held))
