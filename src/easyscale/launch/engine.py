"""Runs a script on worker processes of this machine, from the first fork to the last clean-up.

Runs in the launcher, in one thread: one ``wait`` over all connections, process ends and signals, so nothing can wait
for something else in a circle. Whatever happens, no process outlives the run.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from easyscale.core.errors import EasyScaleError, JobFailedError
from easyscale.core.messages import (
    Failed,
    Finished,
    Hello,
    Message,
    Opened,
    Output,
    StepReport,
    WorkerConfig,
)
from easyscale.core.placement import Placement
from easyscale.launch import failure
from easyscale.launch.failure import Failure
from easyscale.launch.fleet import Fleet, rendezvous_store
from easyscale.launch.folder import EventLog, RunFolder
from easyscale.launch.signals import StopSignals
from easyscale.launch.spec import Listener, RunSpec
from easyscale.launch.steps import StepMerger, to_event
from easyscale.launch.worker_process import WorkerProcess

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL: time for the script's ``finally`` blocks."""
SETTLE_S = 1.0
"""How long a lost connection waits for the news of whose end it was."""
_TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class Ending:
    """How the processes of a run ended.

    Attributes:
        signal: what stopped the launcher, if something did.
        seconds: from the first worker's start of the script to the end of all.
    """

    finished: tuple[Finished, ...]
    failure: Failure | None
    signal: Signals | None
    placement: Placement
    has_session: bool
    global_steps: int
    seconds: float


class LocalRun:
    """One run: start the workers, listen until all have ended, tell the listener and the event log."""

    def __init__(self, spec: RunSpec, folder: RunFolder, listener: Listener, event_log: EventLog) -> None:
        self._spec = spec
        self._folder = folder
        self._listener = listener
        self._event_log = event_log
        self._placement = spec.placement
        self._fleet = Fleet()
        self._failures: list[Failure] = []
        self._steps = StepMerger(spec.placement.num_workers)
        self._has_session = False
        self._is_output_closed = False
        self._signals = StopSignals()
        self._script_began: float | None = None
        self._verdict_at: float | None = None
        self._kill_at: float | None = None

    def execute(self) -> Ending:
        """Run to the end. Never raises for what the script or a worker does."""
        with self._signals:
            try:
                with rendezvous_store() as store_path:
                    self._fleet.start(self._config(rank, store_path) for rank in range(self._placement.num_workers))
                    while self._fleet.open_workers:
                        self._listen()
                        self._decide()
            except JobFailedError as error:
                self._fail(Failure("died", str(error)))
            except KeyboardInterrupt:
                self._listener.notice("second signal: killing all workers at once")
            finally:
                self._signals.ignore()
                self._fleet.remove()
        return self._ending()

    def _config(self, rank: int, store_path: str) -> WorkerConfig:
        spec = self._spec
        return WorkerConfig(
            worker_rank=rank,
            num_workers=spec.placement.num_workers,
            placement=str(spec.placement) if spec.is_num_ests_explicit else None,
            store_path=store_path,
            script=spec.script,
            overrides=dict(spec.overrides),
            is_num_ests_explicit=spec.is_num_ests_explicit,
            watch=spec.watch,
            log_dir=str(self._folder.logs.absolute()),
            working_dir=str(Path.cwd()),
            search_path=sys.path if getattr(sys.flags, "safe_path", False) else sys.path[1:],
        )

    # -- listening ---------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Take one message of each worker that has one, and notice ends."""
        for worker in self._fleet.wait(self._signals, _TICK_S):
            if worker.has_message():
                self._take(worker)
            elif worker.exit_code is not None:
                self._bury(worker)
        self._listener.tick()

    def _take(self, worker: WorkerProcess) -> None:
        try:
            message = worker.read()
            if message is None:
                worker.join(GRACE_S)
                self._bury(worker)
            else:
                self._handle(worker, message)
        except EasyScaleError as error:
            self._fail(Failure("died", f"worker {worker.rank} cannot be understood: {error}"))

    def _bury(self, worker: WorkerProcess) -> None:
        """The process has ended: hear what it still said; an end without last words is a failure."""
        for message in worker.read_rest():
            self._handle(worker, message)
        worker.close()
        worker.kill_leftovers()
        if worker.last_words is not None:
            return
        progress = self._progress(worker)
        self._fail(failure.from_death(worker.rank, worker.exit_code, progress, self._placement, self._folder))

    def _handle(self, worker: WorkerProcess, message: Message) -> None:
        if isinstance(message, Hello):
            worker.has_started_script = True
            self._script_began = self._script_began or time.monotonic()
        elif isinstance(message, Opened):
            self._open(message.num_ests)
        elif isinstance(message, Output):
            self._output(message)
        elif isinstance(message, StepReport):
            self._step(message)
        elif isinstance(message, Finished):
            worker.last_words = message
            if message.num_ests:
                self._open(message.num_ests)
        elif isinstance(message, Failed):
            worker.last_words = message
            self._fail(failure.from_message(message, self._placement, self._folder))

    def _output(self, message: Output) -> None:
        if self._is_output_closed:
            return
        try:
            self._listener.output(message.stream, message.text)
        except OSError as error:
            self._is_output_closed = True
            self._fail(
                Failure("died", f"the script's output cannot be written ({error.strerror}): the run was stopped")
            )

    def _open(self, num_ests: int) -> None:
        """The script has a session; its number of ESTs counts unless the user gave one."""
        self._has_session = True
        if not self._spec.is_num_ests_explicit:
            self._placement = Placement.even(num_ests, self._placement.num_workers)

    def _step(self, report: StepReport) -> None:
        whole = self._steps.add(report)
        if whole is None:
            return
        event = to_event(whole, time.time())
        self._event_log.write(event)
        self._listener.step(event, whole.total_steps)

    def _progress(self, worker: WorkerProcess) -> str:
        if not worker.has_started_script:
            return "before it could run the script"
        if self._steps.last_finished is None:
            return "before all workers had reported a global step"
        return f"the last global step that all workers had reported is {self._steps.last_finished}"

    # -- deciding ----------------------------------------------------------------------------------------------

    def _fail(self, cause: Failure) -> None:
        """Note a cause; what happens after the workers were asked to end is none."""
        if self._kill_at is not None or self._signals.received is not None:
            return
        self._failures.append(cause)
        if self._verdict_at is None or not cause.is_secondary:
            self._verdict_at = time.monotonic() + (SETTLE_S if cause.is_secondary else 0)

    def _decide(self) -> None:
        """Ask the workers to end when there is a reason, and kill those that do not in time."""
        now = time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                self._fleet.kill()
        elif self._signals.received is not None or (self._verdict_at is not None and now >= self._verdict_at):
            self._fleet.terminate()
            self._kill_at = now + GRACE_S

    # -- ending ------------------------------------------------------------------------------------------------

    def _ending(self) -> Ending:
        last_words = [worker.last_words for worker in self._fleet.workers]
        finished = tuple(words for words in last_words if isinstance(words, Finished))
        is_complete = len(finished) == self._placement.num_workers
        left = [words.worker_rank for words in finished]
        return Ending(
            finished=finished,
            failure=failure.first_cause(self._failures, left) if self._failures else None,
            signal=None if is_complete else self._signals.received,
            placement=self._placement,
            has_session=self._has_session,
            global_steps=self._steps.finished_steps,
            seconds=0.0 if self._script_began is None else round(time.monotonic() - self._script_began, 3),
        )
