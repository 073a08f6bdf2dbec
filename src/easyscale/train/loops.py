"""The loops of a training script: epochs, global steps, and the flat loop of the drop-in form. Runs in the worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from easyscale.core.errors import RefusedError, UsageError
from easyscale.train.data.loader import ElasticLoader
from easyscale.train.ddp import PlainTurns
from easyscale.train.elastic.mover import Mover
from easyscale.train.elastic.track import Track
from easyscale.train.evaluation import Evaluation
from easyscale.train.flat import flat
from easyscale.train.optim import StepCalls, check_averaged
from easyscale.train.prepared import Prepared
from easyscale.train.process.faults import reach
from easyscale.train.reduce.channel import Channel
from easyscale.train.runtime import Observer, StepRecord
from easyscale.train.source import CountedSource, Feed, LoaderSource, Source
from easyscale.train.step import Loud, Step, Steps
from easyscale.train.sums import Sums
from easyscale.train.totals import Log
from easyscale.train.turns import Turns


class Loops:
    """Counts epochs and global steps, and runs the turns of each.

    Args:
        turns: runs ESTs.
        observer: told of each finished step.
        log: what the script filed.
        is_carried: whether ESTs carry their random streams from step to step (``rng="ddp"``).
        channel: to the other workers, for ever.

    Attributes:
        track: where the script is.
        prepared: the objects of the job.
        running_step: steps that are over, which is the number of the step that runs.
        epoch: the epoch that runs, from 0.
        epoch_in_use: the same, or None where the script does not use ``epochs``.
        num_epochs: how many epochs ``epochs`` gives, or None.
    """

    def __init__(
        self,
        turns: Turns | PlainTurns,
        prepared: Prepared,
        observer: Observer,
        log: Log,
        channel: Channel | None,
        *,
        is_carried: bool,
    ) -> None:
        self.running_step = 0
        self.epoch = 0
        self.epoch_in_use: int | None = None
        self.num_epochs: int | None = None
        self.calls = StepCalls()
        self.turns = turns
        self.prepared = prepared
        self._is_carried = is_carried
        self._mover: Mover | None = None
        self.track = Track()
        self._observer = observer
        self._log = log
        self._total: int | None = None
        self._broken: str | None = None
        self._left_at: float | None = None
        self._is_in_step = False
        self._evaluation = Evaluation(turns, self.track, observer)
        self._sums = Sums(channel, self.track)
        self._is_over = False

    def be_elastic(self, mover: Mover) -> None:
        """The job's membership may change."""
        self._mover = self._evaluation.mover = self._sums.mover = mover

    @property
    def evaluating(self) -> int | None:
        """The virtual rank whose evaluation batch is in the script's hands."""
        return self._evaluation.rank

    @property
    def is_closed(self) -> bool:
        """Whether the session is over."""
        return self._evaluation.is_closed

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
            self.end_step(started, None)

    def check_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an update with gradients that nobody has averaged.

        Raises:
            UsageError: they did not come from a pass over a global step.
            RefusedError: they are of parameters that nobody averages.
        """
        self.prepared.check_known(optimizer)
        step = self.global_step if self._is_in_step else None
        check_averaged(optimizer, step, has_gradients=self.turns.has_gradients)

    def _come_in(self) -> None:
        """The script has come to a loop or a sum: a worker that joins is let in here."""
        if self._mover is None:
            return
        step = self._mover.come_in()
        if step is not None:
            self.running_step = step
        if not self.track.is_behind:
            self._mover.settle()

    def epochs(self, count: int) -> Iterator[int]:
        self.check()
        self._come_in()
        start = self.track.begin_epochs()
        if start is None:
            return
        self.num_epochs = count
        try:
            for epoch in range(start, count):
                self.epoch = self.epoch_in_use = epoch
                self.track.begin_epoch(epoch)
                yield epoch
                self.check()
        finally:
            self.epoch_in_use = self.num_epochs = None
            self.track.end_epochs()

    def steps(self, source: Any, accumulate: int) -> Steps:
        """Global steps over a prepared loader, or a number of them."""
        self.check()
        if accumulate < 1:
            raise UsageError(f"accumulate is {accumulate}: a step has 1 or more mini-batches of each EST")
        if not isinstance(source, int | ElasticLoader):
            raise RefusedError(
                f"session.steps got {type(source).__name__}, which was never prepared: use the loader that "
                "session.prepare returned, or a number of steps"
            )
        chosen = CountedSource(source, accumulate) if isinstance(source, int) else self._source(source, accumulate)
        return Steps(lambda: Loud(self._steps(chosen)), chosen.count)

    def _source(self, loader: ElasticLoader, per_turn: int) -> LoaderSource:
        return LoaderSource(loader, per_turn, self.turns.rng if self._is_carried else None, self._sums.least)

    def open(self, source: Source) -> Feed | None:
        """A training loop begins; None if it is over already in a job that this worker has joined."""
        self.check()
        self._come_in()
        was_behind = self.track.is_behind
        start = self.track.begin_loop(is_training=True)
        if start is None:
            return None
        feed = Feed(source, self.turns, self._mover, start, is_joining=was_behind and start > 0)
        self._total = self._expected(feed)
        return feed

    def close_feed(self, feed: Feed) -> None:
        """The script has left a training loop."""
        feed.close()
        self.track.end_loop()

    def _steps(self, source: Source) -> Iterator[Step]:
        feed = self.open(source)
        if feed is None:
            return
        step, started = None, time.perf_counter()
        try:
            first = feed.stream.progress.number
            while numbers := feed.upcoming(first):
                started = self.begin_step()
                step = Step(self.turns, feed, numbers, self.global_step)
                yield step
                step.end()
                first = numbers.stop
                self.end_step(started, first)
                feed.settle(first)
            feed.meet(first)
        except GeneratorExit:
            self._leave(step, started)
            raise
        finally:
            self.close_feed(feed)

    @property
    def is_in_step(self) -> bool:
        """Whether a global step runs."""
        return self._is_in_step

    def begin_step(self) -> float:
        """A global step begins; when."""
        self._is_in_step = True
        reach("step.begin")
        return time.perf_counter()

    def _leave(self, step: Step | None, started: float) -> None:
        """The script left the outer loop: the step counts if its inner loop ran to its end.

        By an exception or by ``break``, which look alike from here, so the step is ended when the script goes on.
        """
        if step is None or self.is_closed:
            return
        if step.is_complete:
            self.leave_complete(started)
            return
        try:
            step.end()
        except UsageError as error:
            self.leave_broken(str(error))

    def leave_complete(self, started: float) -> None:
        """The script left a loop after a whole step, which ends when the script goes on."""
        self._left_at = started

    def abort_step(self) -> None:
        """A mini-batch could not be loaded: the step has not begun."""
        self.turns.abort()
        self._is_in_step = False

    def leave_broken(self, sentence: str) -> None:
        """The script left a loop in the middle of a step; nothing can go on."""
        self._broken = sentence

    def iterate(self, loader: ElasticLoader) -> Iterator[Any]:
        """The drop-in form, or evaluation where no prepared model is in training mode."""
        self.check()
        if self.turns.rank is not None:
            raise UsageError(
                "a prepared loader is iterated over inside an EST's turn: iterate over it outside the loop"
            )
        return Loud(flat(self, self._source(loader, 1)) if self.prepared.is_training else self._evaluate(loader))

    def _evaluate(self, loader: ElasticLoader) -> Iterator[Any]:
        self._come_in()
        yield from self._evaluation.batches(loader, self.epoch)

    def total(self, value: Any, num_ests: int) -> Any:
        """``session.sum``."""
        self.check()
        self._come_in()
        return self._sums.total(value, num_ests)

    def _expected(self, feed: Feed) -> int | None:
        """How many steps the job has, if it is known: for the progress that users see."""
        here, whole = feed.steps_from(feed.stream.progress.number), feed.steps_from(0)
        if here is None or whole is None or (self.num_epochs is None and self.epoch_in_use is not None):
            return None
        later = 0 if self.num_epochs is None else whole * (self.num_epochs - self.epoch - 1)
        return self.global_step + here + later

    def end_step(self, started: float, number: int | None) -> None:
        """The outer body of a step is over, ``number`` mini-batches into its loop (None: the loop was left)."""
        record = StepRecord(
            self.running_step,
            self.epoch,
            self._total,
            time.perf_counter() - started,
            self._log.take(),
            self.prepared.fingerprint,
            self.prepared.state,
        )
        self.running_step += 1
        self._is_in_step = False
        self._observer.step(record)
        reach("step.end")
        if self._mover is None or self._is_over:
            return
        if self.track.depth == (number is not None):
            self._mover.border(self.running_step, number, is_last=self.running_step == self._total)
        else:
            self._mover.repair()

    def finish(self) -> None:
        """The script is at its end: there is no border any more."""
        self._is_over = True
        self.check()
        self.track.check_arrived()

    def close(self) -> None:
        self._evaluation.is_closed = True
        if self._mover is not None:
            self._mover.close()
