"""Streams over an iterable dataset: dealt out to ESTs, ended for all of them at the same step. Runs in the worker."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from easyscale.core.errors import DataError, RefusedError, UsageError
from easyscale.train.context.generators import generators
from easyscale.train.context.rng import RngPolicy, capture, restore
from easyscale.train.data.ahead import Agree, Ahead
from easyscale.train.data.pool import Init
from easyscale.train.data.position import Progress
from easyscale.train.data.pulling import Pull, Pulled
from easyscale.train.data.rebuild import end_workers, rebuild
from easyscale.train.data.seeding import CPU
from easyscale.train.data.share import Share, how_to_save
from easyscale.train.data.streams import Course

if TYPE_CHECKING:
    from easyscale.train.data.loader import ElasticLoader


class IterableStream:
    """``rng="stepwise"``: the pool of this worker reads the streams of all its ESTs, each in one data worker."""

    draws_from_est = False

    def __init__(
        self, loader: ElasticLoader, course: Course, agree: Agree, saved: dict[str, Any] | None, use: str = "data"
    ) -> None:
        self._loader = loader
        self._course = course
        self._use = use
        self._states = _local(saved, course.ranks)
        self._states_read = dict(self._states)  # of what the pool has given, which may be ahead of what was handed out
        self._num_read = 0
        self.progress = Progress(course.ranks, course.start)
        self.length = loader.order.num_batches()
        self._check(course)
        self._ahead = Ahead(course.ranks, self._pull, agree)
        self._pool = loader.supply.take_pool(use)
        self._pool.begin(self._keys(), self._keys_again)

    def _check(self, course: Course) -> None:
        if not course.start:
            return
        for rank in course.ranks:
            version = (self._states.get(rank) or {}).get("version")
            if version != course.start:
                raise RefusedError(
                    f"the loader is to go on at mini-batch {course.start}, but the state kept for virtual rank {rank} "
                    f"is {'missing' if version is None else f'that after mini-batch {version}'}: save the loader's "
                    "state_dict() of every worker, all at the same step"
                )

    def _keys(self) -> Iterator[list[Pull | None]]:
        """Every EST in turn from the one that comes next, for ever.

        Empty ones between, and before, so that each EST always comes to the same data worker.
        """
        ranks, workers = self._course.ranks, max(1, self._loader.base.num_workers)
        first = self._num_read
        opened: set[int] = set()
        nothing: list[Pull | None] = [None]
        yield from itertools.repeat(nothing, first % len(ranks) % workers)
        for turn in itertools.count(first):
            round_, place = divmod(turn, len(ranks))
            owner = place % workers
            opens = None
            if owner not in opened:
                opened.add(owner)
                opens = pickle.dumps({rank: self._bytes_read(rank) for rank in ranks[owner::workers]})
            yield [self._key(self._course.start + round_, ranks[place], owner, opens)]
            if place == len(ranks) - 1:
                yield from itertools.repeat(nothing, -len(ranks) % workers)

    def _key(self, number: int, rank: int, owner: int, opens: bytes | None) -> Pull:
        loader, is_told = self._loader, self._use == "data" and self._loader.epochs.has_chosen
        return Pull(self._use, loader.number, self._course.epoch, number, rank, owner, opens, is_told)

    def _bytes_read(self, rank: int) -> bytes | None:
        state = self._states_read.get(rank)
        return state if state is None or isinstance(state, bytes) else pickle.dumps(state)

    def _keys_again(self) -> Iterator[list[Pull | None]]:
        """For new data workers, which go on after the mini-batches that came from those before."""
        if any(state is None for state in self._states_read.values()):
            dataset = self._loader.base.dataset
            raise DataError(
                f"a data worker has ended, and the iterable dataset {type(dataset).__name__} cannot save its position, "
                f"so no other one can go on: {how_to_save(dataset)}, or use num_workers=0"
            )
        return self._keys()

    def _pull(self, virtual_rank: int, number: int) -> Pulled:
        pulled: Pulled | None = None
        while pulled is None:  # an empty one
            pulled = self._pool.take()
        self._num_read += 1
        if not pulled.is_over:
            self._states_read[virtual_rank] = pulled.state
        return pulled

    def upcoming(self, first: int, most: int) -> range:
        return self._ahead.load(first, most)

    def go_on_within(self, numbers: range) -> None:
        self._ahead.load_again(numbers, self._course.per_turn)

    def fetch(self, virtual_rank: int, number: int) -> Any:
        pulled = self._ahead.get(virtual_rank, number)
        self._states[virtual_rank] = pulled.state
        self.progress.note(virtual_rank, number)
        return pulled.batch

    def refetch(self, virtual_rank: int, number: int) -> Any:
        return self._ahead.get(virtual_rank, number).batch

    def rest(self) -> Iterator[tuple[int, Any]]:
        """Every mini-batch that is left, with its virtual rank, until all local streams are over."""
        number, is_over = self._course.start, False
        while not is_over:
            pulled = [(rank, self._pull(rank, number)) for rank in self._course.ranks]
            yield from ((rank, one.batch) for rank, one in pulled if not one.is_over)
            is_over = all(one.is_over for _, one in pulled)
            number += 1

    def state(self, *, is_over: bool) -> dict[str, Any]:
        return {} if is_over else kept(self._loader, self._states)

    def close(self) -> None:
        self._loader.supply.give_back(self._use, self._pool)


def _local(saved: dict[str, Any] | None, ranks: tuple[int, ...]) -> dict[int, Any]:
    """What is kept for local ESTs: others' streams go on elsewhere."""
    return {rank: state for rank, state in (saved or {}).get("ranks", {}).items() if rank in ranks}


