"""How other commands reach a run: a Unix socket in its folder, and a token that only its owner can read.

Runs in the launcher (``Control``) and in the command that asks (``ask``). A request is one line of JSON, and so is its
answer. Sockets have short names only, so both sides go to the folder for a moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from easyscale.core.errors import EasyScaleError, RefusedError

SOCKET_NAME = "control.sock"
TOKEN_NAME = "control.token"
_PATIENCE_S = 2.0
_LONGEST = 1 << 16


class Control:
    """Context manager; where no socket can be made, a run cannot be asked for anything, which is said once."""

    def __init__(self, folder: Path, on_failure: Callable[[str], None]) -> None:
        self._folder = folder.absolute()
        self._on_failure = on_failure
        self._token = secrets.token_hex(16)
        self._socket: socket.socket | None = None

    def __enter__(self) -> Control:
        listening = socket.socket(socket.AF_UNIX)
        try:
            self._write_token()
            with _inside(self._folder):
                listening.bind(SOCKET_NAME)
            listening.listen()
            listening.setblocking(False)
            self._socket = listening
        except OSError as error:
            listening.close()
            self._on_failure(f"the run cannot be rescaled by command: no socket in {self._folder} ({error.strerror})")
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._socket is not None:
            self._socket.close()
        for name in (SOCKET_NAME, TOKEN_NAME):
            with suppress(OSError):
                (self._folder / name).unlink()

    def _write_token(self) -> None:
        fd = os.open(self._folder / TOKEN_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(self._token)

    @property
    def sources(self) -> list[socket.socket]:
        """To wait for."""
        return [] if self._socket is None else [self._socket]

    def serve(self, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Answer one request, if there is one. Who asks is not waited for long."""
        if self._socket is None:
            return
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        with connection, suppress(OSError):
            connection.settimeout(_PATIENCE_S)
            connection.sendall(json.dumps(self._reply(connection, answer)).encode() + b"\n")

    def _reply(self, connection: socket.socket, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        try:
            request = json.loads(_line(connection))
            if not secrets.compare_digest(str(request.pop("token")), self._token):
                return {"error": "the token is wrong"}
            return answer(request)
        except EasyScaleError as error:
            return {"error": str(error)}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {"error": "this is no request of this version"}


def ask(run_dir: Path, name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Ask the run ``name``; its answer.

    Raises:
        RefusedError: there is no such run, it does not run, or it says no.
    """
    folder = (run_dir / name).absolute()
    if not folder.is_dir():
        raise RefusedError(
            f"there is no run named {name!r} in {run_dir}: give the name of a folder there, or --run-dir"
        )
    try:
        token = (folder / TOKEN_NAME).read_text()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_PATIENCE_S * 5)
            with _inside(folder):
                connection.connect(SOCKET_NAME)
            connection.sendall(json.dumps({**request, "token": token}).encode() + b"\n")
            reply: dict[str, Any] = json.loads(_line(connection))
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
