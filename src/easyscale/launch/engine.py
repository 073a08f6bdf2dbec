"""Runs a script on worker processes of this machine, from the first fork to the last clean-up.

Runs in the launcher, in one thread: one ``wait`` over all connections, process ends and signals, so nothing can wait
for something else in a circle. What the workers do next is the job master's to say (``master``). Whatever happens, no
process outlives the run.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Any

from easyscale.core.errors import EasyScaleError, JobFailedError, RefusedError
from easyscale.core.events import LossEvent
from easyscale.core.messages import (
    Failed,
    Finished,
    Formed,
    Hello,
    Leaving,
    Left,
    Logged,
    Lost,
    Message,
    Moved,
    Opened,
    Output,
    Ready,
    StepReport,
    WorkerConfig,
)
from easyscale.core.placement import Placement
from easyscale.launch import failure
from easyscale.launch.control import Control
from easyscale.launch.failure import Failure
from easyscale.launch.fleet import Fleet, rendezvous_store
from easyscale.launch.folder import EventLog, RunFolder
from easyscale.launch.master import Begun, GiveUp, Kill, Master, Say, Send, Start
from easyscale.launch.rescales import RescaleLog
from easyscale.launch.signals import StopSignals
from easyscale.launch.spec import Listener, RunSpec
from easyscale.launch.steps import StepMerger, to_event
from easyscale.launch.worker_process import WorkerProcess

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL: time for the script's ``finally`` blocks."""
SETTLE_S = 1.0
"""How long a lost connection waits for the news of whose end it was."""
_TICK_S = 0.25
_OWN_PAUSE_S = 2.0
"""A launcher that was stopped itself for so long knows nothing of its workers."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the processes of a run ended.

    Attributes:
        signal: what stopped the launcher, if something did.
        placements: those of all generations.
        seconds: from the first worker's start of the script to the end of all.
    """

    finished: tuple[Finished, ...]
    failure: Failure | None
    signal: Signals | None
    placements: tuple[Placement, ...]
    has_session: bool
    global_steps: int
    seconds: float


