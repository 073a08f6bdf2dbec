"""Mini-batches of this worker's ESTs in the order of their turns. Runs in the worker.

With ``rng="stepwise"`` one pool of data workers serves all local ESTs, and a mini-batch is a function of its key:
neither the number of data workers nor the placement shows in the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from easyscale.train.data.plan import EpochPlan
from easyscale.train.data.position import Progress
from easyscale.train.data.seeding import Place

if TYPE_CHECKING:
    from easyscale.train.data.loader import ElasticLoader


@dataclass(frozen=True, slots=True)
class Course:
    """What a stream gives: an epoch's mini-batches of some virtual ranks, from a step on.

    Attributes:
        ranks: the local ESTs in the order of their turns.
        start: number of the first mini-batch of each, 0 at an epoch's begin.
        per_turn: mini-batches in one turn (gradient accumulation).
    """

    epoch: int
    ranks: tuple[int, ...]
    start: int = 0
    per_turn: int = 1

    def turns(self, batches: int) -> Iterator[tuple[int, int]]:
        """Virtual rank and number of every mini-batch, in order."""
        for first in range(self.start, batches, self.per_turn):
            for rank in self.ranks:
                for number in range(first, min(first + self.per_turn, batches)):
                    yield rank, number


class Stream(Protocol):
    """Mini-batches of this worker's ESTs, step by step."""

    @property
    def draws_from_est(self) -> bool:
        """Whether a mini-batch must be fetched inside the EST's own random stream."""

    progress: Progress

    @property
    def length(self) -> int | None:
        """Mini-batches of each EST in the epoch, if it is known."""

    def upcoming(self, first: int, most: int) -> range:
        """Numbers of the mini-batches of the next global step, ``most`` at most and none at the end.

        Asked once before each step; the same on every worker.
        """

    def go_on_within(self, numbers: range) -> None:
        """This stream begins in the middle of a step, to whose mini-batches another one had come (``upcoming``)."""

    def fetch(self, virtual_rank: int, number: int) -> Any:
        """Mini-batch ``number`` of ``virtual_rank``; asked for in the order of turns."""

    def refetch(self, virtual_rank: int, number: int) -> Any:
        """The same mini-batch again, for another pass over the step."""

    def state(self, *, is_over: bool) -> dict[str, Any]:
        """What another stream needs to go on after the mini-batches that were fetched, beside their number.

        Args:
            is_over: whether the loop over this one is over, so that the other one begins the next epoch.
        """

    def close(self) -> None:
        """The script has left the loop."""


class SharedStream:
    """``rng="stepwise"`` over a map-style dataset."""

    draws_from_est = False

    def __init__(self, loader: ElasticLoader, course: Course) -> None:
        self._loader = loader
        self._course = course
        self.plan = loader.plan(course.epoch)
        self.progress = Progress(course.ranks, course.start)
        self.length = len(self.plan)
        # what worker_init_fn did is there in data workers alone, so they cannot be loaded again here
        self._keeps = loader.base.num_workers > 0 and loader.base.worker_init_fn is not None
        self._kept: dict[tuple[int, int], Any] = {}
        self._pool = loader.supply.take_pool("data")
        if self._pool.ahead != course:
            self._pool.begin(self._keys())
        self._pool.ahead = None

    def _keys(self) -> Iterator[list[Any]]:
        """What the pool loads: this course, and then the next one if it is known."""
        course: Course | None = self._course
        while course is not None:
            plan = self.plan if course is self._course else self._loader.plan(course.epoch)
            for rank, number in course.turns(len(plan)):
                yield key(self._loader.number, plan, course.epoch, rank, number)
            following = self._next(course)
            self._pool.followers[course] = following
            course = following

    def _next(self, course: Course) -> Course | None:
        loader = self._loader
        is_foreseen = self._pool.is_lasting and loader.order.is_known and loader.epochs.is_followed(course.epoch)
        return replace(course, epoch=course.epoch + 1, start=0) if is_foreseen else None

    def upcoming(self, first: int, most: int) -> range:
        self._kept.clear()
        if first >= len(self.plan):
            self._pool.ahead = self._pool.followers.pop(self._course, None)
        return range(first, min(first + most, len(self.plan)))

    def go_on_within(self, numbers: range) -> None:
        return

    def fetch(self, virtual_rank: int, number: int) -> Any:
        batch = self._pool.take()
        if self._keeps:
            self._kept[virtual_rank, number] = batch
        self.progress.note(virtual_rank, number)
        return batch

    def refetch(self, virtual_rank: int, number: int) -> Any:
        if self._keeps:
            return self._kept[virtual_rank, number]
        wanted = key(self._loader.number, self.plan, self._course.epoch, virtual_rank, number)
        return self._loader.supply.load_here(wanted)

    def state(self, *, is_over: bool) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._loader.supply.give_back("data", self._pool)


def key(loader: int, plan: EpochPlan, epoch: int, virtual_rank: int, number: int) -> list[Any]:
    """What a data worker is sent: the place of a mini-batch in the job, and its samples."""
    place = Place("data", loader, epoch, number, virtual_rank, plan.first_place(virtual_rank, number), plan.num_ests)
    return [place, *plan.batch(virtual_rank, number)]


def evaluation_batches(
    loader: ElasticLoader, plan: EpochPlan, epoch: int, ranks: tuple[int, ...]
) -> Iterator[tuple[int, Any]]:
    """Mini-batches for evaluation with the virtual rank they belong to: each sample once over all workers."""
    turns = [(rank, number) for number in range(len(plan)) for rank in ranks if plan.unpadded_batch(rank, number)]
    pool = loader.supply.take_pool("eval")
    try:
        pool.begin(_evaluation_key(loader, plan, epoch, *turn) for turn in turns)
        for rank, _ in turns:
            yield rank, pool.take()
    finally:
        loader.supply.give_back("eval", pool)


def _evaluation_key(loader: ElasticLoader, plan: EpochPlan, epoch: int, virtual_rank: int, number: int) -> list[Any]:
    first = plan.first_place(virtual_rank, number)
    place = Place("eval", loader.number, epoch, number, virtual_rank, first, plan.num_ests)
    return [place, *plan.unpadded_batch(virtual_rank, number)]