def kept(loader: ElasticLoader, states: dict[int, Any]) -> dict[str, Any]:
    """The states of local ESTs.

    Raises:
        UsageError: the dataset does not say where it is.
    """
    if any(state is None for state in states.values()):
        raise UsageError(
            f"the iterable dataset {type(loader.base.dataset).__name__} cannot save its position, which was asked for "
            f"in the middle of an epoch: {how_to_save(loader.base.dataset)}"
        )
    return {"ranks": {rank: pickle.loads(s) if isinstance(s, bytes) else s for rank, s in states.items()}}


class RankIterables:
    """``rng="ddp"``: the ``DataLoader`` of a DDP rank over the EST's share, read in the EST's random stream."""

    draws_from_est = False  # it is read ahead, and switches to the EST's stream for that

    def __init__(
        self,
        loader: ElasticLoader,
        course: Course,
        agree: Agree,
        saved: dict[str, Any] | None,
        rng: RngPolicy,
        *,
        is_running: bool,
    ) -> None:
        self._loader = loader
        self._rng = rng
        by_rank = _local(saved, course.ranks)
        for rank, state in by_rank.items():
            rng.put(rank, state["est"])
        self._states: dict[int, Any] = by_rank if course.start else {}
        self.progress = Progress(course.ranks, course.start)
        self.length = loader.order.num_batches()
        self._shares: dict[int, Share] = {}
        self._batches: dict[int, Iterator[Any]] = {}
        self._ahead = Ahead(course.ranks, self._read, agree)
        self._per_turn = course.per_turn
        self._before: tuple[int, dict[int, Any]] = (-1, {})
        base, num_ests = loader.base, loader.order.num_ests
        for rank in course.ranks:
            epoch = course.epoch if loader.epochs.has_chosen else None
            self._shares[rank] = Share(base.dataset, rank, num_ests, epoch, self._states.get(rank))
            self._within(rank, functools.partial(self._open, rank, is_running=is_running))

    def _open(self, rank: int, *, is_running: bool) -> None:
        generator = self._loader.supply.generator_of(rank)
        now = capture(CPU)
        base, init = self._loader.base, Init(self._loader.base.worker_init_fn)
        self._batches[rank] = iter(rebuild(base, self._shares[rank], None, generator=generator, worker_init_fn=init))
        if is_running:  # what a DataLoader draws for every epoch was drawn when this one began
            restore(now, CPU)

    def _within(self, rank: int, call: Callable[[], Any]) -> Any:
        """``call`` in the random stream of an EST."""
        rng = self._rng
        rng.begin_pass()
        rng.enter(rank, 0, 0)
        try:
            return call()
        finally:
            rng.leave(rank)
            rng.end_pass(0, 0)

    def _read(self, rank: int, number: int) -> Pulled:
        def read() -> Pulled:
            marks = [generator.mark() for generator in generators()]
            batch = next(self._batches[rank], None)
            is_ahead = number > self._before[0]
            if is_ahead and marks != [generator.mark() for generator in generators()]:
                raise RefusedError(
                    f"the iterable dataset {type(self._loader.base.dataset).__name__} draws from the EST's random "
                    'stream (rng="ddp") for every mini-batch, but all of a step are read before the first one is '
                    'trained on: use accumulate=1, data workers, or rng="stepwise"'
                )
            if batch is None and not self._loader.base.num_workers:
                self._shares[rank].warn_of_changes()
            state = None if self._loader.base.num_workers else self._shares[rank].state()
            return Pulled(batch, None if state is None else {"version": number + 1, **state}, batch is None)

        pulled: Pulled = self._within(rank, read)
        return pulled

    def upcoming(self, first: int, most: int) -> range:
        self._note_before(first)
        return self._ahead.load(first, most)

    def go_on_within(self, numbers: range) -> None:
        self._note_before(numbers.start)
        self._ahead.load_again(numbers, self._per_turn)

    def _note_before(self, first: int) -> None:
        """The ESTs' random streams before the step's mini-batches are read."""
        self._before = (first, {rank: self._rng.state_of(rank) for rank in self._shares})

    def fetch(self, virtual_rank: int, number: int) -> Any:
        pulled = self._ahead.get(virtual_rank, number)
        self._states[virtual_rank] = pulled.state
        self.progress.note(virtual_rank, number)
        return pulled.batch

    def refetch(self, virtual_rank: int, number: int) -> Any:
        return self._ahead.get(virtual_rank, number).batch

    def state(self, *, is_over: bool) -> dict[str, Any]:
        # what was read ahead and not handed out does not count
        first, before = self._before
        is_ahead = not is_over and first == self.progress.number
        ests = {rank: {"est": before[rank] if is_ahead else self._rng.state_of(rank)} for rank in self._shares}
        if is_over:
            return {"ranks": ests}
        streams = kept(self._loader, self._states)["ranks"]
        return {"ranks": {rank: {**streams.get(rank, {}), **est} for rank, est in ests.items()}}

    def close(self) -> None:
        for batches in self._batches.values():
            end_workers(batches)
        self._batches.clear()


def evaluation_pulls(loader: ElasticLoader, epoch: int, ranks: tuple[int, ...]) -> Iterator[tuple[int, Any]]:
    """All mini-batches of the local ESTs' shares, with the virtual rank they belong to."""
    stream = IterableStream(loader, Course(epoch, ranks), lambda count: count, None, use="eval")
    try:
        yield from stream.rest()
    finally:
        stream.close()