class LocalRun:
    """One run: start the workers, listen until all have ended, tell the listener and the event log."""

    def __init__(
        self, spec: RunSpec, folder: RunFolder, listener: Listener, event_log: EventLog, control: Control
    ) -> None:
        self._control = control
        self._spec = spec
        self._folder = folder
        self._listener = listener
        self._event_log = event_log
        self._store_path = ""
        self._working_dir = str(Path.cwd())
        self._fleet = Fleet()
        self._master = Master(spec.placement, spec.elasticity, "")
        self._placements = [spec.placement]
        self._first_step = dict.fromkeys(self._master.members, 0)
        self._failures: list[Failure] = []
        self._steps = StepMerger(self._first_step)
        self._rescales = RescaleLog()
        self._has_session = False
        self._is_output_closed = False
        self._signals = StopSignals()
        self._script_began: float | None = None
        self._looked_at = time.monotonic()
        self._verdict_at: float | None = None
        self._kill_at: float | None = None

    def execute(self) -> Ending:
        """Run to the end. Never raises for what the script or a worker does."""
        with self._signals:
            try:
                with rendezvous_store() as store_path:
                    self._store_path = store_path
                    self._master = Master(self._spec.placement, self._spec.elasticity, store_path)
                    self._fleet.start(self._config(rank) for rank in self._master.members)
                    while self._fleet.open_workers:
                        self._listen()
                        self._act()
                        self._decide()
            except JobFailedError as error:
                self._fail(Failure("died", str(error)))
            except KeyboardInterrupt:
                self._listener.notice("second signal: killing all workers at once")
            finally:
                self._signals.ignore()
                self._fleet.remove()
                self._write_rescales(None)
        return self._ending()

    def _config(self, worker: int, *, is_joiner: bool = False) -> WorkerConfig:
        spec, placement = self._spec, self._master.placement
        is_known = spec.is_num_ests_explicit or is_joiner
        rules = spec.elasticity
        return WorkerConfig(
            worker_rank=worker,
            num_workers=placement.num_workers,
            placement=str(placement) if is_known else None,
            store_path=self._store_path,
            script=spec.script,
            overrides=dict(spec.overrides),
            is_num_ests_explicit=spec.is_num_ests_explicit,
            watch=spec.watch,
            log_dir=str(self._folder.logs.absolute()),
            working_dir=self._working_dir,
            search_path=sys.path if getattr(sys.flags, "safe_path", False) else sys.path[1:],
            may_move=rules.may_move,
            is_joiner=is_joiner,
            stops=[step for step, _ in rules.schedule],
            faults=[replace(f, claim=f"{self._store_path}-fault-{n}") for n, f in enumerate(rules.faults)],
        )

    # -- listening ---------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Take one message of each worker that has one, and notice ends."""
        for worker in self._fleet.wait(self._signals, self._control.sources, _TICK_S):
            if worker.has_message():
                self._take(worker)
            elif worker.exit_code is not None:
                self._bury(worker)
        self._control.serve(self._answer)
        self._listener.tick()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What another command asks for."""
        if request["ask"] != "scale":
            raise RefusedError(f"{request['ask']!r} is nothing that this version can be asked for")
        wanted = request.get("workers") or Placement.parse(request["placement"])
        before = self._master.placement
        target = self._master.scale(wanted, time.time())
        self._listener.notice(f"asked to go on with placement {target}")
        return {"from": str(before), "to": str(target)}

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
        """The process has ended: hear what it still said; an end without last words is a loss, or a failure."""
        for message in worker.read_rest():
            self._handle(worker, message)
        worker.close()
        worker.kill_leftovers()
        if worker.last_words is not None or worker.is_unwanted:
            return
        ranks = self._ranks_of(worker.rank)
        cause = failure.from_death(worker.rank, worker.exit_code, self._progress(worker), ranks, self._folder)
        self._lose(worker, cause)

    def _handle(self, worker: WorkerProcess, message: Message) -> None:
        worker.heard_at = time.monotonic()
        if isinstance(message, Hello):
            worker.has_started_script = True
            self._script_began = self._script_began or time.monotonic()
        elif isinstance(message, Opened):
            self._open(message.num_ests)
        elif isinstance(message, Output):
            self._output(message)
        elif isinstance(message, StepReport):
            self._tell_steps(self._steps.add(message))
        elif isinstance(message, Logged):
            self._steps.log(message)
        elif isinstance(message, Finished):
            worker.last_words = message
            if message.num_ests:
                self._open(message.num_ests)
            self._master.finished(worker.rank)
        elif isinstance(message, Left):
            worker.last_words = message
            self._master.left(worker.rank)
        elif isinstance(message, Failed):
            worker.last_words = message
            self._lose(worker, failure.from_message(message, self._ranks_of(worker.rank), self._folder), message)
        else:
            self._handle_membership(message)

    def _handle_membership(self, message: Message) -> None:
        now = time.time()
        if isinstance(message, Ready):
            self._master.ready(message.worker_rank, now)
        elif isinstance(message, Formed):
            self._master.formed(message, now)
        elif isinstance(message, Moved):
            self._rescales.moved(message)
        elif isinstance(message, Lost):
            self._master.lost(message, now)
        elif isinstance(message, Leaving):
            self._listener.notice(f"worker {message.worker_rank} was asked to end (SIGTERM): the job moves off it")
            self._master.leaving(message.worker_rank, now)

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
        if not self._spec.is_num_ests_explicit and len(self._placements) == 1:
            self._master.opened(num_ests)
            self._placements = [self._master.placement]

    def _tell_steps(self, finished: list[StepReport]) -> None:
        for whole in finished:
            self._master.progressed()
            event = to_event(whole, time.time())
            self._event_log.write(event)
            self._write_rescales(whole.global_step)
            self._listener.step(event, whole.total_steps)

    def _write_rescales(self, global_step: int | None) -> None:
        done = self._rescales.rest() if global_step is None else self._rescales.step(global_step, time.time())
        for event in done:
            self._event_log.write(event)
            self._listener.rescale(event)

    def _progress(self, worker: WorkerProcess) -> str:
        if not worker.has_started_script:
            return "before it could run the script"
        if self._steps.last_finished is None:
            return "before all workers had reported a global step"
        return f"the last global step that all workers had reported is {self._steps.last_finished}"

    def _ranks_of(self, worker: int) -> tuple[int, ...]:
        """Virtual ranks that a worker runs; none for one that has not joined yet."""
        master = self._master
        if worker not in master.members:
            return ()
        return master.placement.ranks_by_worker[master.members.index(worker)]

    # -- membership --------------------------------------------------------------------------------------------

    def _lose(self, worker: WorkerProcess, cause: Failure, words: Failed | None = None) -> None:
        """A worker is gone: a loss that the job gets over, or the end of the run."""
        is_joiner = worker.rank not in self._master.members
        is_over = self._kill_at is not None or self._signals.received is not None or self._verdict_at is not None
        is_error = words is not None and words.kind not in ("memory", "terminated")
        if is_over or (is_error and not is_joiner) or not self._master.can_lose(worker.rank):
            self._fail(cause)
            return
        self._master.gone(worker.rank, cause.message, time.time(), is_joiner_error=is_error)
        self._listener.notice(f"{cause.message}; the job goes on without it")
        self._event_log.write(LossEvent(time.time(), worker.rank, cause.message, self._master.failures))
        self._count_steps_of(self._master.members)

    def _count_steps_of(self, members: list[int]) -> None:
        there = {w.rank for w in self._fleet.workers if w.is_open or isinstance(w.last_words, Finished)}
        self._tell_steps(self._steps.change({m: self._first_step[m] for m in members if m in there}))

    def _act(self) -> None:
        """Do what the master says."""
        now = time.time()
        self._master.tick(now)
        while actions := self._master.actions():
            for action in actions:
                if isinstance(action, Start):
                    self._fleet.start([self._config(action.worker, is_joiner=True)])
                elif isinstance(action, Send):
                    self._fleet.find(action.worker).send(action.order)
                elif isinstance(action, Kill):
                    self._fleet.find(action.worker).dismiss()
                elif isinstance(action, GiveUp):
                    self._fail(Failure("died", action.message))
                elif isinstance(action, Say):
                    self._listener.notice(action.sentence)
                else:
                    self._begin(action, now)

    def _begin(self, begun: Begun, now: float) -> None:
        border = max(message.global_step for message in begun.formed)
        self._first_step.update(dict.fromkeys(begun.form.joiners, border))
        self._rescales.begin(begun, now)
        self._placements.append(Placement.parse(begun.form.placement))
        self._count_steps_of(begun.form.members)

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
        self._kill_hung(now)
        if self._kill_at is not None:
            if now >= self._kill_at:
                self._fleet.kill()
        elif self._signals.received is not None or (self._verdict_at is not None and now >= self._verdict_at):
            self._fleet.terminate()
            self._kill_at = now + GRACE_S

    def _kill_hung(self, now: float) -> None:
        """A process that says nothing for so long is stopped or hangs: it is lost, as if it had died."""
        paused, self._looked_at = now - self._looked_at > _OWN_PAUSE_S, now
        for worker in self._fleet.open_workers:
            if paused:
                worker.heard_at = now
            elif worker.has_started_script and now - worker.heard_at > self._spec.elasticity.hang_timeout_s:
                worker.kill()

    # -- ending ------------------------------------------------------------------------------------------------

    def _ending(self) -> Ending:
        last_words = [worker.last_words for worker in self._fleet.workers]
        finished = tuple(words for words in last_words if isinstance(words, Finished))
        is_complete = bool(finished) and len(finished) >= len(self._master.members)
        left = [words.worker_rank for words in finished]
        is_cut_short = bool(self._failures) or self._signals.received is not None
        if finished and self._has_session and not is_cut_short and all(words.digest is None for words in finished):
            self._failures.append(failure.without_end())
        return Ending(
            finished=finished,
            failure=failure.first_cause(self._failures, left) if self._failures else None,
            signal=None if is_complete else self._signals.received,
            placements=tuple(self._placements),
            has_session=self._has_session,
            global_steps=self._steps.finished_steps,
            seconds=0.0 if self._script_began is None else round(time.monotonic() - self._script_began, 3),
        )
