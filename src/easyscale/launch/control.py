"""How other commands reach a run: a Unix socket in its folder, and a token that only its owner can read.

Runs in the launcher (``Control``) and in the command that asks (``ask``). A request is one line of JSON, and so is its
answer. Nobody is waited for: who says nothing, too much or nothing sensible is dropped, and the run does not notice.
Sockets have short names only, so both sides go to the folder for a moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from easyscale.core.errors import EasyScaleError, RefusedError

SOCKET_NAME = "control.sock"
TOKEN_NAME = "control.token"
_PATIENCE_S = 2.0
_LONGEST = 1 << 16
_MOST_CALLERS = 16

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class Control:
    """Context manager; where no socket can be made, a run cannot be asked for anything, which is said once."""

    def __init__(self, folder: Path, on_failure: Callable[[str], None]) -> None:
        self._folder = folder.absolute()
        self._on_failure = on_failure
        self._token = secrets.token_hex(16)
        self._socket: socket.socket | None = None
        self._callers: list[_Caller] = []

    def __enter__(self) -> Control:
        listening = socket.socket(socket.AF_UNIX)
        try:
            self._write_token()
            # Linux gives the file the mode of the socket, so there is no moment in which others could connect.
            os.fchmod(listening.fileno(), 0o600)
            with _inside(self._folder):
                listening.bind(SOCKET_NAME)
            (self._folder / SOCKET_NAME).chmod(0o600)
            listening.listen()
            listening.setblocking(False)
            self._socket = listening
        except OSError as error:
            listening.close()
            self._on_failure(f"the run cannot be rescaled by command: no socket in {self._folder} ({error.strerror})")
        return self

    def __exit__(self, *exc_info: object) -> None:
        for caller in self._callers:
            caller.close()
        if self._socket is not None:
            self._socket.close()
        for name in (SOCKET_NAME, TOKEN_NAME):
            with suppress(OSError):
                (self._folder / name).unlink()

    def _write_token(self) -> None:
        """A new file: one that somebody else had put there would stay readable to them."""
        fd = os.open(self._folder / TOKEN_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(self._token)

    @property
    def sources(self) -> list[socket.socket]:
        """To wait for."""
        return [] if self._socket is None else [self._socket, *(caller.connection for caller in self._callers)]

    def serve(self, answer: Answer) -> None:
        """Answer what has been asked completely; returns at once."""
        self._accept()
        now = time.monotonic()
        for caller in list(self._callers):
            caller.read()
            if caller.is_complete:
                caller.reply(self._reply(caller.data, answer))
            if caller.is_over or now >= caller.until:
                caller.close()
                self._callers.remove(caller)

    def _accept(self) -> None:
        while self._socket is not None:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not _is_owner(connection):
                connection.close()
                continue
            self._callers.append(_Caller(connection))
            if len(self._callers) > _MOST_CALLERS:
                self._callers.pop(0).close()

    def _reply(self, line: bytes, answer: Answer) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not secrets.compare_digest(str(request.pop("token")).encode(), self._token.encode()):
                return {"error": "the token is wrong"}
            return answer(request)
        except EasyScaleError as error:
            return {"error": str(error)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {"error": "this is no request of this version"}


class _Caller:
    """Somebody who has connected."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.until = time.monotonic() + _PATIENCE_S
        self.data = b""
        self.is_over = False

    @property
    def is_complete(self) -> bool:
        """Whether there is something to answer: a line, the end, or more than anyone should say."""
        return not self.is_over and (self.data.endswith(b"\n") or len(self.data) > _LONGEST)

    def read(self) -> None:
        """Take what has come."""
        try:
            while not self.is_complete and not self.is_over:
                part = self.connection.recv(_LONGEST)
                self.data += part
                self.is_over = not part
        except BlockingIOError:
            return
        except OSError:
            self.is_over = True

    def reply(self, body: dict[str, Any]) -> None:
        """Say the last word. Who does not take it at once does without: an answer fits into any socket's memory."""
        self.is_over = True
        with suppress(OSError):
            self.connection.send(json.dumps(body).encode() + b"\n")

    def close(self) -> None:
        self.connection.close()


def _is_owner(connection: socket.socket) -> bool:
    """Whether the caller's user is ours, or root; the file's mode says the same where the kernel does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _pid, user, _group = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user in (os.getuid(), 0)


def folder_of(run_dir: Path, name: str) -> Path:
    """Where the run ``name`` leaves its record.

    Raises:
        RefusedError: there is no such run.
    """
    folder = run_dir / name
    if not folder.is_dir():
        raise RefusedError(
            f"there is no run named {name!r} in {run_dir}: give the name of a folder there, or --run-dir"
        )
    return folder


def ask(run_dir: Path, name: str, request: dict[str, Any], patience_s: float = 10.0) -> dict[str, Any]:
    """Ask the run ``name``; its answer.

    Raises:
        RefusedError: there is no such run, it does not run, or it says no.
    """
    folder = folder_of(run_dir, name).absolute()
    try:
        token = (folder / TOKEN_NAME).read_text()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(patience_s)
            with _inside(folder):
                connection.connect(SOCKET_NAME)
            connection.sendall(json.dumps({**request, "token": token}).encode() + b"\n")
            reply: dict[str, Any] = json.loads(_line(connection))
    except TimeoutError as error:
        raise RefusedError(f"the run {name!r} in {run_dir} does not answer: its launcher may be stopped") from error
    except (OSError, ValueError) as error:
        raise RefusedError(f"the run {name!r} in {run_dir} is not running ({error})") from error
    if "error" in reply:
        raise RefusedError(f"run {name}: {reply['error']}")
    return reply


def _line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < _LONGEST:
        part = connection.recv(4096)
        if not part:
            break
        data += part
    return data


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        yield
    finally:
        os.fchdir(before)
        os.close(before)
