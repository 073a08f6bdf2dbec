"""One writer for a folder of checkpoints: a lock that ends with its process. Runs in the worker.

The kernel holds it, so a dead writer's is free at once and none is ever stale. The file stays; in it stands who holds
the lock or held it last.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import weakref
from contextlib import suppress
from pathlib import Path

from easyscale.core.errors import RefusedError

LOCK_NAME = ".lock"

_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()
_is_following_forks = False


class FolderLock:
    """Held from its making to ``release``, or to the end of this process.

    Raises:
        RefusedError: another writer has it, or the folder allows none.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        self._path = folder / LOCK_NAME
        try:
            self._fd: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RefusedError(
                f"checkpoints in {folder} cannot be written ({error.strerror}): give a folder that can"
            ) from error
        try:
            self._lock(owner)
        except BaseException:
            self.release()
            raise
        _held.add(self)
        _follow_forks()

    def _lock(self, owner: str) -> None:
        assert self._fd is not None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise RefusedError(
                    f"checkpoints in {self._path.parent} are being written by {self._holder()}: give this job another "
                    f"folder, or end the other one"
                ) from error
            raise RefusedError(
                f"{self._path.parent} is on a file system without locks ({error.strerror}), so nothing would keep two "
                f"jobs apart: mount it with flock, or give another folder"
            ) from error
        holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "owner": owner}) + "\n"
        with suppress(OSError):  # a full disk: the lock holds, only its holder is not named
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, holder.encode(), 0)

    def _holder(self) -> str:
        with suppress(OSError, ValueError, TypeError, KeyError):
            said = json.loads(self._path.read_text(encoding="utf-8"))
            return f"process {said['pid']} on {said['host']}" + (f" ({said['owner']})" if said["owner"] else "")
        return "another process"

    def is_in_place(self) -> bool:
        """Whether the folder is still the one that was locked: not removed, nor another in its place."""
        if self._fd is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except OSError:
            return False

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None


def _follow_forks() -> None:
    """A forked child (a data worker, say) shares its parent's lock, and would hold it on after the parent's death."""
    global _is_following_forks
    if not _is_following_forks:
        os.register_at_fork(after_in_child=_release_all)
        _is_following_forks = True


def _release_all() -> None:
    for lock in list(_held):
        lock.release()
