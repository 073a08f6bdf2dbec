"""The inter-job scheduler: elastic jobs share the cluster by what devices are worth to them. Pure.

Runs in the cluster scheduler and the simulator. Phases, each looking at the books as the one before left them:

1. return   devices were lost or are wanted back: those give way that lose least (``admission.returning``)
2. admit    a waiting job gets its minimum, from what is free or from whom it is worth least (``admission.admit``)
3. grow     free devices go to the highest speed-up per added device, ties to more devices
4. exchange a job to which devices are worth clearly more takes them from those to which they are worth less
"""

from __future__ import annotations

from collections.abc import Iterator

from easyscale.schedule.books import Books
from easyscale.schedule.cluster import Decision, JobRecord, Policy
from easyscale.schedule.offers import Offer
from easyscale.schedule.policies import admission
from easyscale.schedule.policies.market import Market, Rules, Worth

__all__ = ["Rules", "easyscale"]


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
    while (best := min(_growths(books, market, fitting=True), default=None, key=_rank)) is not None:
        _, record, offer = best
        yield Decision(record, offer.held)


_Growth = tuple[Worth, JobRecord, Offer]


def _rank(growth: _Growth) -> tuple[Worth, int, int]:
    """A total order: worth, then who came first, then the cluster's order of kinds."""
    worth, record, offer = growth
    return worth, record.order, offer.kind


def _growths(books: Books, market: Market, fitting: bool) -> Iterator[_Growth]:
    """The best growth of every kind and count that fits into what is free, or that does not."""
    free = books.free
    for bucket in books.buckets(market.growing):
        kind, count = market.kind_and_count(bucket)
        if (count <= free[kind]) is not fitting:
            continue
        head = books.first(market.growing, bucket)
        if head is not None:
            key, record = head
            yield key, record, market.growth_of(record, kind, count)


def _exchange(books: Books, market: Market) -> Iterator[Decision]:
    for _ in range(market.rules.max_exchanges):
        exchange = _best_exchange(books, market)
        if exchange is None:
            return
        record, offer, victims = exchange
        for victim, given in victims:
            yield Decision(victim, given.held)
        yield Decision(record, offer.held)
        yield from _grow(books, market)


def _best_exchange(books: Books, market: Market) -> tuple[JobRecord, Offer, list[tuple[JobRecord, Offer]]] | None:
    """The highest worth that is clearly above what the devices are worth where they are."""
    wanted = sorted(_growths(books, market, fitting=False), key=_rank)
    for key, record, offer in wanted[: market.rules.max_exchanges]:
        if books.now_s - record.changed_s >= market.rules.cool_down_s:
            missing = offer.count - books.free[offer.kind]
            victims = admission.givers(books, market, offer.kind, missing, _clearly_less(books, market, key, record))
            if victims:
                return record, offer, victims
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
