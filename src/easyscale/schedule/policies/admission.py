"""Who gets in, and who gives way for it: the first two phases of the EasyScale policy. Pure.

Runs in the cluster scheduler and the simulator. Promise: a job that waits is passed for ``patience_s`` at most, so none
starves; a guaranteed minimum is never taken; a job gives way only to a higher priority, or to an equal one with what
goes beyond its own minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from math import inf

from easyscale.schedule.books import Books
from easyscale.schedule.cluster import Counts, Decision, JobRecord
from easyscale.schedule.offers import Offer
from easyscale.schedule.policies.market import Market, Worth


class Answer(Enum):
    """Whether a job gives devices. Jobs are asked by rising loss, so the first STOP answers for all behind it."""

    YES = "yes"
    NO = "no"
    STOP = "stop"


Ask = Callable[[Worth, JobRecord], Answer]

_MOST_NOS = 64
"""So many in a row end the search: what it costs must not grow with the number of jobs."""


def returning(books: Books, market: Market) -> Iterator[Decision]:
    """Bring ``free`` back to zero or above for every kind."""
    for kind in range(len(books.kinds)):
        missing = -books.free[kind]
        if missing <= 0:
            continue
        for record, offer in givers(books, market, kind, missing, _anybody):
            yield Decision(record, offer.held)
        for record in _preempted(books, market, kind, -books.free[kind], inf):
            yield Decision(record, (0,) * len(books.kinds))


def admit(books: Books, market: Market) -> Iterator[Decision]:
    """Give waiting jobs their minimum, by claim."""
    while (found := _next(books, market)) is not None:
        record, held, givings = found
        for giver, left in givings:
            yield Decision(giver, left)
        yield Decision(record, held)


_Admission = tuple[JobRecord, Counts, list[tuple[JobRecord, Counts]]]


def _next(books: Books, market: Market) -> _Admission | None:
    """The first by claim that gets in. A job that has lost its patience lets nobody pass."""
    heads = [head for bucket in books.buckets(market.waiting) if (head := books.first(market.waiting, bucket))]
    for _, record in sorted(heads, key=lambda head: (head[0], head[1].order)):
        held = _free_start(books, market, record)
        if held is not None:
            return record, held, []
        taken = _taken_start(books, market, record)
        if taken is not None:
            return taken
        if books.now_s - record.job.submit_s > market.rules.patience_s and market.could_ever_run(
            record, books.capacity
        ):
            return None
    return None


def _free_start(books: Books, market: Market, record: JobRecord) -> Counts | None:
    """The fastest start on free devices."""
    starts = [start for start in market.promising(record, books.capacity) if _fits(start, books.free)]
    if not starts and market.model(record).can_mix_kinds and record.job.min_devices > 1:
        starts = [start for start in [_mixed_start(books, market, record)] if start is not None]
    return min(starts, key=lambda start: market.step_s(record, start), default=None)


def _mixed_start(books: Books, market: Market, record: JobRecord) -> Counts | None:
    """The minimum from several kinds, fastest first."""
    left, held = record.job.min_devices, [0] * len(books.kinds)
    for kind in market.fastest_kinds(record):
        held[kind] = max(0, min(left, books.free[kind]))
        left -= held[kind]
    start = tuple(held)
    return start if left == 0 and market.step_s(record, start) < inf else None


def _taken_start(books: Books, market: Market, record: JobRecord) -> _Admission | None:
    """A start on one kind for which others give devices: what they can spare, else all that lower priorities have."""

    def is_not_higher(worth: Worth, giver: JobRecord) -> Answer:
        return Answer.YES if worth[0] <= record.job.priority else Answer.STOP

    for start in market.promising(record, books.capacity):
        kind = next(kind for kind, count in enumerate(start) if count)
        missing = start[kind] - books.free[kind]
        offers = givers(books, market, kind, missing, is_not_higher)
        if offers:
            return record, start, [(giver, offer.held) for giver, offer in offers]
    for start in market.promising(record, books.capacity):
        kind = next(kind for kind, count in enumerate(start) if count)
        victims = _preempted(books, market, kind, start[kind] - books.free[kind], record.job.priority)
        if victims:
            return record, start, [(victim, (0,) * len(books.kinds)) for victim in victims]
    return None


def givers(books: Books, market: Market, kind: int, missing: int, ask: Ask) -> list[tuple[JobRecord, Offer]]:
    """Who gives ``missing`` devices of a kind and goes on, least loss first; nobody if they are not enough."""
    chosen: dict[JobRecord, Offer] = {}
    noes = 0
    for key, record in books.ascending(market.giving, kind):
        answer = ask(key, record)
        noes = noes + 1 if answer is Answer.NO else 0
        if answer is Answer.STOP or noes > _MOST_NOS:
            break
        if answer is Answer.NO:
            continue
        offer = market.give_back_of(record, kind, int(key[-1]))
        before = chosen[record].count if record in chosen else 0
        if offer.count > before:
            chosen[record] = offer
            missing -= offer.count - before
        if missing <= 0:
            return sorted(chosen.items(), key=lambda each: each[0].order)
    return []


def _preempted(books: Books, market: Market, kind: int, missing: int, below: float) -> list[JobRecord]:
    """Jobs without a guarantee and of a priority lower than ``below`` that lose all; latest first. None if not
    enough.
    """
    victims = []
    for (priority, *_), record in books.ascending(market.preemptable, kind):
        if missing <= 0 or priority >= below:
            break
        victims.append(record)
        missing -= record.held[kind]
    return victims if missing <= 0 else []


def _anybody(worth: Worth, record: JobRecord) -> Answer:
    return Answer.YES


def _fits(counts: Counts, free: Counts) -> bool:
    return all(count <= room for count, room in zip(counts, free, strict=True) if count)
