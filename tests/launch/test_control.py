"""The control socket: its owner is answered, and whatever else comes to it changes nothing and holds nothing up."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from easyscale.core.errors import RefusedError
from easyscale.launch import control
from easyscale.launch.control import SOCKET_NAME, TOKEN_NAME, Control, ask


class Served:
    """A run that answers, as long as the test serves it."""

    def __init__(self, folder: Path, said: list[str]) -> None:
        self.folder = folder
        self.asked: list[dict[str, Any]] = []
        self.said = said
        self.control = Control(folder, said.append)

    def serve(self) -> None:
        """What there is to do now. It must not wait for anybody."""
        began = time.monotonic()
        self.control.serve(self._answer)
        assert time.monotonic() - began < 1.0

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        if request["ask"] == "refuse":
            raise RefusedError("not now")
        return {"heard": request["ask"]}

    def until(self, done: Callable[[], bool]) -> None:
        """Serve as a run does: whenever something is there."""
        deadline = time.monotonic() + 10
        while not done():
            assert time.monotonic() < deadline
            wait(self.control.sources, 0.05)
            self.serve()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """As another process asks."""
        answers: list[Any] = []

        def other_process() -> None:
            try:
                answers.append(ask(self.folder.parent, self.folder.name, request))
            except RefusedError as error:
                answers.append(error)

        thread = threading.Thread(target=other_process)
        thread.start()
        self.until(lambda: bool(answers))
        thread.join()
        if isinstance(answers[0], RefusedError):
            raise answers[0]
        return answers[0]

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(SOCKET_NAME)  # the test works in the folder
        connection.settimeout(10)
        return connection

    def answer_to(self, data: bytes) -> dict[str, Any]:
        """What somebody is told who says this, and no more."""
        with closing(self.connect()) as connection:
            sent = threading.Thread(target=connection.sendall, args=(data,), daemon=True)
            sent.start()
            self.until(lambda: bool(wait([connection], 0)))
            reply = connection.recv(4096)
            sent.join(0)
            return json.loads(reply)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    served = Served(folder, [])
    with served.control:
        yield served
    assert not list(folder.iterdir())


def test_the_owner_is_answered(run: Served) -> None:
    assert run.ask({"ask": "status"}) == {"heard": "status"}
    with pytest.raises(RefusedError, match="run mine: not now"):
        run.ask({"ask": "refuse"})
    assert run.asked == [{"ask": "status"}, {"ask": "refuse"}]


def test_nobody_else_can_connect_or_read_the_token(tmp_path: Path) -> None:
    before = os.umask(0)  # the most that any user may have allowed
    try:
        with Control(tmp_path, pytest.fail):
            modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in (SOCKET_NAME, TOKEN_NAME)}
    finally:
        os.umask(before)
    assert modes == {SOCKET_NAME: 0o600, TOKEN_NAME: 0o600}


def test_a_token_file_that_somebody_put_there_is_not_used(tmp_path: Path) -> None:
    (tmp_path / TOKEN_NAME).write_text("known")
    said: list[str] = []
    with Control(tmp_path, said.append) as opened:
        assert opened.sources == []
    assert "cannot be rescaled by command" in said[0]


def test_another_user_is_sent_away(run: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control.os, "getuid", lambda: os.geteuid() + 1)
    monkeypatch.setattr(control.struct, "unpack", lambda *_: (1, 4242, 4242))
    with closing(run.connect()) as connection:
        run.serve()
        assert connection.recv(10) == b""
    assert run.asked == []


@pytest.mark.parametrize("token", ["", "0" * 32, "ключ", None, 5])
def test_a_wrong_token_is_told_so(run: Served, token: object) -> None:
    assert run.answer_to(json.dumps({"ask": "status", "token": token}).encode() + b"\n") == {
        "error": "the token is wrong"
    }
    assert run.asked == []


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"hello\n",
        b"\xff\xfe\x00\n",
        b"{}\n",
        b"[]\n",
        b'"token"\n',
        b"5\n",
        b"null\n",
        b"[" * 60_000 + b"\n",
        b"x" * 70_000,
        b"9" * 60_000 + b"\n",
    ],
    ids=lambda data: repr(data[:10]),
)
def test_garbage_is_told_so(run: Served, data: bytes) -> None:
    assert run.answer_to(data) == {"error": "this is no request of this version"}
    assert run.asked == []


def test_a_request_without_what_it_asks_is_told_so(run: Served) -> None:
    token = (run.folder / TOKEN_NAME).read_text()
    assert "error" in run.answer_to(json.dumps({"token": token}).encode() + b"\n")


def test_who_says_nothing_holds_up_nobody_and_is_dropped(run: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_PATIENCE_S", 0.2)
    with closing(run.connect()) as silent, closing(run.connect()) as slow:
        run.serve()
        assert run.ask({"ask": "status"}) == {"heard": "status"}
        slow.sendall(b'{"as')
        run.until(lambda: len(run.control.sources) == 1)
        assert silent.recv(10) == slow.recv(10) == b""


def test_who_hangs_up_in_the_middle_is_forgotten(run: Served) -> None:
    for data in (b"", b'{"ask": "sta'):
        with closing(run.connect()) as connection:
            connection.sendall(data)
            run.serve()
        run.until(lambda: len(run.control.sources) == 1)
    assert run.asked == []


def test_very_many_who_say_nothing_do_not_keep_the_owner_out(run: Served) -> None:
    crowd = [run.connect() for _ in range(100)]
    run.serve()
    assert run.ask({"ask": "status"}) == {"heard": "status"}
    assert len(run.control.sources) < 20
    for one in crowd:
        one.close()


def test_a_run_that_is_not_there_or_not_running_is_said(tmp_path: Path, run: Served) -> None:
    with pytest.raises(RefusedError, match="there is no run named 'other'"):
        ask(tmp_path / "runs", "other", {})
    (tmp_path / "runs" / "old").mkdir()
    with pytest.raises(RefusedError, match=r"the run 'old' in .* is not running"):
        ask(tmp_path / "runs", "old", {})


def test_a_launcher_that_is_stopped_is_not_waited_for(run: Served) -> None:
    with pytest.raises(RefusedError, match="does not answer: its launcher may be stopped"):
        ask(run.folder.parent, "mine", {"ask": "status"}, patience_s=0.1)
