"""Bytes onto the disk, and names that survive a loss of power. Runs in the worker.

A large file goes past the system's page cache where that can be done: copying it there would cost the training
processor time and memory, and nobody reads it soon.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

_PAGE_BYTES = 4096
_WRITE_BYTES = 8 << 20
_DIRECT = getattr(os, "O_DIRECT", 0)


def write_file(path: Path, data: memoryview, half_way: Callable[[], None] = lambda: None) -> None:
    """Write a new file; when this returns it is on disk.

    Args:
        half_way: called when half of it is written.

    Raises:
        OSError: it cannot be written.
    """
    fd = _open(path, is_direct=len(data) >= _WRITE_BYTES)
    middle = len(data) // 2 // _PAGE_BYTES * _PAGE_BYTES
    try:
        _write_all(fd, data[:middle])
        half_way()
        _write_all(fd, data[middle:])
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` permanent."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system without it
            raise
    finally:
        os.close(fd)


def _open(path: Path, *, is_direct: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    if is_direct and _DIRECT:
        try:
            return os.open(path, flags | _DIRECT, 0o666)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system without it, which may have made the file all the same
                raise
            path.unlink(missing_ok=True)
    return os.open(path, flags, 0o666)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        size = min(len(data), _WRITE_BYTES) // _PAGE_BYTES * _PAGE_BYTES
        if size == 0:  # only whole pages go past the cache
            _use_cache(fd)
        try:
            written = os.write(fd, data[: size or len(data)])
        except OSError as error:
            if error.errno != errno.EINVAL or not _use_cache(fd):
                raise
            continue
        if written % _PAGE_BYTES:
            _use_cache(fd)
        data = data[written:]


def _use_cache(fd: int) -> bool:
    """Write through the page cache from here on; false if that was so before."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if not flags & _DIRECT:
        return False
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~_DIRECT)
    return True
