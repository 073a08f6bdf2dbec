"""The inter-job scheduler: elastic jobs share the cluster by what devices are worth to them. Pure.

Runs in the cluster scheduler and the simulator. Phases, each looking at the books as the one before left them:

1. return   devices were lost or are wanted back: those give way that lose least (``admission.returning``)
2. admit    a waiting job gets its minimum, from what is free or from whom it is worth least (``admission.admit``)
3. grow     free devices go to the highest speed-up per added device, ties to more devices
4. exchange a job to which devices are worth clearly more takes them from those to which they are worth less
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from easyscale.schedule.books import Books
from easyscale.schedule.cluster import Decision, JobRecord, Policy
from easyscale.schedule.policies import admission
from easyscale.schedule.policies.market import Market, Rules, Worth

__all__ = ["Rules", "easyscale"]

_LOOKED_AT, _WISHES = 4, 12
"""So many jobs of a bucket, and growths in all, are tried for an exchange: the price must not grow with the jobs."""


def easyscale(rules: Rules) -> Policy:
    """The policy with these rules."""
    market_by_kinds: dict[tuple[str, ...], Market] = {}

    def decide(books: Books) -> Iterator[Decision]:
        if books.kinds not in market_by_kinds:
            market_by_kinds[books.kinds] = Market(rules, books.kinds)
        market = market_by_kinds[books.kinds]
        yield from admission.returning(books, market)
        yield from admission.admit(books, market)
        yield from _grow(books, market)
        yield from _exchange(books, market)

    return decide


def _grow(books: Books, market: Market) -> Iterator[Decision]:
    while (best := min(_fitting(books, market), default=None, key=_rank)) is not None:
        yield Decision(best.record, market.growth_of(best.record, best.kind, best.devices).held)


class _Wish(NamedTuple):
    """A growth by some devices of a kind, as it stands in the books' order."""

    worth: Worth
    record: JobRecord
    kind: int
    devices: int


def _rank(wish: _Wish) -> tuple[Worth, int, int]:
    """A total order: worth, then who came first, then the cluster's order of kinds."""
    return wish.worth, wish.record.order, wish.kind


def _fitting(books: Books, market: Market) -> Iterator[_Wish]:
    """Of every kind and count that is free the best growth."""
    free = books.free
    for bucket in books.buckets(market.growing):
        kind, count = market.kind_and_count(bucket)
        if count <= free[kind]:
            head = books.first(market.growing, bucket)
            if head is not None:
                yield _Wish(*head, kind, count)


def _beyond(books: Books, market: Market) -> Iterator[_Wish]:
    """Of every kind and count that is not free the best growths, of jobs that have rested."""
    free = books.free
    for bucket in books.buckets(market.growing):
        kind, count = market.kind_and_count(bucket)
        if count > free[kind]:
            for worth, record in itertools.islice(books.ascending(market.growing, bucket), _LOOKED_AT):
                if books.now_s - record.changed_s >= market.rules.cool_down_s:
                    yield _Wish(worth, record, kind, count)


def _exchange(books: Books, market: Market) -> Iterator[Decision]:
    for _ in range(market.rules.max_exchanges):
        exchange = _best_exchange(books, market)
        if exchange is None:
            return
        yield from exchange
        yield from _grow(books, market)


def _best_exchange(books: Books, market: Market) -> list[Decision] | None:
    """The highest worth that is clearly above what the devices are worth where they are."""
    for wish in heapq.nsmallest(_WISHES, _beyond(books, market), key=_rank):
        missing = wish.devices - books.free[wish.kind]
        asked = _clearly_less(books, market, wish.worth, wish.record)
        given = admission.givers(books, market, wish.kind, missing, asked)
        if given:
            taken = [Decision(giver, offer.held) for giver, offer in given]
            return [*taken, Decision(wish.record, market.growth_of(wish.record, wish.kind, wish.devices).held)]
    return None


def _clearly_less(books: Books, market: Market, key: Worth, grower: JobRecord) -> admission.Ask:
    """Those who may give to ``grower``: of lower priority, or to whom devices are worth clearly less."""
    priority, worth = -key[0], -key[1]
    rules = market.rules

    def ask(theirs: Worth, record: JobRecord) -> admission.Answer:
        if theirs[0] > priority or (theirs[0] == priority and theirs[1] * rules.threshold >= worth):
            return admission.Answer.STOP
        is_resting = books.now_s - record.changed_s < rules.cool_down_s
        return admission.Answer.NO if record is grower or is_resting else admission.Answer.YES

    return ask
