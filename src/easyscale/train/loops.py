"""The loops of a training script: epochs, global steps, and the flat loop of the drop-in form. Runs in the worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from easyscale.core.errors import RefusedError, UsageError
from easyscale.train.data.loader import ElasticLoader
from easyscale.train.data.streams import Stream
from easyscale.train.ddp import PlainTurns
from easyscale.train.optim import StepCalls
from easyscale.train.prepared import Prepared
from easyscale.train.runtime import Observer, StepRecord
from easyscale.train.step import Counter, Loud, Step, Steps
from easyscale.train.totals import Log
from easyscale.train.turns import Turns


class Loops:
    """Counts epochs and global steps, and runs the turns of each.

    Args:
        turns: runs ESTs.
        prepared: the objects of the job.
        observer: told of each finished step.
        log: what the script filed.
        is_carried: whether ESTs carry their random streams from step to step (``rng="ddp"``).
        agree: the least of what all workers say.

    Attributes:
        running_step: steps that are over, which is the number of the step that runs.
        epoch: the epoch that runs, from 0.
        epoch_in_use: the same, or None where the script does not use ``epochs``.
        num_epochs: how many epochs ``epochs`` gives, or None.
        evaluating: the virtual rank whose evaluation batch is in the script's hands.
    """

    def __init__(
        self,
        turns: Turns | PlainTurns,
        prepared: Prepared,
        observer: Observer,
        log: Log,
        *,
        is_carried: bool,
        agree: Callable[[int], int],
    ) -> None:
        self.running_step = 0
        self.epoch = 0
        self.epoch_in_use: int | None = None
        self.num_epochs: int | None = None
        self.evaluating: int | None = None
        self.calls = StepCalls()
        self._turns = turns
        self._prepared = prepared
        self._is_carried = is_carried
        self._agree = agree
        self._observer = observer
        self._log = log
        self._total: int | None = None
        self._broken: str | None = None
        self._left_at: float | None = None
        self._is_in_step = False
        self._is_closed = False

    @property
    def global_step(self) -> int:
        """The step that runs or comes next, from 0."""
        return self.running_step + (self._left_at is not None)

    def check(self) -> None:
        """The script goes on: end the step whose loop it left, or refuse if that was half-way."""
        if self._broken is not None:
            raise UsageError(self._broken)
        if self._left_at is not None:
            started, self._left_at = self._left_at, None
            self._end_step(started)

    def check_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an update with gradients that nobody has averaged.

        Raises:
            UsageError: they did not come from a pass over a global step.
            RefusedError: they are of parameters that nobody averages.
        """
        self._prepared.check_known(optimizer)
        if all(param.grad is None for group in optimizer.param_groups for param in group["params"]):
            return
        if not self._is_in_step:
            raise UsageError(
                f"{type(optimizer).__name__}.step() was called outside every global step, with gradients that were not "
                f"averaged over ESTs: iterate over session.steps(loader) with the loader that session.prepare returned"
            )
        if not self._turns.has_gradients:
            raise UsageError(
                f"{type(optimizer).__name__}.step() found gradients, but no EST ran a backward in its turn of global "
                f"step {self.global_step}, so they were not averaged: call backward() inside `for batch in step:`"
            )

    def epochs(self, count: int) -> Iterator[int]:
        self.check()
        self.num_epochs = count
        try:
            for epoch in range(count):
                self.epoch = self.epoch_in_use = epoch
                yield epoch
                self.check()
        finally:
            self.epoch_in_use = self.num_epochs = None

    def steps(self, source: Any, accumulate: int) -> Steps:
        """Global steps over a prepared loader, or a number of them."""
        self.check()
        if accumulate < 1:
            raise UsageError(f"accumulate is {accumulate}: a step has 1 or more mini-batches of each EST")
        if isinstance(source, int):
            return Steps(
                lambda: self._steps(lambda: Counter(source * accumulate), lambda _: None, accumulate), lambda: source
            )
        if not isinstance(source, ElasticLoader):
            raise RefusedError(
                f"session.steps got {type(source).__name__}, which was never prepared: use the loader that "
                "session.prepare returned, or a number of steps"
            )
        return Steps(
            lambda: Loud(self._steps(lambda: self._open(source, accumulate), source.close_stream, accumulate)),
            lambda: -(-len(source) // accumulate),
        )

    def _open(self, loader: ElasticLoader, per_turn: int) -> Stream:
        turns = self._turns
        return loader.open(turns.ranks, per_turn, turns.rng if self._is_carried else None, self._agree)

    def _steps(self, open_stream: Callable[[], Stream], close: Callable[[Stream], None], most: int) -> Iterator[Step]:
        self.check()
        stream = open_stream()
        step, started = None, time.perf_counter()
        try:
            first = stream.progress.number
            self._expect(stream, most)
            while numbers := stream.upcoming(first, most):
                started = time.perf_counter()
                step = Step(self._turns, stream, numbers, self.global_step)
                self._is_in_step = True
                yield step
                step.end()
                self._end_step(started)
                first = numbers.stop
        except GeneratorExit:
            self._leave(step, started)
            raise
        finally:
            close(stream)

    def _leave(self, step: Step | None, started: float) -> None:
        """The script left the outer loop: the step counts if its inner loop ran to its end.

        By an exception or by ``break``, which look alike from here, so the step is ended when the script goes on.
        """
        if step is None or self._is_closed:
            return
        if step.is_complete:
            self._left_at = started
            return
        try:
            step.end()
        except UsageError as error:
            self._broken = str(error)

    def iterate(self, loader: ElasticLoader) -> Iterator[Any]:
        """The drop-in form, or evaluation where no prepared model is in training mode."""
        self.check()
        if self._turns.rank is not None:
            raise UsageError(
                "a prepared loader is iterated over inside an EST's turn: iterate over it outside the loop"
            )
        return Loud(self._flat(loader) if self._prepared.is_training else self._evaluate(loader))

    def _evaluate(self, loader: ElasticLoader) -> Iterator[Any]:
        try:
            for rank, batch in loader.evaluation(self.epoch, self._turns.ranks):
                self.evaluating = rank
                self._observer.turn(rank)
                yield batch
        finally:
            self.evaluating = None
            self._observer.turn(None)

    def _flat(self, loader: ElasticLoader) -> Iterator[Any]:
        self.check()
        if self._is_in_step:
            raise UsageError(
                "a second prepared loader is iterated over while a global step runs over the first: go through both in "
                "the two-loop form, `for a, b in zip(session.steps(first), session.steps(second)): for x in a: ...`"
            )
        stream = self._open(loader, 1)
        turns, started, is_begun = self._turns, time.perf_counter(), False
        try:
            first = stream.progress.number
            self._expect(stream, 1)
            while numbers := stream.upcoming(first, 1):
                started = time.perf_counter()
                turns.begin_pass(self.global_step, 0, is_drop_in=True)
                self.calls.begin_step()
                self._is_in_step = True
                for rank in turns.ranks:
                    is_begun = rank != turns.ranks[0]
                    fetch = lambda r=rank, n=numbers.start: stream.fetch(r, n)  # noqa: E731
                    settings = self._prepared.settings()
                    yield turns.begin_turn(rank, fetch, draws_from_est=stream.draws_from_est)
                    self.calls.end_turn(rank)
                    if not turns.is_last:
                        self._check_settings(rank, settings)
                    turns.end_turn()
                self._end_step(started)
                first = numbers.stop
        except GeneratorExit:
            self._leave_flat(started, is_begun=is_begun)
            raise
        except BaseException:
            if is_begun or self.calls.has_any:
                self._broken = (
                    f"loading a mini-batch of global step {self.global_step} failed, and the script went on, but other "
                    "ESTs have had theirs: let the error end the run, or let the dataset give another sample"
                )
            self._turns.abort()
            self._is_in_step = False
            raise
        finally:
            loader.close_stream(stream)

    def _check_settings(self, rank: int, before: list[Any]) -> None:
        if before != self._prepared.settings():
            raise UsageError(
                f"an optimizer's settings (its learning rate, say) were changed in the turn of virtual rank {rank}, "
                f"while other ESTs of global step {self.global_step} have not run, so they would change once for each "
                f"mini-batch: give the LR scheduler to session.prepare, or change them where session.sync_gradients is "
                f"true"
            )

    def _leave_flat(self, started: float, *, is_begun: bool) -> None:
        if self._is_closed or self._turns.rank is None:
            return
        if self._turns.is_synced and self.calls.has_any:
            self._turns.end_turn()
            self._left_at = started
            return
        if is_begun or self.calls.has_any:
            self._broken = (
                f"the loop was left in the turn of virtual rank {self._turns.rank}, in the middle of global step "
                f"{self.global_step}: other ESTs of it have not run. Leave it where session.sync_gradients is true, "
                "or before the first mini-batch of a step is used"
            )
        self._turns.abort()

    def _expect(self, stream: Stream, per_step: int) -> None:
        """How many steps the job has, if it is known: for the progress that users see."""
        here = self._length(stream, per_step, stream.progress.number)
        if here is None or (self.num_epochs is None and self.epoch_in_use is not None):
            self._total = None
        elif self.num_epochs is None:
            self._total = self.global_step + here
        else:
            whole = self._length(stream, per_step, 0) or 0
            self._total = self.global_step + here + whole * (self.num_epochs - self.epoch - 1)

    def _length(self, stream: Stream, per_step: int, first: int) -> int | None:
        return None if stream.length is None else -(-(stream.length - first) // per_step)

    def _end_step(self, started: float) -> None:
        record = StepRecord(
            self.running_step,
            self.epoch,
            self._total,
            time.perf_counter() - started,
            self._log.take(),
            self._prepared.fingerprint,
            self._prepared.state,
        )
        self.running_step += 1
        self._is_in_step = False
        self._observer.step(record)

    def close(self) -> None:
        self._is_closed = True
