"""The folder of a run: events, logs, result, profile. Written by the launcher (logs: by workers)."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from easyscale.core import events
from easyscale.core.errors import RefusedError

RESULT_NAME = "result.json"
PROFILE_NAME = "profile.json"
_LOCK_TRIES = 100


class RunFolder:
    """``RUN_DIR/NAME/``, which belongs to one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"

    @classmethod
    def create(cls, run_dir: Path, name: str | None, script: str) -> RunFolder:
        """Make the folder of a new run, under the name given or one made of script and time.

        Raises:
            RefusedError: the name is taken or no name, or the folder cannot be made.
        """
        try:
            path = make_unique_folder(run_dir, script) if name is None else _make_named(run_dir, name)
            folder = cls(path)
            folder.logs.mkdir(exist_ok=True)
        except OSError as error:
            raise _not_made(run_dir, error) from error
        return folder

    def worker_log(self, worker_rank: int) -> Path:
        return self.logs / f"worker-{worker_rank}.log"

    def rank_log(self, virtual_rank: int) -> Path:
        return self.logs / f"rank-{virtual_rank}.log"

    def write_result(self, result: dict[str, Any]) -> None:
        """Write ``result.json``; it appears whole or not at all."""
        self._write(RESULT_NAME, result)

    def write_profile(self, profile: dict[str, Any]) -> None:
        """Write ``profile.json`` in the place of the one before. A full disk is not the training's concern."""
        with suppress(OSError):
            self._write(PROFILE_NAME, profile)

    def _write(self, name: str, body: dict[str, Any]) -> None:
        path = self.path / name
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(body, indent=2) + "\n")
        partial.replace(path)


class EventLog:
    """Appends to ``events.jsonl``, whole lines only. A full disk is said once; the training goes on without it.

    The file is locked while the run lives: so others can tell a run that is silent from one whose launcher was killed.
    """

    def __init__(self, path: Path, on_failure: Callable[[str], None]) -> None:
        self._path = path
        self._on_failure = on_failure
        self._fd: int | None = None

    def __enter__(self) -> EventLog:
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            _lock(self._fd)
        except OSError as error:
            self._give_up(error)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close()

    def write(self, event: events.Event) -> None:
        if self._fd is None:
            return
        line = memoryview(events.to_line(event).encode() + b"\n")
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Nothing is appended any more: what follows a half-written line could not be read."""
        self._close()
        self._on_failure(
            f"cannot write {self._path} ({error.strerror}): the run goes on, its events from here on are not recorded"
        )

    def _close(self) -> None:
        if self._fd is not None:
            with suppress(OSError):
                os.close(self._fd)
        self._fd = None


def _lock(fd: int) -> None:
    """Say that the run lives. Who looks holds the file for a moment; without the lock nobody can tell, no more."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.005)
        except OSError:
            return  # a file system without locks
        else:
            return


def _make_named(run_dir: Path, name: str) -> Path:
    if name in ("", ".", "..") or "/" in name:
        raise RefusedError(f"--name {name!r} is not the name of a folder: use letters, digits, '-' and '_'")
    path = run_dir / name
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise RefusedError(f"a run named {name!r} is already in {run_dir}: choose another --name or remove {path}")
    return path


def make_unique_folder(run_dir: Path, script: str, prefix: str = "") -> Path:
    """A new folder named after the script and the time.

    Raises:
        RefusedError: it cannot be made.
    """
    stem = f"{prefix}{Path(script).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        for ending in itertools.chain([""], (f"-{number}" for number in itertools.count(2))):
            with suppress(FileExistsError):
                path = run_dir / f"{stem}{ending}"
                path.mkdir()
                return path
    except OSError as error:
        raise _not_made(run_dir, error) from error
    raise AssertionError("names do not end")


def _not_made(run_dir: Path, error: OSError) -> RefusedError:
    return RefusedError(
        f"a run writes to a folder in {run_dir}, which cannot be made ({error.strerror}: {error.filename}): "
        f"give another one with --run-dir"
    )
