"""Who this process is: set by whatever started it, read once by ``session``.

Runs in the worker process. Three ways to be started: by our launcher (``train/worker.py`` calls ``install``), by
torchrun (each process is a worker, read from its environment), or as plain ``python`` (one worker).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from easyscale.core.job import WatchSpec
from easyscale.core.messages import Message
from easyscale.core.placement import Placement
from easyscale.train.elastic.mailbox import Mailbox
from easyscale.train.elastic.saver import Saver


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One finished global step, as this worker saw it."""

    global_step: int
    epoch: int
    total_steps: int | None
    seconds: float
    scalars: Mapping[int, Mapping[str, float]]
    fingerprint: Callable[[], dict[str, str]]
    """Hash of every tensor by name, computed when called (it reads all of them)."""
    state: Callable[[], dict[str, Any]]
    """Every tensor by name, as it is now."""


class Observer(Protocol):
    """What a worker process wants to know while the script runs. Must not change a number."""

    def turn(self, virtual_rank: int | None) -> None:
        """An EST's turn begins, or (None) ends."""

    def begin_work(self) -> None:
        """What follows is an EST's work: its turn, and loading its mini-batch."""

    def end_work(self) -> None:
        """The work of the EST whose turn it is is done: what follows in its turn may be waiting for other workers."""

    def passed(self, global_step: int, scalars: Mapping[int, Mapping[str, float]]) -> None:
        """A pass over a step is about to count: what was filed in the step so far, if the worker may be lost."""

    def step(self, record: StepRecord) -> None:
        """A global step is complete: the outer body of the step has run."""


class NullObserver:
    """Nobody watches: plain ``python`` and torchrun."""

    def turn(self, virtual_rank: int | None) -> None:
        return

    def begin_work(self) -> None:
        return

    def end_work(self) -> None:
        return

    def passed(self, global_step: int, scalars: Mapping[int, Mapping[str, float]]) -> None:
        return

    def step(self, record: StepRecord) -> None:
        return


@dataclass(frozen=True, slots=True)
class Enrolment:
    """How a worker takes part in a job whose membership may change.

    Attributes:
        worker: its number in the run.
        mailbox: the launcher's orders.
        tell: tells the launcher something.
        is_joiner: the job runs already.
        stops: global steps before which the launcher orders a change.
        on_place: told the virtual ranks of this worker when they change.
        saver: writes and reads checkpoints; None where there are none.
    """

    worker: int
    mailbox: Mailbox
    tell: Callable[[Message], None]
    is_joiner: bool
    stops: tuple[int, ...]
    on_place: Callable[[tuple[int, ...]], None]
    saver: Saver | None = None


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """This process's place in the job.

    Attributes:
        worker_rank: index into ``placement``; None placement means the script's ``num_ests`` decides.
        store_path: file of the rendezvous store; None means torchrun's environment, or no group for one worker.
        overrides: what the launcher was told; it wins over the script's own arguments.
        is_num_ests_explicit: whether the user said the number of ESTs on the command line.
        may_move: whether ESTs may come to other workers, or to a checkpoint, while the job runs.
    """

    worker_rank: int = 0
    num_workers: int = 1
    placement: Placement | None = None
    store_path: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    is_num_ests_explicit: bool = False
    may_move: bool = False
    watch: WatchSpec = field(default_factory=WatchSpec)
    observer: Observer = field(default_factory=NullObserver)
    enrolment: Enrolment | None = None


_installed: WorkerContext | None = None


def install(context: WorkerContext | None) -> None:
    """Say who this process is, before the script runs; None takes it back."""
    global _installed
    _installed = context


def current() -> WorkerContext:
    """Who this process is."""
    if _installed is not None:
        return _installed
    if "TORCHELASTIC_RUN_ID" in os.environ or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return WorkerContext(worker_rank=int(os.environ["RANK"]), num_workers=int(os.environ["WORLD_SIZE"]))
    return WorkerContext()
