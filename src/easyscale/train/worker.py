"""Entry of a worker process: becomes one worker of a job, runs the user's script, says how it ended.

Runs in the worker process, started by the launcher, which it never outlives: when the connection ends, this process
and everything it started are killed. Ctrl-C does not reach it (it leads a session of its own); SIGTERM unwinds the
script.
"""

from __future__ import annotations

import atexit
import faulthandler
import multiprocessing.util
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from easyscale.core.messages import Alive, Failed, Finished, Hello, Leaving, Left, Message, Ready, WorkerConfig
from easyscale.core.orders import Order, Save, Stop
from easyscale.core.placement import Placement
from easyscale.train import runtime
from easyscale.train.elastic.mailbox import Mailbox
from easyscale.train.elastic.saver import Saver
from easyscale.train.elastic.standing import RetiredError
from easyscale.train.process import failure, faults, script
from easyscale.train.process.channel import Channel, Termination
from easyscale.train.process.observer import DumpTaken, LauncherObserver
from easyscale.train.process.output import OutputRouter
from easyscale.train.process.pace import Pace

_LAUNCHER_END_S = 1.0
"""Between the end of a dying launcher's connection and its own."""
_OTHERS_END_S = 1.0
"""How long a worker that writes no checkpoint outlives its border then. It cannot see how far the writer is."""


def main(config_json: str, connection: Connection) -> None:
    """Be worker ``config.worker_rank``; ends with ``SystemExit``."""
    config = WorkerConfig.from_json(config_json)
    _separate(config)
    termination, mailbox = Termination(), Mailbox()
    channel = Channel(connection, termination)
    saver = None if config.checkpoint is None else Saver(config.checkpoint, config.worker_rank, channel.send)

    def take(order: Order) -> None:
        if isinstance(order, Stop):
            termination.stop()
        elif isinstance(order, Save):
            if saver is not None:
                saver.order()
        else:
            mailbox.put(order)

    channel.watch(take, Alive(config.worker_rank), lambda: _end_with_launcher(config, saver))
    faults.arm(config.faults, config.worker_rank)
    placement = Placement.parse(config.placement) if config.placement is not None else None
    is_main = not config.is_joiner and config.worker_rank == (placement.worker_of(0) if placement else 0)
    output = OutputRouter(config.worker_rank, Path(config.log_dir), is_main, channel.send)
    output.install()
    faulthandler.enable(file=2)
    pace = Pace([(int(step), speed) for step, speed in config.speeds])
    observer = LauncherObserver(config.worker_rank, is_main, config.watch, channel, output, pace)

    def tell(message: Message) -> None:
        if isinstance(message, Ready):  # from here on the job can go on without this worker
            termination.on_request = lambda: channel.send(Leaving(config.worker_rank))
        channel.send(message)

    enrolment = None
    if config.is_elastic:
        enrolment = runtime.Enrolment(
            config.worker_rank, mailbox, tell, config.is_joiner, tuple(config.stops), observer.place, saver
        )
    runtime.install(_context(config, placement, observer, enrolment))
    channel.send(Hello(config.worker_rank, os.getpid()))
    termination.install()
    ending = _Run(config, observer, termination).to_end()
    with termination.held():
        output.turn(None)
        if isinstance(ending, Failed):
            output.log(ending.virtual_rank, ending.traceback or f"{ending.message}\n")
        channel.send(ending)
        termination.disarm()
    atexit._run_exitfuncs()
    sys.exit(ending.exit_code if isinstance(ending, Failed) else 0)


def _separate(config: WorkerConfig) -> None:
    """Become independent of the process that forked us, before anything of the user's runs."""
    os.setsid()
    os.chdir(config.working_dir)
    # One machine, so one interface; by default gloo resolves the host name, which fails on machines without DNS.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    # A forkserver forces its own start method on its children; the script (its data workers) gets Python's default.
    multiprocessing.set_start_method(None, force=True)


def _end_with_launcher(config: WorkerConfig, saver: Saver | None) -> None:
    """The connection is cut: if the launcher is gone and cannot clean up, leave nothing of the run but a checkpoint."""
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    launcher.join(_LAUNCHER_END_S)
    if saver is not None and saver.has_begun:
        saver.order()
        saver.stopped.wait(config.grace_s)
        if not saver.is_writer:  # the one that writes may need this one to come to its border
            time.sleep(_OTHERS_END_S)
    if not launcher.is_alive():
        for folder in (Path(config.store_path).parent, multiprocessing.util.get_temp_dir()):
            shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _context(
    config: WorkerConfig,
    placement: Placement | None,
    observer: LauncherObserver,
    enrolment: runtime.Enrolment | None,
) -> runtime.WorkerContext:
    return runtime.WorkerContext(
        worker_rank=config.worker_rank,
        num_workers=config.num_workers,
        placement=placement,
        store_path=config.store_path,
        overrides=config.overrides,
        is_num_ests_explicit=config.is_num_ests_explicit,
        watch=config.watch,
        observer=observer,
        enrolment=enrolment,
        may_move=config.is_elastic and config.may_move,
    )


class _Run:
    """The user's script in this process, and the words about its end."""

    def __init__(self, config: WorkerConfig, observer: LauncherObserver, termination: Termination) -> None:
        self._config = config
        self._observer = observer
        self._termination = termination
        self._path = script.absolute_path(config.script)

    def to_end(self) -> Finished | Failed | Left:
        try:
            self._run_script()
            return self._finished()
        except RetiredError:
            self._close_session()
            return Left(self._config.worker_rank)
        except BaseException as error:  # noqa: BLE001 - whatever ends the script is the launcher's to tell
            return self._failed(error)

    def _run_script(self) -> None:
        try:
            script.run_as_main(self._path, self._config.script, self._config.search_path)
        except DumpTaken:
            return
        except SystemExit as error:
            if error.code:
                raise

    def _finished(self) -> Finished:
        worker_rank, session = self._config.worker_rank, self._observer.find_session()
        if session is None:
            return Finished(worker_rank, global_steps=self._observer.steps, num_ests=0)
        with suppress(DumpTaken):
            session.finish()
        finished = Finished(
            worker_rank,
            global_steps=session.global_step,
            num_ests=session.num_ests,
            digest=session.digest() if session.is_main else None,
            bytes_sent=session.bytes_sent,
        )
        session.close()
        return finished

    def _close_session(self) -> None:
        session = self._observer.find_session()
        if session is not None:
            session.close()

    def _failed(self, error: BaseException) -> Failed:
        failed = Failed(
            self._config.worker_rank,
            kind="error",
            message="",
            virtual_rank=self._observer.failed_turn,
            global_step=self._observer.failed_step,
        )
        if self._termination.is_raised and isinstance(error, SystemExit):
            return failure.terminated(failed)
        return failure.describe(error, self._path, failed)
