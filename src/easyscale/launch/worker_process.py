"""One worker as the launcher sees it: a process group of its own and a connection. Runs in the launcher."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from easyscale.core.messages import Failed, Finished, Left, Message, WorkerConfig, decode, encode
from easyscale.core.orders import Order, Stop
from easyscale.launch import child
from easyscale.launch.forkserver import hidden_main_module


class WorkerProcess:
    """Started on creation."""

    def __init__(self, config: WorkerConfig) -> None:
        context = multiprocessing.get_context("forkserver")
        self.rank = config.worker_rank
        self.last_words: Finished | Failed | Left | None = None
        self.heard_at = time.monotonic()
        self.has_started_script = False
        self.is_open = True
        self.is_unwanted = False
        self._is_swept = False
        self.connection: Connection
        self.connection, theirs = context.Pipe(duplex=True)
        # Libraries that let only the main process print ask for its name.
        self._process = context.Process(target=child.main, args=(config.to_json(), theirs), name="MainProcess")
        try:
            with hidden_main_module():
                self._process.start()
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()

    @property
    def sentinel(self) -> int:
        """Readable when the process has ended."""
        return self._process.sentinel

    @property
    def exit_code(self) -> int | None:
        """None while it runs, the negative number of the signal that ended it, or its exit status."""
        return self._process.exitcode

    def has_message(self) -> bool:
        """Whether there is a message, or the end of them."""
        try:
            return self.connection.poll()
        except OSError:
            return True

    def read(self) -> Message | None:
        """The next message, or None when the connection has ended.

        Raises:
            EasyScaleError: it is not a message.
        """
        try:
            message: Message = decode(self.connection.recv_bytes())
            return message
        except (EOFError, OSError):
            self.close()
            return None

    def send(self, order: Order) -> None:
        """Give the process an order; one that has ended gets none."""
        with suppress(OSError):
            self.connection.send_bytes(encode(order))

    def read_rest(self) -> Iterator[Message]:
        """What the process said before it ended."""
        while self.is_open and self.has_message():
            message = self.read()
            if message is not None:
                yield message

    def close(self) -> None:
        self.is_open = False
        self.connection.close()

    def terminate(self) -> None:
        """Ask the process to end, and only it: data workers that died under it would break its clean-up."""
        if self.exit_code is None:
            self.send(Stop())
            self._signal(os.kill, signal.SIGTERM)

    def dismiss(self) -> None:
        """End a process that nobody needs; its end means nothing."""
        self.is_unwanted = True
        self.kill()

    def kill(self) -> None:
        """End the process, if it has not ended, and all that it started."""
        if self.exit_code is not None:
            return
        self._signal(os.killpg, signal.SIGKILL)
        # It may not have come as far as making its own group.
        self._signal(os.kill, signal.SIGKILL)

    def kill_leftovers(self) -> None:
        """End what an ended process started. Once, then: later its number may be that of somebody else's group."""
        if self._is_swept or self.exit_code is None:
            return
        self._is_swept = True
        self._signal(os.killpg, signal.SIGKILL)

    def _signal(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        pid = self._process.pid
        assert pid is not None
        with suppress(ProcessLookupError, PermissionError):
            send(pid, number)

    def is_group_gone(self) -> bool:
        """Whether nothing that the process started is alive."""
        pid = self._process.pid
        assert pid is not None
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return not _has_living_member(pid)

    def join(self, timeout_s: float) -> None:
        self._process.join(timeout_s)

    def release(self) -> None:
        """Give back what the process holds in this one; nothing can be asked of it afterwards."""
        self.close()
        if self.exit_code is not None:
            self._process.close()


def _has_living_member(group: int) -> bool:
    """Orphans that died stay listed until init reaps them, which in a container may be late or never."""
    if not Path("/proc/self/stat").exists():
        return True
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _parent, its_group = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False
