"""Runs a script on worker processes of this machine, from the first fork to the last clean-up.

Runs in the launcher, in one thread: one ``wait`` over all connections, process ends and signals, so nothing can wait
for something else in a circle. What the workers do next is the job master's to say (``master``). Whatever happens, no
process outlives the run.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from easyscale.core.errors import EasyScaleError, JobFailedError
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
    Resumed,
    Saved,
    StepReport,
)
from easyscale.core.placement import Placement
from easyscale.launch import failure
from easyscale.launch.actions import Begun, GiveUp, Kill, Say, Send, Start
from easyscale.launch.answers import answer
from easyscale.launch.configs import Configs
from easyscale.launch.control import Control
from easyscale.launch.ending import Ending
from easyscale.launch.failure import Failure
from easyscale.launch.fleet import Fleet, rendezvous_store
from easyscale.launch.folder import EventLog, RunFolder
from easyscale.launch.master import Master
from easyscale.launch.planning import Planning
from easyscale.launch.reports import Reports
from easyscale.launch.signals import StopSignals
from easyscale.launch.spec import Listener, RunSpec
from easyscale.launch.verdict import GRACE_S, Verdict
from easyscale.launch.worker_process import WorkerProcess

_TICK_S = 0.25


class LocalRun:
    """One run: start the workers, listen until all have ended, tell the listener and the event log."""

    def __init__(
        self, spec: RunSpec, folder: RunFolder, listener: Listener, event_log: EventLog, control: Control
    ) -> None:
        self._control = control
        self._spec = spec
        self._folder = folder
        self._listener = listener
        self._configs = Configs(spec, str(folder.logs.absolute()), str(Path.cwd()), store_path="")
        self._fleet = Fleet()
        self._master = Master(spec.placement, spec.elasticity, "")
        self._placements = [spec.placement]
        self._reports = Reports(self._master.members, event_log, listener)
        self._planning = Planning(spec.elasticity, self._reports.planned, folder.write_profile)
        self._has_session = False
        self._is_output_closed = False
        self._signals = StopSignals()
        self._verdict = Verdict(self._signals, spec.grace_s if spec.checkpoint is not None else 0.0)
        self._script_began: float | None = None

    def execute(self) -> Ending:
        """Run to the end. Never raises for what the script or a worker does."""
        with self._signals:
            try:
                with rendezvous_store() as store_path:
                    self._configs = replace(self._configs, store_path=store_path)
                    self._master = Master(self._spec.placement, self._spec.elasticity, store_path)
                    self._start(self._master.members)
                    while self._fleet.open_workers:
                        self._listen()
                        self._act()
                        self._fleet.kill_silent(time.monotonic(), self._spec.elasticity.hang_timeout_s)
                        self._verdict.execute(self._fleet, self._can_save)
            except JobFailedError as error:
                self._fail(Failure("died", str(error)))
            except KeyboardInterrupt:
                self._listener.notice("second signal: killing all workers at once")
            finally:
                self._signals.ignore()
                self._fleet.remove()
                self._reports.end()
                self._planning.end()
        return self._ending()

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
        reply = answer(request, self._master, knows_ests=self._spec.is_num_ests_explicit or self._has_session)
        if "to" in reply:
            self._planning.hold(is_held="placement" in request)
            self._listener.notice(f"asked to go on with placement {reply['to']}")
        return reply

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
            self._planning.heard(message)
            self._count(self._reports.step(message))
        elif isinstance(message, Logged):
            self._reports.log(message)
        elif isinstance(message, Finished):
            worker.last_words = message
            if message.num_ests:
                self._open(message.num_ests)
            self._master.finished(worker.rank, time.time())
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
            self._reports.moved(message)
        elif isinstance(message, Resumed):
            self._reports.resumed(message)
            self._master.resumed(message.global_step)
        elif isinstance(message, Saved):
            self._reports.saved(message)
            if message.is_ordered:
                self._verdict.saved()
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

    def _progress(self, worker: WorkerProcess) -> str:
        if not worker.has_started_script:
            return "before it could run the script"
        return self._reports.progress

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
        is_error = words is not None and words.kind not in ("memory", "terminated")
        if self._verdict.is_pending or (is_error and not is_joiner) or not self._master.can_lose(worker.rank):
            self._fail(cause)
            return
        self._master.gone(worker.rank, cause.message, time.time(), is_joiner_error=is_error)
        self._listener.notice(f"{cause.message}; the job goes on without it")
        self._reports.lost(worker.rank, cause.message, self._master.failures)
        self._wait_for(self._master.members)

    def _wait_for(self, members: list[int]) -> None:
        there = {w.rank for w in self._fleet.workers if w.is_open or isinstance(w.last_words, Finished)}
        self._count(self._reports.wait_for(m for m in members if m in there))

    def _count(self, steps: list[int]) -> None:
        for step in steps:
            self._master.progressed(step, time.time())
            self._planning.finished(step, self._master, time.time())

    def _act(self) -> None:
        """Do what the master says."""
        now = time.time()
        self._master.tick(now)
        while actions := self._master.actions():
            for action in actions:
                if isinstance(action, Start):
                    self._start([action.worker], is_joiner=True)
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

    def _start(self, workers: list[int], *, is_joiner: bool = False) -> None:
        alive = {worker.rank for worker in self._fleet.open_workers} | set(workers)
        speeds = {worker: self._planning.start(worker, alive) for worker in workers}
        placement = self._master.placement
        self._fleet.start(self._configs.of(w, placement, speeds[w], is_joiner=is_joiner) for w in workers)

    def _can_save(self) -> bool:
        return self._master.roster.is_ready and self._reports.last_finished is not None

    def _begin(self, begun: Begun, now: float) -> None:
        self._reports.begin(begun, now)
        self._placements.append(Placement.parse(begun.form.placement))
        self._wait_for(begun.form.members)

    def _fail(self, cause: Failure) -> None:
        self._verdict.note(cause)

    # -- ending ------------------------------------------------------------------------------------------------

    def _ending(self) -> Ending:
        last_words = [worker.last_words for worker in self._fleet.workers]
        finished = tuple(words for words in last_words if isinstance(words, Finished))
        is_complete = bool(finished) and len(finished) >= len(self._master.members)
        left = [words.worker_rank for words in finished]
        has_end = any(words.digest is not None for words in finished) or not (finished and self._has_session)
        if not has_end and not self._verdict.is_pending:
            self._fail(failure.without_end())
        return Ending(
            finished=finished,
            failure=self._verdict.cause(left),
            signal=None if is_complete else self._signals.received,
            placements=tuple(self._placements),
            has_session=self._has_session,
            global_steps=self._reports.finished_steps,
            seconds=0.0 if self._script_began is None else round(time.monotonic() - self._script_began, 3),
        )
