"""The command line in this process, with one forkserver for all tests of this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from easyscale.cli.main import main
from easyscale.launch.forkserver import running_forkserver
from launch.harness import leftovers, write_script


@dataclass(frozen=True)
class Called:
    """A command that has ended."""

    exit_code: int
    out: str
    err: str


Call = Callable[..., Called]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Calls ``easyscale ARGUMENTS`` in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call_it(*arguments: str) -> Called:
        capfd.readouterr()
        exit_code = main(arguments)
        captured = capfd.readouterr()
        return Called(exit_code, captured.out, captured.err)

    return call_it


@pytest.fixture(scope="package")
def forkserver() -> Iterator[None]:
    with running_forkserver():
        yield


@pytest.fixture
def call_script(
    forkserver: None, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Called]]:
    """``call_script(SOURCE, "run", ...)`` runs that source; a ``...`` argument stands for the script."""
    monkeypatch.setattr("easyscale.launch.forkserver.running_forkserver", contextlib.nullcontext)

    def call_it(source: str, *arguments: object) -> Called:
        write_script(tmp_path, source)
        return call(*("train.py" if argument is ... else str(argument) for argument in arguments))

    yield call_it
    assert not leftovers(tmp_path)
