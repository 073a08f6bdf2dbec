"""The worker's side of the connection to its launcher: whole messages, in order, from any thread.

Runs in the worker process. A message is handed to the kernel before ``send`` returns, so what was sent survives the
death of this process. Forked children (data workers) have no channel: sending does nothing there.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import FrameType

from easyscale.core.messages import Message, StepReport, decode, encode
from easyscale.core.orders import Order

BATCH_S = 0.1
WATCH_S = 0.2
ALIVE_S = 0.25
"""How often a worker says that it runs; the launcher waits far longer before it calls one hung."""


class Termination:
    """SIGTERM raises ``SystemExit(143)`` in the main thread, so that the user's ``finally`` blocks run.

    Never inside ``held()``: a message cut in two would leave the launcher unable to read the next one.

    Attributes:
        on_request: called instead where it is set and the launcher has not said that the run ends: somebody else asks
            this worker to end, and the job can do without it.
    """

    def __init__(self) -> None:
        self.is_raised = False
        self.on_request: Callable[[], None] | None = None
        self._has_asked = False
        self._is_stopping = False
        self._is_pending = False
        self._depth = 0

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        os.register_at_fork(after_in_child=self._forget)

    def stop(self) -> None:
        """The launcher ends the run: from now on SIGTERM means that. From any thread."""
        self._is_stopping = True
        if self._is_pending:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    @contextmanager
    def held(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._is_pending and not self._depth:
                self._act()

    def disarm(self) -> None:
        """The script has ended, there is nothing left to unwind: what still has to run at exit runs undisturbed."""
        self.is_raised = True

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._is_pending = True
        if not self._depth:
            self._act()

    def _act(self) -> None:
        """Once: a second SIGTERM must not break off the clean-up that the first one began."""
        if self.is_raised:
            return
        if self.on_request is not None and not self._is_stopping:
            if not self._has_asked:
                self._has_asked = True
                self.on_request()  # sends a message, in which another signal is held
            return
        self._is_pending = False
        self.is_raised = True
        raise SystemExit(128 + signal.SIGTERM)

    def _forget(self) -> None:
        """A forked child ends at once on SIGTERM, as it does under plain ``python``."""
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Channel:
    """Sends messages; step reports are gathered for up to ``BATCH_S`` so that short steps cost no system call."""

    def __init__(self, connection: Connection, termination: Termination) -> None:
        self._connection = connection
        self._termination = termination
        self._lock = threading.RLock()
        self._reports: list[StepReport] = []
        self._sent_at = 0.0
        self._is_open = True
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def send(self, message: Message) -> None:
        """Hand ``message`` to the launcher, after the step reports that came before it."""
        if not self._is_open:
            return
        with self._termination.held(), self._lock:
            self._send_reports()
            self._write(message)

    def report(self, report: StepReport) -> None:
        """Hand over a step report, soon."""
        if not self._is_open:
            return
        with self._termination.held(), self._lock:
            self._reports.append(report)
            if time.monotonic() - self._sent_at >= BATCH_S:
                self._send_reports()

    def flush(self) -> None:
        if not self._is_open:
            return
        with self._termination.held(), self._lock:
            self._send_reports()

    def watch(self, on_order: Callable[[Order], None], alive: Message, on_launcher_gone: Callable[[], None]) -> None:
        """Start the thread that takes orders, says that the process is ``alive``, sends reports that wait too long, and
        notices the launcher's end, however it came.
        """
        thread = threading.Thread(
            target=self._watch, args=(on_order, alive, on_launcher_gone), name="easyscale-launcher-watch", daemon=True
        )
        thread.start()

    def _watch(self, on_order: Callable[[Order], None], alive: Message, on_launcher_gone: Callable[[], None]) -> None:
        said_at = time.monotonic()
        try:
            while True:
                if self._connection.poll(WATCH_S):
                    on_order(decode(self._connection.recv_bytes()))
                self.flush()
                if time.monotonic() - said_at >= ALIVE_S:
                    said_at = time.monotonic()
                    self.send(alive)
        except (EOFError, OSError):
            on_launcher_gone()

    def _send_reports(self) -> None:
        for report in self._reports:
            self._write(report)
        self._reports.clear()
        self._sent_at = time.monotonic()

    def _write(self, message: Message) -> None:
        """When the launcher is gone, the thread that watches it ends this process: no error for the script to see."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send_bytes(encode(message))

    def _leave_to_parent(self) -> None:
        """In a forked child: the launcher must see the end of the connection when the worker itself ends."""
        self._is_open = False
        self._connection.close()
