"""The fixture of tests/conftest.py that fails a leaking test does so, and lets the others pass."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"

LEAKS = """
import os, random, signal, socket, subprocess

kept = []

def test_environment(): os.environ["LEFT_BEHIND"] = "1"
def test_file(): open("left_behind", "w").close()
def test_socket(): kept.append(socket.socket())
def test_signal(): signal.signal(signal.SIGTERM, lambda *_: None)
def test_random(): random.random()
def test_child(): kept.append(subprocess.Popen(["sleep", "60"]))

def test_the_end():
    opened, child = kept
    opened.close()
    child.kill()
    child.wait()
"""

CLEAN = """
import random, subprocess, pytest

def test_environment(monkeypatch): monkeypatch.setenv("PUT_BACK", "1")
def test_file(tmp_path): (tmp_path / "elsewhere").touch()
def test_child(): subprocess.run(["true"], check=True)

@pytest.mark.draws_random_numbers
def test_random(): random.random()
"""


def outcome(folder: Path, tests: str) -> str:
    shutil.copy(CONFTEST, folder)
    (folder / "test_these.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "--rootdir", folder, "-p", "no:cacheprovider", "-rE"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def test_each_kind_of_leak_fails_the_test_that_left_it(tmp_path: Path) -> None:
    output = outcome(tmp_path, LEAKS)
    for line in (
        "environment variables: LEFT_BEHIND is new (1)",
        "files in working directory: left_behind is new",
        "sockets: socket:",
        "signal handlers: 15 was ",
        "random numbers: the stream of random moved on",
        "child processes: ",
    ):
        assert line in output
    assert "7 passed, 6 errors" in output


def test_a_test_that_cleans_up_passes(tmp_path: Path) -> None:
    assert "4 passed" in outcome(tmp_path, CLEAN).splitlines()[-1]
