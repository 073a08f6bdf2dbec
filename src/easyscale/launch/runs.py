"""Finds runs and tells what has become of each; changes nothing. Runs in commands that look at runs."""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path
from typing import Any

from easyscale.core import events
from easyscale.core.errors import EasyScaleError, RefusedError
from easyscale.launch.control import SOCKET_NAME, ask, folder_of
from easyscale.launch.folder import RESULT_NAME
from easyscale.launch.history import History, HistoryReader

_START_S = 60.0
"""How long after its folder was made a run may have said nothing."""


class Run:
    """One run, as its folder shows it.

    Attributes:
        is_alive: whether its launcher lived when it was last looked at.
        result: what ``result.json`` holds; empty before the end.
        status: what the launcher answered when it was last asked; empty if it never did.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name
        self.is_alive = False
        self.result: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        self._reader = HistoryReader(folder / events.FILE_NAME)

    @property
    def history(self) -> History:
        return self._reader.history

    @property
    def state(self) -> str:
        """ "starting", "running", "finished", "failed", "stopped", or "dead": its launcher was killed."""
        if self.history.end is not None:
            return self.history.end.state
        if self.is_alive:
            return "running" if self.history.has_steps else "starting"
        is_new = self.history.start is None and time.time() - self.folder.stat().st_mtime < _START_S
        return "starting" if is_new else "dead"

    @property
    def is_over(self) -> bool:
        return self.state not in ("starting", "running")

    @property
    def began_at(self) -> float:
        """Seconds since the epoch."""
        return self.history.start.t if self.history.start else self.folder.stat().st_mtime

    def look(self, patience_s: float = 1.0) -> None:
        """Read what is new, and ask the launcher how it stands, if it lives.

        Raises:
            EasyScaleError: what is there is no record of this version, or cannot be read.
        """
        self.is_alive = is_alive(self.folder)  # before reading: a run that ends in between is no dead one
        self._reader.read()
        if self.history.end is not None and not self.result:
            self.result = _result(self.folder / RESULT_NAME)
        elif self.is_alive and self.history.end is None:
            try:
                self.status = ask(self.folder.parent, self.name, {"ask": "status"}, patience_s)
            except RefusedError:
                return  # at its very beginning or end, or stopped: the events have to do


def is_alive(folder: Path) -> bool:
    """Whether the launcher of a run lives: it holds a lock on its events."""
    try:
        with (folder / events.FILE_NAME).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:  # there are no locks here: the best guess is whether it has tidied up
        return (folder / SOCKET_NAME).exists()
    return False


def is_run(folder: Path) -> bool:
    """Whether this is the folder of a run, or of one that is about to begin."""
    return (folder / events.FILE_NAME).is_file() or (folder / "logs").is_dir()


def all_runs(run_dir: Path) -> list[Run]:
    """Those in ``run_dir``, not looked at yet.

    Raises:
        RefusedError: it cannot be read.
    """
    try:
        return [Run(path) for path in sorted(run_dir.iterdir()) if path.is_dir() and is_run(path)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RefusedError(f"--run-dir {run_dir} cannot be read ({error.strerror})") from error


def find(run_dir: Path, name: str | None) -> Run:
    """The run of this name, or the only one that runs.

    Raises:
        RefusedError: there is no such run, or not just one.
    """
    if name is None:
        return _only_living(run_dir)
    folder = folder_of(run_dir, name)
    if not is_run(folder):
        raise RefusedError(f"{folder} is not the folder of a run: there is no {events.FILE_NAME} in it")
    return Run(folder)


def _only_living(run_dir: Path) -> Run:
    living = [run for run in all_runs(run_dir) if is_alive(run.folder)]
    if len(living) == 1:
        return living[0]
    if living:
        names = ", ".join(run.name for run in living)
        raise RefusedError(f"{len(living)} runs in {run_dir} are running: give the NAME of one of {names}")
    raise RefusedError(f"no run in {run_dir} is running: give a NAME (easyscale ps --all lists them), or --run-dir")


def _result(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def look_at_all(run_dir: Path) -> list[tuple[Run, str | None]]:
    """All runs, newest first, each with what is wrong with its record."""
    found: list[tuple[Run, str | None]] = []
    for run in all_runs(run_dir):
        try:
            run.look()
            len(run.history.steps)
            found.append((run, None))
        except EasyScaleError as error:
            found.append((run, str(error)))
    return sorted(found, key=lambda pair: pair[0].began_at, reverse=True)
