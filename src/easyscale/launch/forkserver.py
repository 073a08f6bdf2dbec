"""The process that has torch imported and forks workers from there, in milliseconds instead of seconds.

Runs in the launcher. It serves any number of runs one after another; nothing of it is left behind.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker

from easyscale.core.errors import JobFailedError
from easyscale.launch import child

_MAX_FOLDER_NAME = 60
_TRACKER_S = 2.0
"""Python's resource tracker removes shared memory that killed processes left behind; that is worth a moment."""


@contextmanager
def running_forkserver() -> Iterator[None]:
    """Within the block a forkserver runs; at its end it is gone, and so is Python's resource tracker.

    Raises:
        JobFailedError: the system gives no process, or no place for its socket.
    """
    server, tracker = forkserver._forkserver, resource_tracker._resource_tracker
    was_tracked = _pid_of(tracker) is not None
    multiprocessing.set_forkserver_preload(child.PRELOAD)
    try:
        _start()
        yield
    finally:
        # Its workers are gone; a polite end would only unload torch, which takes longer than a short run.
        _stop(server._stop, _pid_of(server), patience_s=0.0)  # type: ignore[attr-defined]
        if not was_tracked:
            _stop(tracker._stop, _pid_of(tracker), patience_s=_TRACKER_S)  # type: ignore[attr-defined]


def _start() -> None:
    try:
        # First the tracker: it protects itself, and unblocks signals here when it is started.
        resource_tracker.ensure_running()
        with _blocked(child.STOP_SIGNALS), _short_temporary_folder(), _fixed_string_hashes():
            forkserver.ensure_running()
    except OSError as error:
        raise JobFailedError(f"the process that starts workers could not be started ({error})") from error


@contextmanager
def _fixed_string_hashes() -> Iterator[None]:
    """Let sets of strings have one order in all runs of a job, unless the user says otherwise.

    Python draws a secret for string hashes at the start of a process, here the forkserver's; workers inherit it.
    """
    if "PYTHONHASHSEED" in os.environ:
        yield
        return
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        yield
    finally:
        del os.environ["PYTHONHASHSEED"]


@contextmanager
def hidden_main_module() -> Iterator[None]:
    """Hide our ``__main__`` from workers: multiprocessing would run it in each, and they get the user's script."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[None]:
    """A process started meanwhile never sees these signals, even when a terminal sends them to the whole group.

    A forkserver that died of Ctrl-C would take the news of its workers' ends with it. Workers unblock them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _short_temporary_folder() -> Iterator[None]:
    """The forkserver's socket is a temporary file, and the name of a socket has about 100 characters at most."""
    before = tempfile.tempdir
    if len(tempfile.gettempdir()) > _MAX_FOLDER_NAME:
        tempfile.tempdir = "/tmp"
    try:
        yield
    finally:
        tempfile.tempdir = before


def _pid_of(helper: object) -> int | None:
    return getattr(helper, "_forkserver_pid", None) or getattr(helper, "_pid", None)


def _stop(stop: Callable[[], None], pid: int | None, patience_s: float) -> None:
    """End a helper process. It waits for all who hold its pipe; a stray grandchild of a script must not keep us."""
    if pid is None:
        return
    waiting = threading.Thread(target=stop, daemon=True)
    waiting.start()
    waiting.join(patience_s)
    if waiting.is_alive():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        waiting.join()
