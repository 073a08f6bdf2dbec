"""A run and everything it leaves behind: events, ``result.json``, a value for whoever asked. Runs in the launcher."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from typing import Any

from easyscale.core import events
from easyscale.core.messages import Finished
from easyscale.launch.control import Control
from easyscale.launch.ending import Ending
from easyscale.launch.engine import LocalRun
from easyscale.launch.failure import Failure
from easyscale.launch.folder import EventLog, RunFolder
from easyscale.launch.spec import Listener, RunSpec
from easyscale.launch.versions import DISTRIBUTION, package_version


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        state: "finished", "failed" or "stopped" (by a signal).
        error: one sentence if it did not finish.
        seconds: from the start of the script, so without what it takes to start processes.
        num_ests: None when the script never opened a session.
        placements: those of all generations.
        num_workers: of the last one.
    """

    state: str
    exit_code: int
    error: str | None
    failure: Failure | None
    digest: str | None
    global_steps: int
    num_ests: int | None
    placements: tuple[str, ...]
    num_workers: int
    seconds: float
    bytes_sent: tuple[int, ...]
    folder: RunFolder

    def to_json(self) -> dict[str, Any]:
        """What ``result.json`` holds."""
        body: dict[str, Any] = {
            "state": self.state,
            "digest": self.digest,
            "global_steps": self.global_steps,
            "generations": len(self.placements),
            "num_ests": self.num_ests,
            "placements": list(self.placements),
            "seconds": self.seconds,
            "bytes_sent": list(self.bytes_sent),
        }
        return body if self.error is None else {**body, "error": self.error}


def run(spec: RunSpec, folder: RunFolder, listener: Listener) -> RunResult:
    """Run a script to its end; call it inside ``running_forkserver()``."""
    with EventLog(folder.path / events.FILE_NAME, listener.notice) as event_log:
        event_log.write(_start_event(spec))
        with Control(folder.path, listener.notice) as control:
            ending = LocalRun(spec, folder, listener, event_log, control).execute()
        result = _result(ending, folder)
        if result.failure is not None:
            event_log.write(_failure_event(result.failure))
        event_log.write(_end_event(result))
    try:
        folder.write_result(result.to_json())
    except OSError as error:
        listener.notice(f"cannot write the result to {folder.path} ({error.strerror})")
    return result


def _result(ending: Ending, folder: RunFolder) -> RunResult:
    state, exit_code, error = _outcome(ending)
    main = next((words for words in ending.finished if words.digest is not None), None)
    return RunResult(
        state=state,
        exit_code=exit_code,
        error=error,
        failure=ending.failure if state == "failed" else None,
        digest=main.digest if main and state == "finished" else None,
        global_steps=_global_steps(ending, main),
        num_ests=ending.placements[-1].num_ests if ending.has_session else None,
        placements=tuple(map(str, ending.placements)),
        num_workers=ending.placements[-1].num_workers,
        seconds=ending.seconds,
        bytes_sent=tuple(words.bytes_sent for words in ending.finished),
        folder=folder,
    )


def _outcome(ending: Ending) -> tuple[str, int, str | None]:
    """State, exit code and sentence."""
    if ending.failure is not None:
        return "failed", ending.failure.exit_code, ending.failure.message
    if ending.signal is not None:
        return "stopped", 128 + ending.signal, f"stopped by {ending.signal.name}"
    return "finished", 0, None


def _global_steps(ending: Ending, main: Finished | None) -> int:
    return ending.global_steps if main is None else main.global_steps


def _start_event(spec: RunSpec) -> events.StartEvent:
    return events.StartEvent(
        t=time.time(),
        script=spec.script.path,
        args=list(spec.script.args),
        num_ests=spec.placement.num_ests if spec.is_num_ests_explicit else None,
        placement=str(spec.placement) if spec.is_num_ests_explicit else None,
        num_workers=spec.placement.num_workers,
        min_workers=spec.elasticity.min_workers,
        max_workers=spec.elasticity.max_workers,
        max_failures=spec.elasticity.max_failures,
        overrides=dict(spec.overrides),
        versions={
            "python": platform.python_version(),
            "torch": package_version("torch"),
            "easyscale": package_version(DISTRIBUTION),
        },
    )


def _failure_event(cause: Failure) -> events.FailureEvent:
    return events.FailureEvent(
        t=time.time(),
        message=cause.message,
        kind=cause.kind,
        worker_rank=cause.worker_rank,
        virtual_rank=cause.virtual_rank,
        global_step=cause.global_step,
    )


def _end_event(result: RunResult) -> events.EndEvent:
    return events.EndEvent(
        t=time.time(),
        state=result.state,
        exit_code=result.exit_code,
        global_steps=result.global_steps,
        seconds=result.seconds,
        digest=result.digest,
    )
