"""Which of several workers' ends is the cause, and the sentences that say it. Runs in the launcher."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from easyscale.core.messages import Failed
from easyscale.launch.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run ended.

    Attributes:
        message: the cause in one sentence.
        details: the user's traceback or line, "" if there is none.
        where: which worker, EST and step, and where the log is; "" if that says nothing.
    """

    kind: str
    message: str
    details: str = ""
    where: str = ""
    exit_code: int = 1
    worker_rank: int | None = None
    virtual_rank: int | None = None
    global_step: int | None = None
    is_secondary: bool = False


def first_cause(failures: Sequence[Failure], finished_workers: Sequence[int]) -> Failure:
    """The earliest that is not the mere consequence of another worker's end.

    Args:
        failures: in the order in which they were noticed.
        finished_workers: those whose script had ended well; the others may miss them.
    """
    cause = next((failure for failure in failures if not failure.is_secondary), failures[0])
    if not cause.is_secondary or not finished_workers:
        return cause
    noun = "worker" if len(finished_workers) == 1 else "workers"
    gone = f"{noun} {', '.join(map(str, finished_workers))} had already ended the script"
    return replace(cause, where=f"{cause.where} ({gone})")


def from_message(failed: Failed, ranks: tuple[int, ...], folder: RunFolder) -> Failure:
    """What a worker said about its script's end."""
    if failed.kind == "terminated":
        return from_signal(failed.worker_rank, signal.SIGTERM, failed.global_step, ranks, folder)
    return Failure(
        kind=failed.kind,
        message=failed.message or f"the script ended with exit code {failed.exit_code}",
        details=failed.traceback,
        where="" if failed.kind == "refused" else _where(failed, ranks, folder),
        exit_code=failed.exit_code,
        worker_rank=failed.worker_rank,
        virtual_rank=failed.virtual_rank,
        global_step=failed.global_step,
        is_secondary=failed.is_secondary,
    )


def from_death(
    worker_rank: int, exit_code: int | None, progress: str, ranks: tuple[int, ...], folder: RunFolder
) -> Failure:
    """A worker process that ended without a word. ``progress`` says how far the job had come."""
    if exit_code is not None and exit_code < 0:
        return _killed(worker_rank, -exit_code, progress, ranks, folder)
    end = "cut its connection" if exit_code is None else f"ended with exit code {exit_code}"
    message = f"{_worker(worker_rank, ranks)} {end} without a word, {progress}"
    return Failure("died", _with_log(message, folder, worker_rank), worker_rank=worker_rank)


def without_end() -> Failure:
    """All workers that are left have ended the script, and none of them as the one of virtual rank 0."""
    return Failure(
        "died",
        "the worker of virtual rank 0 was lost after its last global step, and the others had gone past it: what the "
        "script does at its end where session.is_main (saving the model, say) may not have been done: run it again, "
        "or resume from a checkpoint",
    )


def from_signal(
    worker_rank: int, number: signal.Signals, global_step: int | None, ranks: tuple[int, ...], folder: RunFolder
) -> Failure:
    progress = "before any global step" if not global_step else f"in global step {global_step}"
    return _killed(worker_rank, number, progress, ranks, folder)


def _killed(worker_rank: int, number: int, progress: str, ranks: tuple[int, ...], folder: RunFolder) -> Failure:
    message = f"{_worker(worker_rank, ranks)} was ended by {_signal_name(number)}, {progress}"
    if number == signal.SIGKILL:
        message += " (when nobody sent it: the kernel does this when memory runs out)"
    return Failure("died", _with_log(message, folder, worker_rank), worker_rank=worker_rank)


def _where(failed: Failed, ranks: tuple[int, ...], folder: RunFolder) -> str:
    step = "" if failed.global_step is None else f", global step {failed.global_step}"
    if failed.virtual_rank is None:
        place, log = f"worker {failed.worker_rank}", folder.worker_log(failed.worker_rank)
        if len(ranks) > 1:
            place = _worker(failed.worker_rank, ranks)
    else:
        place = f"EST {failed.virtual_rank} (worker {failed.worker_rank})"
        log = folder.rank_log(failed.virtual_rank)
    return f"error in {place}{step}; log: {log}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _worker(worker_rank: int, ranks: tuple[int, ...]) -> str:
    if not ranks:
        return f"worker {worker_rank}"
    noun = "virtual rank" if len(ranks) == 1 else "virtual ranks"
    return f"worker {worker_rank} ({noun} {', '.join(map(str, ranks))})"


def _with_log(message: str, folder: RunFolder, worker_rank: int) -> str:
    return f"{message}; log: {folder.worker_log(worker_rank)}"
