"""Tells the launcher what the session does: turns, finished steps, and what was asked to be watched.

Runs in the worker process, called by the session. Changes no number.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from easyscale.core.digest import combine
from easyscale.core.job import WatchSpec
from easyscale.core.messages import Logged, Opened, StepReport
from easyscale.train.process.channel import Channel
from easyscale.train.process.dump import write_state
from easyscale.train.process.output import OutputRouter
from easyscale.train.process.pace import Pace
from easyscale.train.runtime import StepRecord

if TYPE_CHECKING:
    from easyscale.train.session import Session


class DumpTaken(BaseException):
    """The state that was asked for is written: the script ends here, as if it had ended well."""


class LauncherObserver:
    """A ``runtime.Observer`` that reports to the launcher."""

    def __init__(
        self, worker_rank: int, is_main: bool, watch: WatchSpec, channel: Channel, output: OutputRouter, pace: Pace
    ) -> None:
        self._pace = pace
        self._worker_rank = worker_rank
        self._is_main = is_main
        self._watch = watch
        self._channel = channel
        self._output = output
        self._turn: int | None = None
        self._broken_turn: int | None = None
        self.session: Session | None = None
        self.steps = 0
        self._passed: dict[str, dict[str, float]] | None = None

    @property
    def failed_turn(self) -> int | None:
        """The virtual rank whose turn it is, or was when an exception ended it."""
        return self._broken_turn if self._turn is None else self._turn

    @property
    def failed_step(self) -> int | None:
        """The global step that runs; None before the first one."""
        session = self.find_session()
        if session is not None:
            return session.running_step
        return self.steps if self.steps or self.failed_turn is not None else None

    def turn(self, virtual_rank: int | None) -> None:
        self._broken_turn = self._turn if virtual_rank is None and _is_iterator_dropped() else None
        self._turn = virtual_rank
        if self.session is None:
            self.find_session()
        self._output.turn(virtual_rank)

    def find_session(self) -> Session | None:
        """The script's session: the one that is open, else the last one that was when we looked."""
        module = sys.modules.get("easyscale.train.session")
        session = None if module is None else module.current_session()
        if session is not None and session is not self.session:
            self.session = session
            self._channel.send(Opened(self._worker_rank, session.num_ests))
        return self.session

    def place(self, ranks: tuple[int, ...]) -> None:
        """The worker runs these virtual ranks from now on."""
        self._is_main = self._output.is_main = 0 in ranks

    def begin_work(self) -> None:
        self._pace.begin()

    def end_work(self) -> None:
        if self._turn is not None:
            self._pace.end(self._turn, self.steps if self.session is None else self.session.running_step)

    def passed(self, global_step: int, scalars: Mapping[int, Mapping[str, float]]) -> None:
        """Sent at once: after this the other workers may finish the step without this one."""
        self._passed = _by_name(scalars)
        if scalars:
            self._channel.send(Logged(self._worker_rank, global_step, self._passed))

    def step(self, record: StepRecord) -> None:
        self.steps += 1
        self._broken_turn = None
        self.find_session()
        scalars, passed = _by_name(record.scalars), self._passed
        self._passed = None
        is_watched = self._watch.digests and (self._is_main or self._watch.by_all)
        tensors = record.fingerprint() if is_watched else None
        turns, cycle_s = self._pace.end_step()
        # where the worker may be lost, what was not said before the pass counted is said at once
        hand_over = self._channel.report if passed is None or passed == scalars else self._channel.send
        hand_over(
            StepReport(
                worker_rank=self._worker_rank,
                global_step=record.global_step,
                epoch=record.epoch,
                total_steps=record.total_steps,
                seconds=record.seconds,
                scalars=scalars,
                digest=None if tensors is None else combine(tensors),
                tensors=tensors,
                turns={str(rank): round(seconds, 6) for rank, seconds in turns.items()},
                cycle_s=round(cycle_s, 6),
            )
        )
        if record.global_step == self._watch.dump_step:
            self._dump(record)

    def _dump(self, record: StepRecord) -> None:
        if self._is_main and self._watch.dump_path is not None:
            write_state(record.state(), Path(self._watch.dump_path))
        raise DumpTaken


def _by_name(scalars: Mapping[int, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {str(rank): {name: float(value) for name, value in own.items()} for rank, own in scalars.items()}


def _is_iterator_dropped() -> bool:
    """Whether an iterator is being closed under us: its loop was left, and the turn ends in passing."""
    return sys.exc_info()[0] is GeneratorExit
