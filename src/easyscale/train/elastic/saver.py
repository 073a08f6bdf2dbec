"""When checkpoints are written, and by whom: at borders, by the worker of rank 0 in its generation. In the worker.

Every worker has the whole state of the job at a border, so nobody waits for anybody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from easyscale.core.errors import RefusedError
from easyscale.core.job import CheckpointSpec
from easyscale.core.messages import Message, Resumed, Saved
from easyscale.train.checkpoint.fits import check_fits
from easyscale.train.checkpoint.read import find_newest
from easyscale.train.checkpoint.state import Checkpoint, JobFacts, JobState, SaveResult
from easyscale.train.checkpoint.store import CheckpointStore
from easyscale.train.process.faults import reach

_HAND_OVER_S = 60.0
"""How long a new writer lets the one before it finish its last checkpoint."""


class Saver:
    """Writes checkpoints of a job, and reads the one it begins from.

    Args:
        worker: number of this worker in the run.
        tell: tells the launcher something.

    Attributes:
        has_begun: whether there is something to save.
        is_writer: whether this worker writes.
        stopped: set when the checkpoint that was ordered is on disk, or will not be.
    """

    def __init__(self, spec: CheckpointSpec, worker: int, tell: Callable[[Message], None]) -> None:
        self._spec = spec
        self._worker = worker
        self._tell = tell
        self._store = CheckpointStore(spec.folder, spec.keep or None, owner=spec.owner, hook=reach)
        self._is_asked = False
        self._is_ordered = False
        self.has_begun = False
        self.is_writer = False
        self._saved = 0
        self._blocked_since: float | None = None
        self._next_at = time.monotonic() + 60 * spec.every_minutes
        self.stopped = threading.Event()

    def resume(self, facts: JobFacts) -> Checkpoint | None:
        """What the job begins from, if not from its start.

        Raises:
            RefusedError: the folder holds something that the job must not or cannot go on from.
        """
        found = find_newest(self._spec.folder)
        if found is None:
            return None
        checkpoint = found.checkpoint
        if not self._spec.resume:
            raise RefusedError(
                f"{self._spec.folder} holds checkpoints already (the newest is of step "
                f"{checkpoint.state.global_step}): give --resume to go on from it, or another folder to begin anew"
            )
        notes = [str(skipped) for skipped in found.skipped]
        notes += check_fits(checkpoint, facts, allow_other_torch=self._spec.allow_other_torch)
        self._saved = checkpoint.state.global_step
        self._tell(Resumed(self._worker, self._saved, str(checkpoint.path), notes))
        return checkpoint

    def ask(self) -> None:
        """The script wants a checkpoint at the next border."""
        self._is_asked = True

    def order(self) -> None:
        """The launcher wants one, to end the run. From any thread."""
        self._is_ordered = True

    def border(self, global_step: int, capture: Callable[[], JobState], *, is_writer: bool, is_last: bool) -> None:
        """Between two global steps: save if it is time to."""
        self.has_begun = True
        self._report()
        if not is_writer:
            self._hand_over()
            return
        if not self.is_writer:
            self.is_writer, self._saved = True, max(self._saved, global_step - 1)
        is_wanted = is_last or self._is_asked or self._is_ordered
        if not (is_wanted or self._is_due(global_step)) or not self._claim(global_step):
            return
        state = capture()
        self._saved, self._next_at = global_step, time.monotonic() + 60 * self._spec.every_minutes
        if is_wanted:
            self._save(state)
        else:
            self._store.save_async(state)
        self._is_asked = False

    def _is_due(self, global_step: int) -> bool:
        steps, minutes = self._spec.every_steps, self._spec.every_minutes
        by_steps = steps > 0 and global_step // steps > self._saved // steps
        return by_steps or (minutes > 0 and time.monotonic() >= self._next_at)

    def _claim(self, global_step: int) -> bool:
        """Whether the folder is this worker's. The writer before it may still be at its last checkpoint."""
        try:
            self._store.claim()
        except RefusedError as error:
            now = time.monotonic()
            self._blocked_since = self._blocked_since or now
            if now - self._blocked_since > _HAND_OVER_S or self._is_ordered:
                self._blocked_since = None
                self._say(SaveResult(global_step, None, str(error)), is_ordered=self._is_ordered)
            return False
        self._blocked_since = None
        return True

    def _save(self, state: JobState) -> None:
        is_ordered = self._is_ordered
        result = self._store.save(state)
        self._report()
        self._say(result, is_ordered=is_ordered)

    def _report(self) -> None:
        for result in self._store.finished():
            self._say(result)

    def _say(self, result: SaveResult, *, is_ordered: bool = False) -> None:
        path = None if result.path is None else str(result.path)
        times = (round(result.stalled_s, 6), round(result.written_s, 6))
        self._tell(Saved(self._worker, result.global_step, path, result.reason, *times, result.num_bytes, is_ordered))
        if is_ordered:
            self._end_order()

    def _end_order(self) -> None:
        self._is_ordered = False
        self.stopped.set()

    def _hand_over(self) -> None:
        if self._is_ordered:
            self._end_order()
        if self.is_writer:
            self.is_writer = False
            self.close()

    def close(self) -> None:
        """Finish what is being written, and let others write."""
        for result in self._store.wait():
            self._say(result)
        self._store.close()


def ask_for_checkpoint(saver: Saver | None) -> None:
    """The script wants a checkpoint.

    Raises:
        RefusedError: the job has no place for one.
    """
    if saver is None:
        raise RefusedError(
            "session.save_checkpoint() was called, but the job has no folder for checkpoints: give easyscale run one, "
            "with --checkpoint-dir DIR"
        )
    saver.ask()
