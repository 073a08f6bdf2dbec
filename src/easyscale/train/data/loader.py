"""What ``prepare`` returns for a ``DataLoader``: the user's loader, its order and its position. Runs in the worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from easyscale.core.errors import RefusedError, UsageError
from easyscale.core.job import JobSpec
from easyscale.train.context.rng import RngPolicy, capture, restore
from easyscale.train.data.ahead import Agree
from easyscale.train.data.epochs import EpochHost, Epochs
from easyscale.train.data.iterable import IterableStream, RankIterables, evaluation_pulls
from easyscale.train.data.plan import EpochPlan, LoaderOrder
from easyscale.train.data.position import Position, load_sampler_state, sampler_state
from easyscale.train.data.rank_streams import RankStreams
from easyscale.train.data.seeding import seeder
from easyscale.train.data.streams import Course, SharedStream, Stream, evaluation_batches
from easyscale.train.data.supply import Supply
from easyscale.train.data.view import SamplerView

_CPU = torch.device("cpu")


class LoaderHost(EpochHost, Protocol):
    """What a loader asks of the session that prepared it, which runs the loops."""

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
        supply: Supply,
    ) -> None:
        self.base = base
        self.order = order
        self.number = number
        self.supply = supply
        self.seed = spec.seed
        self._spec = spec
        self._host = host
        self.epochs = Epochs(base, order.sampler, host)
        self._resumed: Position | None = None
        self._running: Stream | None = None
        self._last: Stream | None = None
        self._running_epoch = 0
        self._sampler_before: dict[str, Any] | None = None
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

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(vars(self).get("base", self)) and name not in vars(self) and name[0] != "_":
            raise UsageError(f"the {name} of a prepared loader cannot be changed: change it before session.prepare")
        object.__setattr__(self, name, value)

    def __reduce__(self) -> Any:
        raise UsageError("a prepared loader cannot be copied or pickled, it belongs to this session: prepare another")

    @property
    def sampler(self) -> SamplerView:
        """The script's own sampler, whose ``set_epoch`` and length are those of a DDP rank's."""
        return SamplerView(self)

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of the next iterations, for scripts that do not use ``session.epochs``."""
        self.epochs.choose(epoch)

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
            iterations=self.epochs.iterations,
            own_epoch=self.epochs.own,
            epoch=None if running is None else self._running_epoch,
            number=0 if running is None else running.progress.number,
            sampler=sampler_state(self.order.sampler) if running is None else self._sampler_before,
            order=None if running is None else self._order_of(running),
            stream={} if self._last is None else self._last.state(is_over=running is None),
            facts=self.facts(),
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
        self._resumed = Position.from_dict(state, self.facts())
        self.epochs.own = self._resumed.own_epoch

    def facts(self) -> dict[str, Any]:
        """What mini-batches depend on, in words."""
        return {
            "number in the job": self.number,
            "session seed": self.seed,
            **self.order.facts(),
            "rng": self._spec.rng,
            # otherwise it shows in no mini-batch
            "num_workers": self.base.num_workers if self._spec.rng == "ddp" else None,
        }

    @property
    def is_running(self) -> bool:
        """Whether a loop over it runs."""
        return self._running is not None

    def check_alike(self, agree: Agree) -> None:
        """All workers iterate over the loader of this number; told by the least of what they say.

        Raises:
            UsageError: some of them do not.
        """
        if agree(self.number) != self.number or -agree(-self.number) != self.number:
            raise UsageError(
                f"a loader that is number {self.number} of those prepared here is another one on other workers, so its "
                "random numbers would depend on the worker: prepare the same objects in the same order on all workers"
            )

    # -- iterations --------------------------------------------------------------------------------------------

    def open(self, ranks: tuple[int, ...], per_turn: int, rng: RngPolicy | None, agree: Agree) -> Stream:
        """Begin an iteration, where the position says.

        Args:
            ranks: the local ESTs in the order of their turns.
            per_turn: mini-batches in one turn.
            rng: switches to the random stream of an EST, where ESTs carry theirs (``rng="ddp"``); else None.
            agree: the least of what all workers say.
        """
        self.order.check_unchanged(self.base.dataset)
        position = None if self._resumed is None else self._take_up(self._resumed)
        epoch = self.epochs.next()
        before = sampler_state(self.order.sampler)
        start = 0 if position is None else position.number
        stream = self._stream(Course(epoch, ranks, start, per_turn), rng, agree, position)
        if position is not None:
            position.check_order(self.order.sampler, self._order_of(stream))
        if self._running is None:
            self._running = self._last = stream
            self._running_epoch, self._sampler_before = epoch, before
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
        is_running, epoch = self._running is stream, self._running_epoch
        order = self._order_of(stream)
        self.close_stream(stream)
        load_sampler_state(self.order.sampler, self._sampler_before)
        position = Position(
            iterations=self.epochs.iterations,
            own_epoch=self.epochs.own,
            epoch=epoch,
            number=number,
            sampler=self._sampler_before,
            order=order,
            stream={"ranks": by_rank},
            facts={},
        )
        moved = self._stream(Course(epoch, ranks, number, per_turn), rng, agree, position)
        position.check_order(self.order.sampler, self._order_of(moved))
        if is_running:
            self._running = self._last = moved
        return moved

    def _order_of(self, stream: Stream) -> str | None:
        """A hash of what the user's own sampler gave for an iteration."""
        return (
            stream.plan.digest() if isinstance(stream, SharedStream | RankStreams) and not self.order.is_known else None
        )

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
        """The position in the epoch that comes; the end of the epoch before is the begin of that."""
        coming = self.epochs.coming
        is_elsewhere = position.epoch is not None and coming not in (None, position.epoch)
        is_at_end = not self.order.is_stream and position.number == len(self)
        if is_elsewhere and not is_at_end:
            raise RefusedError(
                f"the loader's position is in epoch {position.epoch} (mini-batch {position.number}), but the epoch "
                f"that comes is {coming}: go on in the epoch in which it was taken"
            )
        self._resumed = None
        load_sampler_state(self.order.sampler, position.sampler)
        self.epochs.iterations = position.iterations - (position.epoch is not None and not is_elsewhere)
        if not is_elsewhere:
            return position
        self.plan(position.epoch or 0)  # what was drawn from the sampler then is drawn again
        return dataclasses.replace(position, epoch=None, number=0)

    def close_stream(self, stream: Stream) -> None:
        """The script has left the loop over ``stream``."""
        stream.close()
        if self._running is stream:
            self._running = None

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

    def close(self) -> None:
        """End all data workers, also those of a loop that is still referred to (by an exception, say)."""
        self._running = self._last = None
        self.supply.close()
