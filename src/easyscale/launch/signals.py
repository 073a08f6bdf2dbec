"""Ctrl-C, SIGTERM and SIGHUP of the launcher, as something that a ``wait`` call can wait for.

Runs in the launcher's main thread. The first signal asks for a clean stop; the second one raises KeyboardInterrupt
wherever the launcher is, so that it kills at once.
"""

from __future__ import annotations

import signal
import socket
import threading
from types import FrameType
from typing import Any

from easyscale.launch.child import STOP_SIGNALS


class StopSignals:
    """Context manager; ``received`` is the first signal that came. Restores everything at its end."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._is_ignoring = False
        self._old_handlers: dict[signal.Signals, Any] = {}
        self._reader, self._writer = socket.socketpair()
        self._old_wakeup_fd = -1

    def __enter__(self) -> StopSignals:
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        if threading.current_thread() is not threading.main_thread():
            return self
        self._old_wakeup_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._old_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._old_handlers:
            signal.set_wakeup_fd(self._old_wakeup_fd)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        """Readable when a signal came."""
        return self._reader.fileno()

    def drain(self) -> None:
        """Read what woke us up; which signal it was is in ``received``."""
        try:
            self._reader.recv(4096)
        except BlockingIOError:
            return

    def ignore(self) -> None:
        """From here on further signals change nothing: everything is being killed already."""
        self._is_ignoring = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_ignoring:
            return
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
