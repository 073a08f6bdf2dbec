"""What ``prepare`` returns for a ``DataLoader``: the user's loader, its order and its position. Runs in the worker."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from easyscale.core.errors import RefusedError, UsageError
from easyscale.core.job import JobSpec
from easyscale.train.context.rng import RngPolicy, capture, restore
from easyscale.train.data.iterable import Agree, IterableStream, RankIterables, evaluation_pulls
from easyscale.train.data.plan import EpochPlan, LoaderOrder
from easyscale.train.data.pool import Pool, Replacements
from easyscale.train.data.position import Position, load_sampler_state, sampler_state
from easyscale.train.data.pulling import PulledDataset
from easyscale.train.data.rank_streams import RankLoader, RankStreams, generator_of_rank
from easyscale.train.data.seeding import SeededDataset, as_loaded, seeder
from easyscale.train.data.streams import Course, SharedStream, Stream, evaluation_batches

_CPU = torch.device("cpu")


class LoaderHost(Protocol):
    """What a loader asks of the session that prepared it, which runs the loops."""

    @property
    def epoch_in_use(self) -> int | None:
        """The epoch of ``session.epochs``, or None where the script does not use it."""

    @property
    def num_epochs(self) -> int | None:
        """How many of them there are."""

    def iterate(self, loader: ElasticLoader) -> Iterator[Any]:
        """The drop-in form: mini-batches of the local ESTs, one after another."""


class ElasticLoader:
    """What ``prepare`` returns for a ``DataLoader``; its attributes are those of the loader it was made from.

    ``len`` is the number of global steps in an epoch, as the length of a DDP rank's loader.
    """

    def __init__(
        self,
        base: DataLoader[Any],
        order: LoaderOrder,
        number: int,
        spec: JobSpec,
        host: LoaderHost,
        dataset: SeededDataset | PulledDataset,
        replacements: int,
        *,
        may_move: bool,
    ) -> None:
        self.base = base
        self.order = order
        self.number = number
        self.seed = spec.seed
        self._spec = spec
        self._host = host
        self._replacements = Replacements(replacements)
        self._may_move = may_move
        self._own_epoch: int | None = None
        self._sampler_epoch = getattr(base.sampler, "epoch", None)
        self._iterations = 0
        self._resumed: Position | None = None
        self._running: Stream | None = None
        self._last: Stream | None = None
        self._running_epoch = 0
        self._sampler_before: dict[str, Any] | None = None
        self._dataset = dataset
        self._idle: dict[str, Pool] = {}
        self._busy: list[Pool] = []
        self._loader_by_rank: dict[int, RankLoader] = {}
        self._generator_by_rank: dict[int, torch.Generator | None] = {}
        self._plan: tuple[int, EpochPlan] | None = None

    def __len__(self) -> int:
        batches = self.order.num_batches()
        if batches is None:
            raise TypeError(f"the iterable dataset {type(self.base.dataset).__name__} has no len(), nor has its loader")
        return batches

    def __iter__(self) -> Iterator[Any]:
        return self._host.iterate(self)

    def __getattr__(self, name: str) -> Any:
        if name == "base":  # not set yet: unpickling or copying
            raise AttributeError(name)
        return getattr(self.base, name)

    @property
    def sampler(self) -> ElasticLoader:
        """Takes ``set_epoch``, as a ``DistributedSampler`` does."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of the next iterations, for scripts that do not use ``session.epochs``."""
        self._own_epoch = epoch

    # -- position ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position: what training has consumed, valid for any number of workers and data workers.

        Raises:
            UsageError: a global step is half-way.
        """
        if self._resumed is not None:
            return self._resumed.to_dict()
        running = self._running
        return Position(
            iterations=self._iterations,
            own_epoch=self._own_epoch,
            epoch=None if running is None else self._running_epoch,
            number=0 if running is None else running.progress.number,
            sampler=sampler_state(self.order.sampler) if running is None else self._sampler_before,
            stream={} if self._last is None else self._last.state(is_over=running is None),
            facts=self._facts(),
        ).to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on where ``state_dict`` was called, in the middle of its epoch or after it.

        Raises:
            RefusedError: the position is of another loader.
            UsageError: the loader is being iterated over.
        """
        if self._running is not None:
            raise UsageError(
                "load_state_dict was called while the loader is iterated over, where the position would change nothing "
                "of what is under way: load it before the loop"
            )
        self._resumed = Position.from_dict(state, self._facts())
        self._own_epoch = self._resumed.own_epoch

    def _facts(self) -> dict[str, Any]:
        order = self.order
        return {
            "num_ests": order.num_ests,
            "length": order.num_samples,
            "seed": order.seed,
            "batch_size": order.batch_size,
            "shuffle": order.is_shuffled,
            "drop_last": [order.drop_last, order.drop_uneven],
            "sampler": type(order.sampler).__name__,
            "rng": self._spec.rng,
            # otherwise it shows in no mini-batch
            "num_workers": self.base.num_workers if self._spec.rng == "ddp" else None,
        }

    # -- iterations --------------------------------------------------------------------------------------------

    def open(self, ranks: tuple[int, ...], per_turn: int, rng: RngPolicy | None, agree: Agree) -> Stream:
        """Begin an iteration, where the position says.

        Args:
            ranks: the local ESTs in the order of their turns.
            per_turn: mini-batches in one turn.
            rng: switches to the random stream of an EST, where ESTs carry theirs (``rng="ddp"``); else None.
            agree: the least of what all workers say.
        """
        position = None if self._resumed is None else self._take_up(self._resumed)
        epoch = self._next_epoch()
        self._sampler_before = sampler_state(self.order.sampler)
        self._running_epoch = epoch
        start = 0 if position is None else position.number
        stream = self._stream(Course(epoch, ranks, start, per_turn), rng, agree, position)
        if self._running is None:
            self._running = self._last = stream
        return stream

    def move(
        self,
        stream: Stream,
        ranks: tuple[int, ...],
        number: int,
        per_turn: int,
        rng: RngPolicy | None,
        agree: Agree,
        by_rank: dict[int, Any],
    ) -> Stream:
        """The iteration of ``stream`` for other ESTs, from mini-batch ``number`` on.

        Args:
            by_rank: what streams keep beside the number, by virtual rank.
        """
        running = self._running is stream
        epoch = self._running_epoch
        self.close_stream(stream)
        position = Position(self._iterations, None, epoch, number, None, {"ranks": by_rank}, {})
        moved = self._stream(Course(epoch, ranks, number, per_turn), rng, agree, position)
        if running:
            self._running = self._last = moved
        return moved

    def _stream(self, course: Course, rng: RngPolicy | None, agree: Agree, position: Position | None) -> Stream:
        saved = None if position is None else position.stream
        is_running = position is not None and position.epoch is not None
        if self.order.is_stream:
            if rng is None:
                return IterableStream(self, course, agree, saved)
            return RankIterables(self, course, agree, saved, rng, is_running=is_running)
        if rng is None:
            return SharedStream(self, course)
        return RankStreams(self, course, rng, saved, is_running=is_running)

    def evaluation(self, epoch: int, ranks: tuple[int, ...]) -> Iterator[tuple[int, Any]]:
        """Mini-batches for evaluation with the virtual rank they belong to: each sample once over all workers."""
        if self.order.is_stream:
            return evaluation_pulls(self, epoch, ranks)
        before = sampler_state(self.order.sampler)
        plan = self.plan(epoch)
        load_sampler_state(self.order.sampler, before)  # a training over this loader must not notice
        return evaluation_batches(self, plan, epoch, ranks)

    def _take_up(self, position: Position) -> Position:
        self._resumed = None
        load_sampler_state(self.order.sampler, position.sampler)
        self._iterations = position.iterations - (position.epoch is not None)
        if position.epoch is not None and self._host.epoch_in_use not in (None, position.epoch):
            raise RefusedError(
                f"the loader's position is in epoch {position.epoch}, but session.epochs is at epoch "
                f"{self._host.epoch_in_use}: load it in the epoch in which it was taken"
            )
        return position

    def close_stream(self, stream: Stream) -> None:
        """The script has left the loop over ``stream``."""
        stream.close()
        if self._running is stream:
            self._running = None

    def _next_epoch(self) -> int:
        """The epoch number of the iteration that starts now: the one set, else the session's, else a count."""
        count = self._iterations
        self._iterations += 1
        theirs = getattr(self.base.sampler, "epoch", None)
        if theirs != self._sampler_epoch:  # the script calls set_epoch of a sampler of its own
            self._own_epoch = self._sampler_epoch = theirs
        if self._own_epoch is not None:
            return self._own_epoch
        return count if self._host.epoch_in_use is None else self._host.epoch_in_use

    def is_followed(self, epoch: int) -> bool:
        """Whether the epoch after ``epoch`` will be asked for, as far as can be told."""
        return self._own_epoch is None and epoch + 1 < (self._host.num_epochs or 0)

    def plan(self, epoch: int) -> EpochPlan:
        """The mini-batches of ``epoch``; the process's generators are left as they were."""
        if self._plan is not None and self._plan[0] == epoch and self.order.is_known:
            return self._plan[1]
        before = capture(_CPU)
        try:
            plan = self.order.epoch(epoch, lambda e: seeder(self.seed)("sampler", self.number, e))
        finally:
            restore(before, _CPU)
        self._plan = (epoch, plan)
        return plan

    # -- data workers ------------------------------------------------------------------------------------------

    def take_pool(self, use: str) -> Pool:
        """A pool that nobody uses: the one of the last iteration, or a new one."""
        # a copy: where there are no data workers, loops over the same stream at once must not read from one another's
        pool = self._idle.pop(use, None) or Pool(self.base, copy.copy(self._dataset), as_loaded, self._replacements)
        self._busy.append(pool)
        return pool

    def give_back(self, use: str, pool: Pool) -> None:
        """The iteration over ``pool`` is over."""
        if pool not in self._busy:  # ended by ``close``
            return
        self._busy.remove(pool)
        pool.end_epoch()
        if use in self._idle:
            pool.end()
        else:
            self._idle[use] = pool

    def load_here(self, key: list[Any]) -> Any:
        """A mini-batch by its key, loaded in this process."""
        return self._dataset.__getitems__(key)

    def of_rank(self, virtual_rank: int) -> RankLoader:
        """The loader of a DDP rank."""
        if virtual_rank not in self._loader_by_rank:
            self._loader_by_rank[virtual_rank] = RankLoader(
                self.base, is_batched=self.order.is_batched, records=self._may_move
            )
        return self._loader_by_rank[virtual_rank]

    def generator_of(self, virtual_rank: int) -> torch.Generator | None:
        """The loader's generator as a DDP rank has it: each goes on by itself from epoch to epoch."""
        if virtual_rank not in self._generator_by_rank:
            self._generator_by_rank[virtual_rank] = generator_of_rank(self.base)
        return self._generator_by_rank[virtual_rank]

    def close(self) -> None:
        """End all data workers, also those of a loop that is still referred to (by an exception, say)."""
        self._running = self._last = None
        for pool in [*self._idle.values(), *self._busy]:
            pool.end()
        for loader in self._loader_by_rank.values():
            loader.end()
        self._idle.clear()
        self._busy.clear()
        self._loader_by_rank.clear()
