"""``easyscale scale`` and ``easyscale watch`` beside a job that trains in processes of its own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from easyscale.core import events
from easyscale.launch.control import SOCKET_NAME
from easyscale.launch.history import History, HistoryReader
from elastic.conftest import SCRIPT, Jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EASYSCALE = [sys.executable, "-m", "easyscale"]
TRAIN = ("cnn", "--epochs", "20")


class Live:
    """A job that runs, and commands about it."""

    folder = Path("runs", "live")

    def __init__(self, *options: str) -> None:
        script = [str(SCRIPT), *TRAIN, "--sleep", "0.03"]
        command = [*EASYSCALE, "run", "--name", "live", "--ests", "4", *options, "--quiet", "--json", *script]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._reader = HistoryReader(self.folder / events.FILE_NAME)

    def until(self, done: Callable[[History], bool]) -> None:
        deadline = time.monotonic() + 120
        while True:
            self._reader.read()
            if done(self._reader.history):
                return
            assert self.process.poll() is None, "the job ended before"
            assert time.monotonic() < deadline
            time.sleep(0.01)  # for the file to grow

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*EASYSCALE, *arguments], capture_output=True, text=True, timeout=30, check=False)

    def end(self) -> dict[str, object]:
        out, err = self.process.communicate(timeout=100)
        assert self.process.returncode == 0, err
        return json.loads(out)


@pytest.fixture
def live(jobs: Jobs, tmp_path: Path) -> Iterator[Callable[..., Live]]:
    started: list[Live] = []

    def start(*options: str) -> Live:
        started.append(Live(*options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
        one.process.communicate(timeout=30)


def placed(text: str) -> Callable[[History], bool]:
    return lambda history: history.placement == text and bool(history.rescales)


def test_a_job_is_asked_for_more_workers_and_for_fewer(live: Callable[..., Live], jobs: Jobs) -> None:
    job = live("--placement", "0,1,2,3", "--workers", "1:3")
    job.until(lambda history: len(history.steps) >= 2)

    refused = job.call("scale", "live", "--workers", "4")
    assert refused.returncode == 2
    assert "4 workers were asked for, but the job was started with --workers 1:3: ask for 1 to 3" in refused.stderr
    assert job.call("scale", "live", "--workers", "0").returncode == 2
    assert job.call("scale", "live", "--placement", "0|1").returncode == 2

    more = job.call("scale", "live", "--workers", "3")
    assert (more.returncode, more.stdout) == (
        0,
        "live: from 0,1,2,3 to 0,1|2|3, as soon as the workers are ready\n",
    )
    job.until(placed("0,1|2|3"))
    known = json.loads(job.call("watch", "--json").stdout)
    assert (known["state"], known["placement"], known["failures"]) == ("running", "0,1|2|3", 0)
    assert [one["reason"] for one in known["history"]] == ["scale"]
    fewer = job.call("scale", "live", "--placement", "2,3,0,1", "--json")
    assert json.loads(fewer.stdout) == {"from": "0,1|2|3", "to": "2,3,0,1"}
    job.until(placed("2,3,0,1"))

    result = job.end()
    assert result["placements"] == ["0,1,2,3", "0,1|2|3", "2,3,0,1"]
    assert result["digest"] == jobs.reference(*TRAIN).result.digest


def test_whatever_comes_to_the_socket_the_job_trains_on(
    live: Callable[..., Live], jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = live("--workers", "2:2")
    job.until(lambda history: len(history.steps) >= 2)
    with monkeypatch.context() as there:
        there.chdir(job.folder)
        callers = [socket.socket(socket.AF_UNIX) for _ in range(40)]
        for number, caller in enumerate(callers):
            caller.connect(SOCKET_NAME)
            caller.setblocking(False)
            hostile = (b"", b"hello\n", b"[" * 60_000 + b"\n", b'{"ask": "scale", "workers": 1, "token": "x"}\n', b"x")
            caller.send(hostile[number % len(hostile)])
    job.until(lambda history: history.steps[-1].global_step >= 20)
    assert job.call("scale", "live", "--workers", "1").returncode == 2
    for caller in callers:
        caller.close()
    result = job.end()
    assert result["placements"] == ["0,1|2,3"]
    assert result["digest"] == jobs.reference(*TRAIN).result.digest


def test_a_run_whose_launcher_was_killed_is_dead(live: Callable[..., Live]) -> None:
    job = live("--workers", "2:2")
    job.until(lambda history: len(history.steps) >= 2)
    (known,) = json.loads(job.call("ps", "--json").stdout)
    assert known["state"] == "running"
    job.process.kill()
    job.process.wait()
    (known,) = json.loads(job.call("ps", "--json").stdout)
    assert (known["state"], known["placement"]) == ("dead", "0,1|2,3")
    assert "live  dead" in job.call("watch", "live").stdout
    asked = job.call("scale", "live", "--workers", "2")
    assert asked.returncode == 2
    assert "is not running" in asked.stderr
