"""Turns the end of a user's script into what the launcher shows: whose error, where, and the user's own frames.

Runs in the worker process.
"""

from __future__ import annotations

import dataclasses
import re
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch

from easyscale.core.errors import JobFailedError, RefusedError, UsageError
from easyscale.core.messages import Failed

_TRAIN = Path(__file__).parent.parent
_ABOVE_SCRIPT = (str(_TRAIN / "process"), str(_TRAIN / "worker.py"))
_TRANSPORTS = (str(Path(torch.__file__).parent), str(_TRAIN))
_PEER_LOST = re.compile(
    r"gloo/|connection (was )?(closed|reset|refused)|broken pipe|remote process exited|socket timeout|"
    r"timed out waiting|no available sockets",
    re.IGNORECASE,
)


def describe(error: BaseException, script: str, failed: Failed) -> Failed:
    """``failed`` completed with what ``error`` says; ``failed`` names worker, EST and step."""
    if isinstance(error, RefusedError) or (isinstance(error, UsageError) and not failed.global_step):
        return _with(failed, kind="refused", message=str(error), exit_code=2)
    if isinstance(error, UsageError):
        return _with(failed, kind="usage", message=str(error), traceback=_user_line(error, script))
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        message = "" if isinstance(error.code, int) else str(error.code)
        return _with(failed, kind="exit", message=message, exit_code=code & 0xFF or 1)
    return _with(
        failed,
        kind="error",
        message="".join(traceback.format_exception_only(error)).strip(),
        traceback=_user_traceback(error, script),
        is_secondary=is_peer_lost(error),
    )


def terminated(failed: Failed) -> Failed:
    """``failed`` for a worker that somebody else than the launcher asked to end."""
    return _with(failed, kind="terminated", message=signal.SIGTERM.name, exit_code=128 + signal.SIGTERM)


def is_peer_lost(error: BaseException) -> bool:
    """Whether ``error`` looks like the end of another worker, seen from here."""
    return any(isinstance(cause, JobFailedError) or _is_broken_transport(cause) for cause in _with_causes(error))


def _is_broken_transport(error: BaseException) -> bool:
    """A broken pipe of the user's own (a download, a subprocess) is no lost worker."""
    if not isinstance(error, RuntimeError | OSError) or not _PEER_LOST.search(str(error)):
        return False
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return "gloo/" in str(error) or any(file.startswith(_TRANSPORTS) for file in files)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def _user_traceback(error: BaseException, script: str) -> str:
    frames = _from_script(error.__traceback__, script)
    return "".join(traceback.TracebackException(type(error), error, frames).format())


def _user_line(error: BaseException, script: str) -> str:
    """The innermost line of the script itself that led to ``error``."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
    return "".join(traceback.format_list(lines[-1:]))


def _from_script(frames: TracebackType | None, script: str) -> TracebackType | None:
    """The traceback without our frames above the script; a syntax error in the script has no frame of its own."""
    whole = frames
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    return frames if frames is not None else _without_ours(whole)


def _without_ours(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_ABOVE_SCRIPT):
        frames = frames.tb_next
    return frames


def _with(failed: Failed, **facts: object) -> Failed:
    return dataclasses.replace(failed, **facts)  # type: ignore[arg-type]
