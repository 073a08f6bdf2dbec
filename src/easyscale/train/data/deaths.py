"""Where the death of a data worker is noticed: while a mini-batch is waited for, and nowhere else. Runs in the worker.

PyTorch's ``DataLoader`` sets a handler of SIGCHLD, once in a process, that raises in whatever line the main thread is
at: in the middle of the script's forward, where nobody can deal with it. While prepared loaders have data workers, that
handler is called in the moments alone in which we wait for them.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_MESSAGE = "DataLoader worker"

_theirs: Callable[[int, Any], Any] | None = None
_pools = 0
_is_waiting = False
_has_news = False


@contextmanager
def starting() -> Iterator[None]:
    """Around the start of data workers, which may set PyTorch's handler; ``release`` undoes it."""
    global _theirs, _pools
    yield
    _pools += 1
    if threading.current_thread() is not threading.main_thread():
        return
    now = signal.getsignal(signal.SIGCHLD)
    if now is not _on_child and getattr(now, "__module__", "").startswith("torch."):
        _theirs = now  # type: ignore[assignment]
    if _theirs is not None:
        signal.signal(signal.SIGCHLD, _on_child)


def release() -> None:
    """The data workers of one ``starting`` are gone; after the last ones PyTorch's handler is in force again."""
    global _pools
    _pools -= 1
    if _pools == 0 and signal.getsignal(signal.SIGCHLD) is _on_child:
        signal.signal(signal.SIGCHLD, _theirs)


@contextmanager
def noticed() -> Iterator[None]:
    """Around the wait for a mini-batch: here a death raises ``RuntimeError``."""
    global _is_waiting, _has_news
    _is_waiting = True
    try:
        if _has_news and _theirs is not None:
            _has_news = False
            _theirs(signal.SIGCHLD, None)
        yield
    finally:
        _is_waiting = False


def _on_child(number: int, frame: Any) -> None:
    global _has_news
    if _is_waiting and _theirs is not None:
        _theirs(number, frame)
    else:
        _has_news = True


def is_death(error: RuntimeError) -> bool:
    """Whether PyTorch says that a data worker has ended."""
    return str(error).startswith(_MESSAGE) and ("killed by signal" in str(error) or "exited unexpectedly" in str(error))


def warn(error: RuntimeError, left: int) -> None:
    """Say that data workers were replaced."""
    warnings.warn(
        f"{str(error).strip()} Its mini-batches are loaded again, with the same values, by new data workers ({left} "
        f"more may end like this). If memory ran out: fewer num_workers, a smaller prefetch_factor or more /dev/shm",
        RuntimeWarning,
        stacklevel=2,
    )


def describe(error: RuntimeError) -> str:
    """What to tell when no more data workers are replaced."""
    return (
        f"{str(error).strip()} No data worker is replaced any more (session.prepare(..., replace_data_workers=N) "
        f"allows N). If memory ran out: fewer num_workers, a smaller prefetch_factor or more /dev/shm; if the data "
        f"set crashes: num_workers=0 shows where"
    )
