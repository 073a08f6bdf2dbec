"""What devices are worth, as orders over jobs that the books keep for the EasyScale policy. Pure.

Runs in the cluster scheduler and the simulator. Promise: worth depends on the job and what it holds, so it is
computed when that changes and not when it is asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import inf

from easyscale.core.errors import RefusedError
from easyscale.schedule import offers
from easyscale.schedule.books import Entry, Index
from easyscale.schedule.cluster import Counts, JobRecord
from easyscale.schedule.model import JobModel
from easyscale.schedule.offers import Offer

Worth = tuple[float, ...]
"""Priority, then worth per device, then what decides ties; a growth's first two are negative, so that best comes
first.
"""

_DIGITS = 12
"""Worths that differ less are equal, so that rounding does not decide."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What an EasyScale policy does.

    Attributes:
        preferred_only: homogeneous: a job runs on its preferred kind alone.
        shortest_first: worth is divided by the time that the job still needs, which must be known.
        kind_tolerance: a job that may not mix kinds starts on one on which it can become this many times slower than on
            its best one, no more.
        growth: a job's devices grow at most by this factor in one decision.
        threshold: an exchange needs a worth this many times as high.
        cool_down_s: a job whose devices changed takes part in no exchange for so long.
        max_exchanges: so many in one round, the rest in the next.
        aging_s: a waiting job gains one priority level in this time.
        patience_s: a job that has waited this long is passed by no other.
    """

    preferred_only: bool = False
    shortest_first: bool = False
    kind_tolerance: float = 1.5
    growth: float = 2.0
    threshold: float = 1.5
    cool_down_s: float = 30.0
    max_exchanges: int = 8
    aging_s: float = 3600.0
    patience_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.growth < 1 or self.threshold < 1:
            raise RefusedError(
                f"growth is {self.growth} and threshold {self.threshold}: both must be 1 or more (2 doubles at most; "
                f"an exchange at less than 1 would go on for ever)"
            )


class Market:
    """The orders that one policy needs, for a cluster of these kinds."""

    def __init__(self, rules: Rules, kinds: tuple[str, ...]) -> None:
        self.rules = rules
        self.kinds = kinds
        self._model_by_job: dict[tuple[JobModel, str], JobModel] = {}
        self._starts: dict[tuple[JobModel, int], tuple[Counts, ...]] = {}
        self.waiting = Index("waiting, by claim", self._waiting)
        self.growing = Index("growths, best first", self._growing)
        self.giving = Index("devices to give back, least loss first", self._giving)
        self.preemptable = Index("jobs without a guarantee, lowest priority and latest first", self._preemptable)

    def model(self, record: JobRecord) -> JobModel:
        """The job as this policy may run it."""
        job = record.job
        if not self.rules.preferred_only or len(job.model.capability_by_kind) == 1:
            return job.model
        key = (job.model, job.preferred)
        if key not in self._model_by_job:
            self._model_by_job[key] = job.model.only(job.preferred)
        return self._model_by_job[key]

    def step_s(self, record: JobRecord, held: Counts) -> float:
        return offers.step_s(self.kinds, self.model(record), held)

    def fastest_kinds(self, record: JobRecord) -> list[int]:
        return [self.kinds.index(kind.name) for kind in self.model(record).kinds if kind.name in self.kinds]

    # -- waiting jobs ------------------------------------------------------------------------------------------------

    def starts(self, record: JobRecord) -> tuple[Counts, ...]:
        """The fewest devices of each single kind that hold the job and its guaranteed minimum."""
        key = (self.model(record), max(1, record.job.min_devices))
        if key not in self._starts:
            self._starts[key] = tuple(self._single_starts(*key))
        home = record.home
        return self._starts[key] if home is None else tuple(start for start in self._starts[key] if start[home])

    def promising(self, record: JobRecord, capacity: Counts) -> list[Counts]:
        """Starts to choose from, fastest first.

        A job that may not mix kinds stays where it starts, so a kind on which it could never become nearly as fast as
        on its best one is not worth starting on, though it is free now.
        """
        starts = sorted(self.starts(record), key=lambda start: self.step_s(record, start))
        starts = [start for start in starts if _fits(start, capacity)]
        if self.model(record).can_mix_kinds or len(starts) < 2:
            return starts
        best_s = [self._best_s(record, start, capacity) for start in starts]
        limit_s = self.rules.kind_tolerance * min(best_s)
        return [start for start, seconds in zip(starts, best_s, strict=True) if seconds <= limit_s]

    def _best_s(self, record: JobRecord, start: Counts, capacity: Counts) -> float:
        """A step's time on all devices of the kind that the job can use."""
        most = (
            min(record.job.max_devices, there) if count else 0 for count, there in zip(start, capacity, strict=True)
        )
        return self.step_s(record, tuple(most))

    def could_ever_run(self, record: JobRecord, capacity: Counts) -> bool:
        if any(_fits(start, capacity) for start in self.starts(record)):
            return True
        usable = sum(capacity[kind] for kind in self.fastest_kinds(record))
        return self.model(record).can_mix_kinds and record.job.min_devices <= usable

    def _single_starts(self, model: JobModel, minimum: int) -> Iterator[Counts]:
        for kind in model.kinds:
            if kind.name not in self.kinds:
                continue
            need = max(minimum, -(-model.num_ests // kind.limit))
            for count in range(need, model.num_ests + 1):
                held = tuple(count if name == kind.name else 0 for name in self.kinds)
                if offers.step_s(self.kinds, model, held) < inf:
                    yield held
                    break

    def _waiting(self, record: JobRecord) -> Iterator[Entry]:
        """Jobs with equal starts fit or do not fit together, so it is enough to look at the first of them."""
        if not record.is_running:
            yield (self.starts(record), self._alike(record), record.job.priority), (self._claim(record),)

    def _alike(self, record: JobRecord) -> Hashable:
        """What else decides whether a waiting job fits."""
        model = self.model(record)
        return record.job.min_devices > 1 if model.can_mix_kinds else (model, record.job.max_devices)

    def _claim(self, record: JobRecord) -> float:
        """Who waits first: the earlier, by as much as a priority is worth; it does not change while waiting."""
        claim = record.job.submit_s - record.job.priority * self.rules.aging_s
        return claim + record.remaining_s if self.rules.shortest_first and record.remaining_s < inf else claim

    # -- running jobs ------------------------------------------------------------------------------------------------

    def growths(self, record: JobRecord) -> tuple[Offer, ...]:
        limits = (record.job.max_devices, self.rules.growth)
        return offers.growths(self.kinds, self.model(record), record.held, *limits)

    def give_backs(self, record: JobRecord) -> tuple[Offer, ...]:
        return offers.give_backs(self.kinds, self.model(record), record.held, record.job.min_devices)

    def growth_of(self, record: JobRecord, kind: int, count: int) -> Offer:
        return next(offer for offer in self.growths(record) if (offer.kind, offer.count) == (kind, count))

    def give_back_of(self, record: JobRecord, kind: int, count: int) -> Offer:
        return next(offer for offer in self.give_backs(record) if (offer.kind, offer.count) == (kind, count))

    @staticmethod
    def kind_and_count(bucket: Hashable) -> tuple[int, int]:
        assert isinstance(bucket, tuple)
        return bucket

    def _weight(self, record: JobRecord) -> float:
        """What a job's speed-up counts."""
        if not self.rules.shortest_first or record.finish_s == inf:
            return 1.0
        return 1.0 / max(1.0, record.finish_s - record.changed_s)

    def _growing(self, record: JobRecord) -> Iterator[Entry]:
        if record.is_running:
            weight = self._weight(record)
            for offer in self.growths(record):
                worth = round(offer.per_device * weight, _DIGITS)
                yield (offer.kind, offer.count), (-record.job.priority, -worth, -offer.count)

    def _giving(self, record: JobRecord) -> Iterator[Entry]:
        if record.is_running:
            weight = self._weight(record)
            for offer in self.give_backs(record):
                worth = round(self._loss(offer) * weight, _DIGITS)
                yield offer.kind, (record.job.priority, worth, -record.order, offer.count)

    def _loss(self, offer: Offer) -> float:
        """Relative to what stays, as a growth is; by time still needed, relative to what was."""
        if not self.rules.shortest_first:
            return offer.per_device
        gain = offer.per_device * offer.count
        return gain / (1 + gain) / offer.count

    def _preemptable(self, record: JobRecord) -> Iterator[Entry]:
        if record.is_running and not record.job.min_devices:
            for kind, count in enumerate(record.held):
                if count:
                    yield kind, (record.job.priority, -record.order)


def _fits(counts: Counts, there: Counts) -> bool:
    return all(count <= room for count, room in zip(counts, there, strict=True) if count)
