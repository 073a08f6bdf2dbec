"""A folder of checkpoints with one writer. Runs in the worker that hosts virtual rank 0.

Training waits while its state is copied to memory of the host, and no longer: a thread writes it. One checkpoint is
written at a time. A second one that is due meanwhile is skipped, since the next is never far; one that somebody asked
for (``save``) waits its turn instead. Whatever happens to the disk, training goes on, and the result says what became
of a save.
"""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from easyscale.core.errors import RefusedError
from easyscale.train.checkpoint.lock import FolderLock
from easyscale.train.checkpoint.read import find_newest, last_sequence, list_checkpoints
from easyscale.train.checkpoint.snapshot import HostBuffer
from easyscale.train.checkpoint.state import Found, JobState, SaveResult
from easyscale.train.checkpoint.sums import available_threads
from easyscale.train.checkpoint.write import PARTIAL, REMOVED, Draft, Hook, plan, remove_checkpoint, write_checkpoint


def _no_hook(point: str) -> None:
    return


class CheckpointStore:
    """Saves a job's state into ``folder`` and finds it again.

    Args:
        keep: how many checkpoints to keep; None: all. The newest whole one is never removed.
        owner: what to call this job when another one wants the folder.
        hook: called at each of ``write.POINTS``.
    """

    def __init__(self, folder: str | Path, keep: int | None = 3, *, owner: str = "", hook: Hook = _no_hook) -> None:
        if keep is not None and keep < 1:
            raise RefusedError(f"keep is {keep}: a folder keeps at least 1 checkpoint, or all with keep=None")
        self.folder = Path(folder)
        self._keep = keep
        self._owner = owner
        self._hook = hook
        self._buffer = HostBuffer()
        self._lock: FolderLock | None = None
        self._was_claimed = False
        self._writer: threading.Thread | None = None
        self._finished: list[SaveResult] = []
        self._guard = threading.Lock()

    def claim(self) -> None:
        """Become the folder's one writer, and clear away what a dead one left. The first save does it too.

        Raises:
            RefusedError: another job writes there, or nobody can.
        """
        if self._lock is not None:
            return
        try:
            if not self._was_claimed:  # a folder that went away meanwhile may be on a disk that did
                self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RefusedError(
                f"{self.folder} cannot be made ({error.strerror}): give another folder for checkpoints"
            ) from error
        self._lock = FolderLock(self.folder, self._owner)
        self._was_claimed = True
        for left in [*self.folder.glob(f"{PARTIAL}*"), *self.folder.glob(f"{REMOVED}*")]:
            shutil.rmtree(left, ignore_errors=True)

    def check(self, state: JobState) -> None:
        """Refuse now what every save would refuse.

        Raises:
            RefusedError: something in ``state`` could not come back as it is.
        """
        plan(state)

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writer is not None and self._writer.is_alive()

    def save(self, state: JobState) -> SaveResult:
        """Save now: after a checkpoint that is being written, and return when this one is on disk.

        Raises:
            RefusedError: something in ``state`` could not come back as it is.
        """
        start = time.perf_counter()
        self._join()
        prepared = self._prepare(state, threads=available_threads())
        if isinstance(prepared, SaveResult):
            return prepared
        return self._write(prepared, time.perf_counter() - start)

    def save_async(self, state: JobState) -> bool:
        """Copy ``state`` and write it meanwhile; ``finished`` tells what became of it.

        Returns:
            False if it was skipped, because the one before is still being written.

        Raises:
            RefusedError: something in ``state`` could not come back as it is.
        """
        start = time.perf_counter()
        if self.is_busy:
            return False
        self._join()
        prepared = self._prepare(state, threads=1)
        if isinstance(prepared, SaveResult):
            self._add(prepared)
            return True
        stalled_s = time.perf_counter() - start
        # not a daemon: a checkpoint that was begun is finished before the process ends
        self._writer = threading.Thread(
            target=lambda: self._add(self._write(prepared, stalled_s)), name="easyscale-checkpoint"
        )
        self._writer.start()
        return True

    def finished(self) -> list[SaveResult]:
        """What became of asynchronous saves since the last call."""
        with self._guard:
            results, self._finished = self._finished, []
        return results

    def wait(self) -> list[SaveResult]:
        """The same, after the one that is being written."""
        self._join()
        return self.finished()

    def newest(self) -> Found | None:
        """The whole checkpoint that was saved last, or None where there is nothing at all.

        Raises:
            RefusedError: there is something, but no whole checkpoint.
        """
        return find_newest(self.folder)

    def close(self) -> None:
        """Finish what is being written, and let others have the folder."""
        self._join()
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
        self._writer = None

    def _add(self, result: SaveResult) -> None:
        with self._guard:
            self._finished.append(result)

    def _prepare(self, state: JobState, threads: int) -> Draft | SaveResult:
        try:
            self.claim()
        except RefusedError as error:
            return _failed(state.global_step, self.folder, error)
        self._hook("checkpoint.before_copy")
        try:
            draft = Draft.of(state, self._buffer, threads)
        except (OSError, MemoryError, RuntimeError) as error:  # torch says no memory by the last
            return _failed(state.global_step, self.folder, error)
        self._hook("checkpoint.after_copy")
        return draft

    def _write(self, draft: Draft, stalled_s: float) -> SaveResult:
        start = time.perf_counter()
        try:
            self._check_place()
            path = write_checkpoint(draft, self.folder, last_sequence(self.folder) + 1, self._hook)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the training
            return _failed(draft.global_step, self.folder, error)
        finally:
            draft.hashes.join()  # before its memory takes the next state
        written_s = time.perf_counter() - start
        reason = self._remove_old(path)
        return SaveResult(draft.global_step, path, reason, stalled_s, written_s, len(draft.data))

    def _check_place(self) -> None:
        assert self._lock is not None
        if not self._lock.is_in_place():
            self._lock.release()
            self._lock = None
            raise RefusedError("the folder was removed or replaced while this job was using it")

    def _remove_old(self, newest: Path) -> str | None:
        """Keep ``newest``, which is whole, and those saved before it, however damaged they may be."""
        if self._keep is None:
            return None
        try:
            others = [path for path in list_checkpoints(self.folder)[0] if path != newest]
            for path in others[self._keep - 1 :]:
                remove_checkpoint(path, self._hook)
        except Exception as error:  # noqa: BLE001 - as above
            return f"old checkpoints in {self.folder} could not be removed ({_cause(error)}): remove them by hand"
        self._hook("checkpoint.after_removal")
        return None


def _failed(global_step: int, folder: Path, error: BaseException) -> SaveResult:
    reason = (
        f"the checkpoint of step {global_step} was not written to {folder} ({_cause(error)}): training goes on, and "
        f"earlier checkpoints are as they were"
    )
    return SaveResult(global_step, None, reason)


def _cause(error: BaseException) -> Any:
    return error.strerror if isinstance(error, OSError) and error.strerror else error
