"""``rng="ddp"``: each EST has the very ``DataLoader`` that a DDP rank would have. Runs in the worker.

It draws from the EST's own random stream as there, and its data workers have the random streams of PyTorch's. Where the
job may move, the state of a data worker's generators comes with every mini-batch: what is kept belongs to what training
has consumed, however far the data worker is ahead. Another worker goes on from there: the numbers of the mini-batches
decide which data worker loads which, so a few empty ones come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from easyscale.core.errors import UsageError
from easyscale.train.context.rng import RngPolicy, RngState, capture, restore
from easyscale.train.data.pool import Init
from easyscale.train.data.position import Progress
from easyscale.train.data.rebuild import Batches, end_workers, rebuild
from easyscale.train.data.streams import Course

if TYPE_CHECKING:
    from easyscale.train.data.loader import ElasticLoader

_CPU = torch.device("cpu")
_EMPTY = "empty"


class RankStreams:
    """One stream for each local EST.

    Args:
        rng: switches to an EST's random stream.
        saved: what ``state`` gave, to go on from there.
        is_running: whether the epoch had begun when it did.
    """

    draws_from_est = True

    def __init__(
        self,
        loader: ElasticLoader,
        course: Course,
        rng: RngPolicy,
        saved: dict[str, Any] | None,
        *,
        is_running: bool,
    ) -> None:
        self.plan = loader.plan(course.epoch)
        self.progress = Progress(course.ranks, course.start)
        self.length = len(self.plan)
        self._kept: dict[tuple[int, int], Any] = {}
        self._rng = rng
        by_rank = (saved or {}).get("ranks", {})
        for rank, state in by_rank.items():
            if rank in course.ranks:
                rng.put(rank, state["est"])
        rng.begin_pass()
        self._ranks: dict[int, RankLoader] = {}
        for rank in course.ranks:
            batches = [self.plan.batch(rank, number) for number in range(len(self.plan))]
            rng.enter(rank, 0, 0)
            self._ranks[rank] = loader.supply.of_rank(rank)
            kept = by_rank[rank]["loader"] if rank in by_rank else None
            self._ranks[rank].begin(batches, course.start, kept, is_running=is_running)
            rng.leave(rank)
        rng.end_pass(0, 0)

    def upcoming(self, first: int, most: int) -> range:
        # kept for another pass over the step: fetching again would draw from the EST's stream again
        self._kept.clear()
        return range(first, min(first + most, len(self.plan)))

    def go_on_within(self, numbers: range) -> None:
        return

    def fetch(self, virtual_rank: int, number: int) -> Any:
        self._kept[virtual_rank, number] = self._ranks[virtual_rank].take()
        self.progress.note(virtual_rank, number)
        return self._kept[virtual_rank, number]

    def refetch(self, virtual_rank: int, number: int) -> Any:
        if (virtual_rank, number) not in self._kept:
            raise UsageError(
                'with rng="ddp" a mini-batch is kept by the worker that loaded it, and that one was lost between two '
                'passes over a step: resume from a checkpoint, or use rng="stepwise"'
            )
        return self._kept[virtual_rank, number]

    def state(self, *, is_over: bool) -> dict[str, Any]:
        # when the loop is over, the ESTs' random streams and data workers that live on begin the next epoch like this
        has_left_early = is_over and self.progress.number < self.length
        return {
            "ranks": {
                rank: {"est": self._rng.state_of(rank), "loader": loader.state(has_left_early=has_left_early)}
                for rank, loader in self._ranks.items()
            }
        }

    def close(self) -> None:
        for loader in self._ranks.values():
            loader.end_epoch()
        self._kept.clear()


class RankLoader:
    """The loader of one DDP rank, made once, so that persistent data workers go on from epoch to epoch as there."""

    def __init__(self, base: DataLoader[Any], *, is_batched: bool, records: bool) -> None:
        self._base = base
        self._is_batched = is_batched
        self._records = records and base.num_workers > 0
        self._is_lasting = base.num_workers > 0 and bool(base.persistent_workers)
        self._generator = generator_of_rank(base)
        self._source = Batches()
        self._loader: DataLoader[Any] | None = None
        self._batches: Iterator[Any] | None = None
        self._opened: tuple[RngState, torch.Tensor | None] | None = None
        self._states: dict[int, RngState] = {}

    def begin(self, batches: list[Any], start: int, saved: dict[str, Any] | None, *, is_running: bool) -> None:
        """Begin an epoch, or go on in the middle of one; called inside the EST's random stream.

        Args:
            saved: what ``state`` gave elsewhere.
            is_running: whether the epoch had begun there.
        """
        empty = start % max(1, self._base.num_workers)
        listed = batches if self._is_batched else [batch[0] for batch in batches]
        self._source.batches = [*([_EMPTY] * empty), *listed[start:]]
        if saved is not None:
            self._go_on(saved, is_running=is_running)
        elif start:
            raise UsageError(
                "the state of an EST's random stream and data workers was not kept, so the loader cannot go on in the "
                'middle of an epoch with rng="ddp"'
            )
        else:
            self._open()
        for _ in range(empty):
            self._next()

    def _open(self) -> None:
        if self._loader is None or not self._is_lasting:
            self._opened = (capture(_CPU), None if self._generator is None else self._generator.get_state())
            self._states = {}
            self._loader = self._make({})
        self._batches = iter(self._loader)

    def _go_on(self, saved: dict[str, Any], *, is_running: bool) -> None:
        """Data workers as others were: given the same seed, then set to their state where it is known."""
        self._loader = None
        if not is_running and not self._is_lasting:
            self._set_generator(saved["generator"])
            self._open()
            return
        opened, generator = self._opened = saved["opened"]
        self._states = dict(saved["workers"])
        self._set_generator(generator)
        self._loader = self._make(self._states)
        now = capture(_CPU)
        restore(opened, _CPU)
        try:
            self._batches = iter(self._loader)  # draws the seed that those data workers were given
        finally:
            restore(now, _CPU)
        self._set_generator(saved["generator"])

    def _set_generator(self, state: torch.Tensor | None) -> None:
        if self._generator is not None and state is not None:
            self._generator.set_state(state)

    def _make(self, states: dict[int, RngState]) -> DataLoader[Any]:
        base, generator = self._base, self._generator
        if not self._records:
            return rebuild(base, base.dataset, self._source, generator=generator, is_batched=self._is_batched)
        return rebuild(
            base,
            _Loaded(base.dataset, base.collate_fn),
            self._source,
            collate=_as_loaded,
            generator=generator,
            is_batched=self._is_batched,
            worker_init_fn=_Start(base.worker_init_fn, dict(states)),
        )

    def take(self) -> Any:
        """The next mini-batch."""
        if not self._records:
            return self._next()
        batch, worker, state = self._next()
        self._states[worker] = state
        return batch

    def _next(self) -> Any:
        if self._batches is None:
            raise UsageError("the loader's iteration was ended: iterate over the loader again")
        return next(self._batches)

    def state(self, *, has_left_early: bool) -> dict[str, Any]:
        """For ``begin``, elsewhere.

        Args:
            has_left_early: whether the loop was left before the epoch's end, with data workers ahead of it.
        """
        if self._base.num_workers and not self._records:
            raise UsageError(
                'with rng="ddp" the state of data workers is kept only in a job that may move or checkpoint, and this '
                "one was started as one that may not"
            )
        if self._is_lasting and has_left_early:
            raise UsageError(
                'with rng="ddp" and persistent_workers=True the state of data workers is not known after a break out '
                "of the loop, since they are ahead of it: let the loop run to its end, or use persistent_workers=False"
            )
        return {
            "opened": self._opened,
            "generator": None if self._generator is None else self._generator.get_state(),
            "workers": dict(self._states),
        }

    def end_epoch(self) -> None:
        """The script has left the loop."""
        if not self._is_lasting:
            end_workers(self._batches)
        self._batches = None

    def end(self) -> None:
        """End the data workers."""
        end_workers(getattr(self._loader, "_iterator", None) if self._batches is None else self._batches)
        self._batches = self._loader = None


def generator_of_rank(base: DataLoader[Any]) -> torch.Generator | None:
    """A copy of the loader's generator, which every DDP rank has one of."""
    if base.generator is None:
        return None
    generator = torch.Generator()
    generator.set_state(base.generator.get_state())
    return generator


class _Loaded(Dataset[Any]):
    """The user's dataset with its ``collate_fn``, giving mini-batches with the data worker that made them and the
    state of its generators.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self._collate = collate

    def __getitems__(self, indices: Any) -> Any:
        if indices == _EMPTY:
            return None
        whole = getattr(self.dataset, "__getitems__", None)
        return self._tell(whole(indices) if whole else [self.dataset[index] for index in indices])

    def __getitem__(self, index: Any) -> Any:
        return None if isinstance(index, str) and index == _EMPTY else self._tell(self.dataset[index])

    def _tell(self, samples: Any) -> Any:
        batch = self._collate(samples)
        info = get_worker_info()
        assert info is not None
        return batch, info.id, capture(_CPU)


def _as_loaded(batch: Any) -> Any:
    return batch


class _Start:
    """The user's ``worker_init_fn``, and then the state that another data worker was in."""

    def __init__(self, users: Callable[[int], None] | None, states: dict[int, RngState]) -> None:
        self._init = Init(users)
        self._states = states

    def __call__(self, worker: int) -> None:
        self._init(worker)
        if worker in self._states:
            restore(self._states[worker], _CPU)
