"""Policies for jobs that take a fixed number of devices or wait: what elastic ones are compared with.

Runs in the cluster scheduler and the simulator. Promise: a job gets its gang of its preferred kind and keeps it to
the end; only ``shortest_remaining_first`` takes it away again.
"""

from __future__ import annotations

from collections.abc import Iterator

from easyscale.schedule.books import Books, Entry, Index
from easyscale.schedule.cluster import Counts, Decision, JobRecord


def _in_order(record: JobRecord) -> Iterator[Entry]:
    if not record.is_running:
        yield "waiting", (-record.job.priority,)


def _by_gang(record: JobRecord) -> Iterator[Entry]:
    if not record.is_running:
        yield (record.job.preferred, record.job.gang), (-record.job.priority, record.order)


def _by_remaining(record: JobRecord) -> Iterator[Entry]:
    if not record.is_running:
        yield (record.job.preferred, record.job.gang), (record.remaining_s,)


def _longest_running(record: JobRecord) -> Iterator[Entry]:
    if record.is_running and not record.job.min_devices:
        yield record.job.preferred, (-record.finish_s,)


_IN_ORDER = Index("waiting, first come", _in_order)
_BY_GANG = Index("waiting of one size, first come", _by_gang)
_BY_REMAINING = Index("waiting of one size, shortest first", _by_remaining)
_CLEARLY, _CLEARLY_S = 1.25, 10.0
_LONGEST = Index("running, longest first", _longest_running)


def one_at_a_time(books: Books) -> Iterator[Decision]:
    """The cluster runs one job at a time, as the baseline that was published as YARN-CS."""
    head = books.first(_IN_ORDER, "waiting")
    if head is not None and not books.num_running and _fits(books, head[1]):
        yield Decision(head[1], _gang(books, head[1]))


def fifo_gang(books: Books) -> Iterator[Decision]:
    """First come, first served; a job that does not fit holds up all behind it."""
    while (head := books.first(_IN_ORDER, "waiting")) is not None and _fits(books, head[1]):
        yield Decision(head[1], _gang(books, head[1]))


def fifo_backfill(books: Books) -> Iterator[Decision]:
    """First come, first served, but whoever fits may pass one that does not."""
    while (record := _best_fitting(books, _BY_GANG)) is not None:
        yield Decision(record, _gang(books, record))


def shortest_remaining_first(books: Books) -> Iterator[Decision]:
    """The jobs with the least work left run; one is put back, with its progress, when a clearly shorter one comes.

    "Clearly" because putting back has a price.
    """
    while True:
        while (record := _best_fitting(books, _BY_REMAINING)) is not None:
            yield Decision(record, _gang(books, record))
        passing = _first_passing(books)
        if passing is None:
            return
        record, victims = passing
        for victim in victims:
            yield Decision(victim, (0,) * len(books.kinds))
        yield Decision(record, _gang(books, record))


def _first_passing(books: Books) -> tuple[JobRecord, list[JobRecord]] | None:
    """The shortest waiting job for which enough longer ones run, and those."""
    for (remaining_s,), record in sorted(_heads(books, _BY_REMAINING), key=_rank):
        victims = _longer_ones(books, record, remaining_s)
        if victims:
            return record, victims
    return None


def _longer_ones(books: Books, record: JobRecord, remaining_s: float) -> list[JobRecord]:
    """Running jobs that give way to ``record``, longest first; none if they would not be enough."""
    missing = record.job.gang - books.free[books.kind_index(record.job.preferred)]
    victims = []
    for (negative_finish_s,), victim in books.ascending(_LONGEST, record.job.preferred):
        if -negative_finish_s - books.now_s < _CLEARLY * remaining_s + _CLEARLY_S:
            return []
        if victim.changed_s == books.now_s:
            continue
        victims.append(victim)
        missing -= victim.num_held
        if missing <= 0:
            return victims
    return []


def _best_fitting(books: Books, index: Index) -> JobRecord | None:
    fitting = [head for head in _heads(books, index) if _fits(books, head[1])]
    return min(fitting, key=_rank)[1] if fitting else None


_Head = tuple[tuple[float, ...], JobRecord]


def _rank(head: _Head) -> tuple[tuple[float, ...], int]:
    return head[0], head[1].order


def _heads(books: Books, index: Index) -> Iterator[_Head]:
    """The first of each bucket."""
    for bucket in books.buckets(index):
        head = books.first(index, bucket)
        if head is not None:
            yield head


def _fits(books: Books, record: JobRecord) -> bool:
    return record.job.gang <= books.free[books.kind_index(record.job.preferred)]


def _gang(books: Books, record: JobRecord) -> Counts:
    preferred = books.kind_index(record.job.preferred)
    return tuple(record.job.gang if kind == preferred else 0 for kind in range(len(books.kinds)))
