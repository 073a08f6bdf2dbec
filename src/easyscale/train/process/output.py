"""Where printed text goes: to the log of the virtual rank whose turn it is, and to the console what belongs there.

Runs in the worker process. The console shows what a one-process run would print: text of virtual rank 0's turns, and
text outside all turns from the worker that hosts virtual rank 0. All text is in the logs. What C code and forked
children write to file descriptors 1 and 2 goes to the worker's log.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from easyscale.core.messages import Output

_CHUNK = 1 << 18
_FD_BY_STREAM = {"stdout": 1, "stderr": 2}


class OutputRouter:
    """Replaces ``sys.stdout`` and ``sys.stderr``.

    Attributes:
        is_main: whether this worker hosts virtual rank 0.
    """

    def __init__(self, worker_rank: int, log_dir: Path, is_main: bool, send: Callable[[Output], None]) -> None:
        self._worker_rank = worker_rank
        self._log_dir = log_dir
        self.is_main = is_main
        self._send = send
        self._turn: int | None = None
        self._lock = threading.RLock()
        self._rank_logs: dict[int, int] = {}
        self._is_parent = True
        self._is_log_broken = False
        self._streams = {name: _open_stream(self, name) for name in _FD_BY_STREAM}

    def install(self) -> None:
        worker_log = _open_log(self._log_dir / f"worker-{self._worker_rank}.log")
        for fd in _FD_BY_STREAM.values():
            os.dup2(worker_log, fd)
        os.close(worker_log)
        os.register_at_fork(after_in_child=self._leave_to_parent)
        sys.stdout = sys.__stdout__ = self._streams["stdout"]  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self._streams["stderr"]  # type: ignore[misc]

    def turn(self, virtual_rank: int | None) -> None:
        """Text from here on belongs to this virtual rank, or (None) to the worker."""
        self.flush()
        self._turn = virtual_rank

    def flush(self) -> None:
        for stream in self._streams.values():
            with suppress(ValueError):  # the script closed it
                stream.flush()

    def log(self, virtual_rank: int | None, text: str) -> None:
        """Write to a log alone; for what the launcher shows in its own way, such as the traceback of a failure."""
        self._write_log(virtual_rank, "stderr", text.encode("utf-8", "backslashreplace"))

    def write(self, stream: str, data: bytes) -> None:
        if not self._is_parent:
            _write_all(_FD_BY_STREAM[stream], data)
            return
        with self._lock:
            turn = self._turn
            self._write_log(turn, stream, data)
            if turn == 0 or (turn is None and self.is_main):
                self._forward(turn, stream, data)

    def _forward(self, turn: int | None, stream: str, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK):
            text = data[start : start + _CHUNK].decode("utf-8", "surrogateescape")
            self._send(Output(self._worker_rank, turn, stream, text))

    def _write_log(self, turn: int | None, stream: str, data: bytes) -> None:
        """A log that cannot be written is said once; it must not break off the training that it describes."""
        try:
            _write_all(_FD_BY_STREAM[stream] if turn is None else self._rank_log(turn), data)
        except OSError as error:
            if self._is_log_broken:
                return
            self._is_log_broken = True
            notice = (
                f"easyscale: cannot write to {self._log_dir} ({error.strerror}): the run goes on, its logs do not\n"
            )
            self._send(Output(self._worker_rank, turn, "stderr", notice))

    def _rank_log(self, virtual_rank: int) -> int:
        if virtual_rank not in self._rank_logs:
            self._rank_logs[virtual_rank] = _open_log(self._log_dir / f"rank-{virtual_rank}.log")
        return self._rank_logs[virtual_rank]

    def _leave_to_parent(self) -> None:
        self._is_parent = False


class _StreamBuffer(io.BufferedIOBase):
    """The binary side of a routed stream."""

    def __init__(self, router: OutputRouter, stream: str) -> None:
        self._router = router
        self._stream = stream

    def write(self, data: object) -> int:
        content = bytes(data)  # type: ignore[call-overload]
        self._router.write(self._stream, content)
        return len(content)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return _FD_BY_STREAM[self._stream]

    def isatty(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return f"<{self._stream}>"

    mode = "wb"


def _open_stream(router: OutputRouter, stream: str) -> io.TextIOWrapper:
    buffer = _StreamBuffer(router, stream)
    return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _open_log(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
