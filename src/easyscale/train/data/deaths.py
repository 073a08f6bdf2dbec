"""Where the death of a data worker is noticed: while its pool waits for a mini-batch, and nowhere else. Runs in the
worker.

PyTorch's ``DataLoader`` sets a handler of SIGCHLD, once in a process, that raises in whatever line the main thread is
at: in the middle of the script's forward, where nobody can deal with it. While there are pools, ours stands in its
place. It raises only in the pool that waits, and only where the process was one of its own.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

from torch.multiprocessing import reductions
from torch.utils.data._utils import signal_handling

_LAST_WORDS_S = 0.5
"""How long the end of a process may take to show, after its connection has broken."""

_torchs: Any = None
_before: Any = signal.SIG_DFL
_pools = 0
_waiter: Callable[[], None] | None = None


class WorkerEndedError(Exception):
    """A data worker is gone that should not be."""


@contextmanager
def starting() -> Iterator[None]:
    """Around the start of data workers, which may set PyTorch's handler; ``release`` undoes it."""
    global _torchs, _before, _pools
    _pools += 1
    if threading.current_thread() is threading.main_thread():
        before = signal.getsignal(signal.SIGCHLD)
        # first PyTorch's, so that it does not come in between while data workers start
        signal_handling._set_SIGCHLD_handler()
        now = signal.getsignal(signal.SIGCHLD)
        if now is not before:
            _torchs = now
        if before is not _on_child:
            _before = signal.SIG_DFL if before is _torchs else before
        signal.signal(signal.SIGCHLD, _on_child)
    yield


def release() -> None:
    """The data workers of one ``starting`` are gone; after the last ones PyTorch's handler is in force again."""
    global _pools
    _pools -= 1
    if _pools == 0 and signal.getsignal(signal.SIGCHLD) is _on_child:
        signal.signal(signal.SIGCHLD, _before if _torchs is None else _torchs)


@contextmanager
def noticed(check: Callable[[], None]) -> Iterator[None]:
    """Around the wait for a mini-batch: ``check`` is called now, and whenever a process ends."""
    global _waiter
    _waiter = check
    try:
        check()
        yield
    finally:
        _waiter = None


def _on_child(number: int, frame: Any) -> None:
    if callable(_before):
        _before(number, frame)
    if _waiter is not None and not _is_untimely(frame):
        _waiter()


def _is_untimely(frame: Any) -> bool:
    """Whether an exception raised now would be swallowed (in a finalizer), or leave what it interrupts open (the socket
    that a tensor comes over). The death is noticed a little later then, by the next ``check`` or by PyTorch's own."""
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename == reductions.__file__:
            return True
        frame = frame.f_back
    return False


def raise_if_dead(processes: list[Any]) -> None:
    """Raise for the first of these data workers that has ended.

    Raises:
        WorkerEndedError: it says which one, and how.
    """
    for process in processes:
        if process.exitcode is not None:
            raise WorkerEndedError(f"a data worker (pid {process.pid}) {_how(process.exitcode)}")


def explain(error: Exception, processes: list[Any]) -> None:
    """After an error that may have come from a death: if it did, raise that instead.

    A mini-batch is handed over by the process that loaded it, so one that has died cannot any more.

    Raises:
        WorkerEndedError: a data worker has ended.
    """
    if processes and "Caught " not in str(error):  # that would be the data set's own, with its traceback
        ended = wait([process.sentinel for process in processes], _LAST_WORDS_S)
        for process in processes:
            if process.sentinel in ended:
                process.join()  # its connections end before it can be asked how it ended
    raise_if_dead(processes)


def _how(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exited with status {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (that is how the system ends a process when memory runs out)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


def warn(error: WorkerEndedError, left: int) -> None:
    """Say that data workers were replaced."""
    warnings.warn(
        f"{error}: what it had to load is loaded again, with the same values, by new data workers ({left} more may end "
        f"like this). If memory ran out: fewer num_workers, a smaller prefetch_factor or more /dev/shm",
        RuntimeWarning,
        stacklevel=2,
    )


def describe(error: WorkerEndedError) -> str:
    """What to tell when no more data workers are replaced."""
    return (
        f"{error}, and no more of them are replaced (session.prepare(..., replace_data_workers=N) allows N). If memory "
        f"ran out: fewer num_workers, a smaller prefetch_factor or more /dev/shm; if the dataset crashes: "
        f"num_workers=0 shows where"
    )
