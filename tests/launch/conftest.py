"""Real worker processes, cheaply: one forkserver for all tests of this folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from easyscale.core.job import ScriptSpec, WatchSpec
from easyscale.core.placement import Placement
from easyscale.launch.folder import RunFolder
from easyscale.launch.forkserver import running_forkserver
from easyscale.launch.run import run
from easyscale.launch.spec import RunSpec
from launch.harness import Ran, Recorder, leftovers, write_script


@pytest.fixture(scope="package")
def forkserver() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))  # other tests' fixtures may have some
    with running_forkserver():
        yield
    assert not set(psutil.Process().children(recursive=True)) - before


@pytest.fixture
def run_script(forkserver: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ran]]:
    """Runs a source text; afterwards no process and no rendezvous folder may be left."""
    monkeypatch.chdir(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def run_it(
        source: str,
        placement: str = "0",
        args: tuple[str, ...] = (),
        watch: WatchSpec | None = None,
        recorder: Recorder | None = None,
        **spec: Any,
    ) -> Ran:
        recorder = recorder or Recorder()
        folder = RunFolder.create(tmp_path / "runs", None, "train.py")
        script = ScriptSpec(str(write_script(tmp_path, source)), args)
        result = run(RunSpec(script, Placement.parse(placement), watch=watch or WatchSpec(), **spec), folder, recorder)
        return Ran(result, recorder)

    yield run_it
    assert not leftovers(tmp_path)
    assert not list(temporary.iterdir())
