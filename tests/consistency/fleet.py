"""A fleet of persistent processes that form one job after another: hundreds of placements in seconds.

Runs in the test process. Nobody waits for ever: a call has a deadline, after which every member's stack is printed and
the fleet is killed; the next call starts a fresh one.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil

_NURSERY = Path(__file__).with_name("nursery.py")
_ERROR_GRACE_S = 5.0
"""How long other members may take to notice that one has failed."""
_DIED = "ProcessDied"


class MemberError(AssertionError):
    """A member of the fleet raised an exception.

    Attributes:
        kind: name of the exception's class.
        text: its message.
    """

    def __init__(self, member: int, kind: str, text: str, trace: str) -> None:
        super().__init__(f"member {member} of the fleet raised {kind}: {text}\n{trace}")
        self.kind = kind
        self.text = text


class Fleet:
    """``size`` processes with torch loaded, numbered from 0."""

    def __init__(self, size: int = 8) -> None:
        self._size = size
        self._host: subprocess.Popen[bytes] | None = None
        self._members: list[Connection] = []
        self._pids: list[int] = []
        self._folder: str | None = None
        self._calls = 0

    def call(
        self, target: str, arguments: Sequence[dict[str, Any]], *, first: int = 0, deadline_s: float = 60.0
    ) -> list[Any]:
        """Call ``target`` ("module:function") in as many members as there are ``arguments``, all at once.

        Args:
            first: number of the first of these members.

        Raises:
            MemberError: one of them raised an exception; the first one's traceback is in it.
            TimeoutError: not all had answered at the deadline.
        """
        self.start()
        self._calls += 1
        members = range(first, first + len(arguments))
        for member, own in zip(members, arguments, strict=True):
            self._members[member].send((target, own))
        answers = self._collect(members, time.monotonic() + deadline_s)
        for member, (kind, value) in answers.items():  # in the order of arrival: the first failure causes the others
            if kind == "error":
                raise MemberError(member, *value)
        return [answers[member][1] for member in members]

    def store_path(self) -> str:
        """A file of its own for the rendezvous of the next call."""
        self.start()
        return f"{self._folder}/store-{self._calls}"

    def close(self) -> None:
        """End all members and wait for them."""
        for member in self._members:
            member.close()
        if self._host is not None:
            try:
                self._host.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._kill()
        self._forget()

    def start(self) -> None:
        """Start the processes, unless they run."""
        if self._host is not None:
            return
        self._folder = tempfile.mkdtemp(prefix="fleet-")
        pairs = [socket.socketpair() for _ in range(self._size)]
        fds = [theirs.fileno() for _, theirs in pairs]
        self._host = subprocess.Popen(
            [sys.executable, str(_NURSERY), *map(str, fds)],
            pass_fds=fds,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        for _, theirs in pairs:
            theirs.close()
        self._members = [Connection(ours.detach()) for ours, _ in pairs]
        self._pids = [member.recv() for member in self._members]

    def _collect(self, members: range, deadline: float) -> dict[int, tuple[str, Any]]:
        answers: dict[int, tuple[str, Any]] = {}
        number_by_connection = {self._members[member]: member for member in members}
        while number_by_connection:
            ready = wait(list(number_by_connection), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self._abandon(list(number_by_connection.values()), answers)
                break
            for connection in ready:
                member = number_by_connection.pop(connection)  # type: ignore[arg-type]
                answers[member] = self._receive(member)
                if answers[member][0] == "error":
                    deadline = min(deadline, time.monotonic() + _ERROR_GRACE_S)
        if any(value[0] == _DIED for kind, value in answers.values() if kind == "error"):
            self._kill()
            self._forget()
        return answers

    def _receive(self, member: int) -> tuple[str, Any]:
        try:
            return self._members[member].recv()
        except (EOFError, OSError):
            return "error", (_DIED, f"process {self._pids[member]} is gone", "")

    def _abandon(self, silent: list[int], answers: dict[int, tuple[str, Any]]) -> None:
        """Give up the members that have not answered; say where they are unless another one's error explains it."""
        is_explained = any(kind == "error" for kind, _ in answers.values())
        if not is_explained:
            for member in silent:
                process = psutil.Process(self._pids[member])
                for one in [process, *process.children(recursive=True)]:  # its data workers, too
                    print(f"Stack of process {one.pid}, child of {one.ppid()}:", file=sys.stderr, flush=True)
                    one.send_signal(signal.SIGUSR1)
                    wait(self._members, timeout=0.3)
        self._kill()
        self._forget()
        if not is_explained:
            raise TimeoutError(f"members {silent} did not answer in time (their stacks are on standard error)")

    def _kill(self) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._host is not None:
            self._host.wait()

    def _forget(self) -> None:
        for member in self._members:
            member.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._host, self._members, self._pids, self._folder = None, [], [], None
