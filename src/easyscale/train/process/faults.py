"""Named points at which a worker can be told to fail: for tests and for ``verify --kill``. Runs in the worker process.

Nothing happens at a point unless the launcher gave this worker a fault for it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

from easyscale.core.job import Fault
from easyscale.train.checkpoint.write import POINTS as OF_CHECKPOINTS

POINTS = (
    "startup.session",
    "startup.first_loop",
    "joiner.ready",
    "joiner.arrived",
    "step.begin",
    "step.in_turn",
    "step.before_reduction",
    "step.after_reduction",
    "operation.before_barrier",
    "operation.after_barrier",
    "step.outer_body",
    "step.end",
    "sum.before",
    "sum.after",
    "evaluation.in_loop",
    "recovery.begin",
    "rescale.border",
    "rescale.before_meeting",
    "rescale.before_state",
    "rescale.in_state",
    "rescale.after_state",
    "rescale.formed",
    "rescale.done",
    *OF_CHECKPOINTS,
)

_armed: list[Fault] = []
_where: Callable[[], tuple[int, tuple[int, ...]]] = lambda: (0, ())  # noqa: E731


def arm(faults: Sequence[Fault], worker_rank: int) -> None:
    """Fail at these points from now on, each once."""
    _armed[:] = [fault for fault in faults if fault.worker_rank in (None, worker_rank)]


def locate(where: Callable[[], tuple[int, tuple[int, ...]]]) -> None:
    """Ask ``where`` for the global step and the local virtual ranks."""
    global _where
    _where = where


def reach(point: str) -> None:
    """The script or what runs it has come to ``point``."""
    if not _armed:
        return
    step, ranks = _where()
    for fault in list(_armed):
        is_here = fault.step in (None, step) and (fault.virtual_rank is None or fault.virtual_rank in ranks)
        if fault.point == point and is_here:
            _armed.remove(fault)
            if fault.claim is None or _claim(fault.claim):
                _fail(fault.action)


def _claim(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def _fail(action: str) -> None:
    if action == "exit":
        os._exit(7)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}[action])
