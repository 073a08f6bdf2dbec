"""The turns of a worker's ESTs in one pass over a global step: contexts in, mini-batch, contexts out, average.

Runs in the worker. A pass is a transaction: it ends with the averaged gradients in ``.grad``, virtual rank 0's buffers
in the modules and the job's random stream in the generators, or (``abort``) with everything as it was before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from easyscale.core.errors import UsageError
from easyscale.core.placement import Placement
from easyscale.train.context.buffers import ModuleBuffers
from easyscale.train.context.rng import RngPolicy
from easyscale.train.digest import quick_sum
from easyscale.train.elastic.member import Member
from easyscale.train.elastic.standing import RepeatError
from easyscale.train.process.faults import reach
from easyscale.train.reduce.channel import Channel
from easyscale.train.reduce.layout import DdpOptions
from easyscale.train.reduce.sync import GradientSync
from easyscale.train.runtime import NullObserver, Observer


class Turns:
    """Time-slices this worker among its ESTs.

    Args:
        placement: which ESTs run where.
        worker_rank: this worker.
        rng: switches random numbers.
        sync: averages gradients.
        channel: to the other workers; None if there are none.
        member: this worker's part in a job whose membership may change; None if it never does.

    Attributes:
        rank: the virtual rank whose turn it is, None outside turns.
        is_drop_in: whether the pass that runs is the only one over its step, with updates between turns.
        must_repeat: whether the pass that ended has to be done again, since a worker was lost in it.
        before_commit: called in every pass when its result is there, before any worker goes on with it.
        after_commit: called when it counts for all.
    """

    def __init__(
        self,
        placement: Placement,
        worker_rank: int,
        rng: RngPolicy,
        sync: GradientSync,
        channel: Channel | None,
        member: Member | None = None,
    ) -> None:
        self.ranks = placement.ranks_by_worker[worker_rank]
        self.rank: int | None = None
        self.is_drop_in = False
        self.observer: Observer = NullObserver()
        self.rng = rng
        self.sync = sync
        self._root = placement.worker_of(0)
        self._channel = channel
        self.member = member
        self.must_repeat = False
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None
        self._buffers: list[ModuleBuffers] = []
        self._params: list[tuple[str, nn.Parameter]] = []
        self._seen: list[tuple[int, str]] = []
        self._is_new = True
        self._is_first_pass = False
        self._position = (0, 0)
        self._is_context_open = False

    @property
    def most_gradient_copies(self) -> int:
        """Gradient copies that existed at once, at most."""
        return self.sync.most_copies

    @property
    def has_gradients(self) -> bool:
        """Whether some EST of the job had gradients in the last pass."""
        return self.sync.has_gradients

    @property
    def is_last(self) -> bool:
        """Whether the turn that runs is the last one of this worker in the pass."""
        return self.rank == self.ranks[-1]

    @property
    def is_synced(self) -> bool:
        """Whether ``.grad`` already holds the average of the pass that runs."""
        return self.is_last and not self._is_context_open

    def add_module(self, module: nn.Module, options: DdpOptions) -> nn.Module:
        """Switch and average for a module too; returns what the script works with."""
        params = list(module.named_parameters())
        self._params += params
        self._is_new = True
        buffers = ModuleBuffers(module, self.ranks, is_shared=options.broadcast_buffers)
        buffers.move(self.ranks, may_repeat=self._may_repeat)
        self._buffers.append(buffers)
        self.sync.add_module(params, options)
        return module

    def begin_pass(self, global_step: int, pass_index: int, *, is_drop_in: bool) -> None:
        self._position = (global_step, pass_index)
        self.must_repeat = False
        self.is_drop_in = is_drop_in
        self._is_first_pass, self._is_new = self._is_new, False
        self._seen = self._look_at_params()
        self.observer.begin_work()
        for buffers in self._buffers:
            buffers.begin_pass()
        self.rng.begin_pass()
        self.sync.begin_pass(pass_index, self._backward_ended if is_drop_in else None)

    def begin_turn(self, virtual_rank: int, fetch: Callable[[], Any], *, draws_from_est: bool) -> Any:
        """Give ``virtual_rank`` its context.

        Args:
            fetch: loads its mini-batch.
            draws_from_est: whether loading draws from the EST's random stream.

        Returns:
            The mini-batch.
        """
        batch = None if draws_from_est else fetch()
        self.rank = virtual_rank
        self._is_context_open = True
        for buffers in self._buffers:
            buffers.enter(virtual_rank, is_first=virtual_rank == self.ranks[0])
        self.sync.begin_turn(virtual_rank)
        self.rng.enter(virtual_rank, *self._position)
        self.observer.turn(virtual_rank)
        return fetch() if draws_from_est else batch

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Another mini-batch of the same turn: its gradients add up in ``.grad`` by themselves."""

    def end_turn(self) -> None:
        """Take the context back from the EST whose turn it is; the last one's end completes the pass.

        Where ``must_repeat`` is set afterwards, all is as before the pass.
        """
        self._close_context()
        if self.member is not None and self.member.is_broken and not self.is_last:
            self._give_up()
        if self.must_repeat:
            self.abort()
            self.observer.turn(None)
            return
        if self.is_drop_in and self.has_gradients and self.is_last and not self.sync.has_run_backward:
            raise UsageError(
                f"virtual rank {self.rank} ran no backward in global step {self._position[0]}, but other ESTs did, "
                "so an update would be made by some workers only: in the drop-in form every mini-batch needs a "
                "backward (of a loss times zero, say), or use the two-loop form, where one may be left out"
            )
        if not self.is_last:
            if self.is_drop_in:
                self._check_params()
            self.sync.end_turn()
            self.observer.end_work()
            self.observer.begin_work()
        self.rank = None
        self.observer.turn(None)

    def finish(self) -> None:
        """In the last turn: complete the average now."""
        if not self.is_last:
            raise UsageError("the average of a step is complete in the last EST's turn only")
        self._close_context()

    def _backward_ended(self) -> None:
        """In the drop-in form a turn's context ends with its backward: what follows belongs to the job."""
        self._close_context()

    def _close_context(self) -> None:
        if not self._is_context_open or self.rank is None:
            return
        self._is_context_open = False
        for buffers in self._buffers:
            buffers.leave(self.rank)
        self.rng.leave(self.rank)
        if self.is_last:
            self._check_params()
            self.observer.end_work()
            self._complete()
            self.rng.end_pass(*self._position)
        elif self.is_drop_in:
            # what follows counts in no turn, since in the last one it is the step's
            self.observer.end_work()
            self.rng.end_pass(*self._position)

    def _complete(self) -> None:
        """Average gradients and buffers; if other workers are lost meanwhile, for good or not at all."""
        if self.member is None:
            self._reduce()
            return
        reach("step.before_reduction")
        try:
            self.member.complete(self._reduce)
            self.after_commit()
        except RepeatError:
            self.must_repeat = True

    def _reduce(self) -> None:
        self.sync.finish()
        for buffers in self._buffers:
            buffers.end_pass(self._broadcast_buffers if self._channel is not None else None)
        if self.member is not None:
            if self._channel is None:
                self.member.agree(int(self.member.wants_to_move))
            self.before_commit()
            reach("step.after_reduction")

    def _give_up(self) -> None:
        """A worker was lost: what other turns of this pass would compute, is to be computed again anyway."""
        assert self.member is not None
        try:
            self.member.give_up()
        except RepeatError:
            self.must_repeat = True

    def move(self, placement: Placement, worker_rank: int, channel: Channel | None) -> None:
        """From the next pass on this worker runs other ESTs, with other workers."""
        self.ranks = placement.ranks_by_worker[worker_rank]
        self._root = placement.worker_of(0)
        self._channel = channel
        for buffers in self._buffers:
            buffers.move(self.ranks, may_repeat=self._may_repeat)
        self.sync.move(placement, worker_rank, channel, may_repeat=self._may_repeat)

    @property
    def has_own_buffers(self) -> bool:
        """Whether ESTs keep buffers of their own from step to step."""
        return any(buffers.is_own for buffers in self._buffers)

    def own_buffers_of(self, virtual_rank: int) -> list[Any]:
        """What an EST keeps of each module whose buffers are its own."""
        return [buffers.own_of(virtual_rank) for buffers in self._buffers if buffers.is_own]

    def put_own_buffers(self, virtual_rank: int, kept: list[Any]) -> None:
        """The way back."""
        for buffers, own in zip([b for b in self._buffers if b.is_own], kept, strict=True):
            buffers.put_own(virtual_rank, own)

    @property
    def _may_repeat(self) -> bool:
        return self.member is not None and self._channel is not None

    def _broadcast_buffers(self, buffers: list[Any]) -> None:
        channel = self._channel
        assert channel is not None
        channel.broadcast(buffers, self._root)

    def _check_params(self) -> None:
        """No parameter may change while ESTs of the same step still run: they would train another model."""
        for (name, _), before, now in zip(self._params, self._seen, self._look_at_params(), strict=True):
            if before != now:
                raise UsageError(
                    f"parameter {name} was changed in the turn of virtual rank {self.rank}, while other ESTs of "
                    f"global step {self._position[0]} may still have to run with the old value: change parameters in "
                    "the outer body of `for step in session.steps(loader):`, or where session.sync_gradients is true"
                )

    def _look_at_params(self) -> list[tuple[int, str]]:
        """Version of every parameter, and in the first pass a sum of its bytes.

        Writing through ``.data`` does not count in versions, and initialising by the first mini-batch is what does it.
        """
        if not self._is_first_pass:
            return [(param._version, "") for _, param in self._params]
        return [(param._version, quick_sum(param)) for _, param in self._params]

    def skip(self, virtual_rank: int, fetch: Callable[[], Any], *, draws_from_est: bool) -> None:
        """Pass over a mini-batch that the script did not ask for."""
        if not draws_from_est:
            fetch()
            return
        self.rng.begin_pass()
        self.rng.enter(virtual_rank, *self._position)
        fetch()
        self.rng.leave(virtual_rank)
        self.rng.end_pass(*self._position)

    def abort(self) -> None:
        """The pass does not count."""
        if self.rank is None:
            return
        self.sync.abort()
        for buffers in self._buffers:
            buffers.abort_pass()
        self.rng.end_pass(*self._position)
        self.rank = None
        self._is_context_open = False

    def close(self) -> None:
        self.sync.close()
