"""Runs ``train.py`` on real workers that come and go, and compares every step with the undisturbed run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from easyscale.core import events
from easyscale.core.events import Event, LossEvent, RescaleEvent, StepEvent
from easyscale.core.job import CheckpointSpec, Fault, ScriptSpec, WatchSpec
from easyscale.core.placement import Placement
from easyscale.launch.elasticity import Elasticity
from easyscale.launch.folder import RunFolder
from easyscale.launch.forkserver import running_forkserver
from easyscale.launch.run import RunResult, run
from easyscale.launch.spec import RunSpec
from launch.harness import Recorder, leftovers

SCRIPT = Path(__file__).with_name("train.py")


@dataclass
class Ran:
    """A run that is over."""

    result: RunResult
    recorder: Recorder = field(repr=False)

    @property
    def events(self) -> list[Event]:
        return list(events.read(self.result.folder.path / events.FILE_NAME))

    @property
    def steps(self) -> list[StepEvent]:
        return [event for event in self.events if isinstance(event, StepEvent)]

    @property
    def rescales(self) -> list[RescaleEvent]:
        return [event for event in self.events if isinstance(event, RescaleEvent)]

    @property
    def losses(self) -> list[LossEvent]:
        return [event for event in self.events if isinstance(event, LossEvent)]

    @property
    def placements(self) -> list[str]:
        return list(self.result.placements)


class Jobs:
    """Runs jobs in a folder; the undisturbed run of each script is made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._references: dict[str, Ran] = {}

    def run(
        self,
        *args: Any,
        placement: str = "0,1|2,3",
        schedule: tuple[tuple[int, int | str], ...] = (),
        faults: tuple[Fault, ...] = (),
        recorder: Recorder | None = None,
        overrides: dict[str, Any] | None = None,
        script: Path = SCRIPT,
        checkpoint: CheckpointSpec | None = None,
        **rules: Any,
    ) -> Ran:
        recorder = recorder or Recorder()
        placed = Placement.parse(placement)
        changes = tuple((step, w if isinstance(w, int) else Placement.parse(w)) for step, w in schedule)
        elasticity = Elasticity(1, max(4, placed.num_workers), changes, faults=faults, **rules)
        folder = RunFolder.create(self._folder, None, script.name)
        spec = RunSpec(
            ScriptSpec(str(script), tuple(map(str, args))),
            placed,
            True,
            {"threads": 1, **(overrides or {})},
            WatchSpec(digests=True, by_all=True),
            elasticity,
            checkpoint,
        )
        return Ran(run(spec, folder, recorder), recorder)

    def reference(
        self, *args: Any, num_ests: int = 4, overrides: dict[str, Any] | None = None, script: Path = SCRIPT
    ) -> Ran:
        """The same script on one worker that nobody disturbs."""
        key = repr((script, args, num_ests, sorted((overrides or {}).items())))
        if key not in self._references:
            placement = str(Placement.even(num_ests, 1))
            self._references[key] = self.run(*args, placement=placement, overrides=overrides, script=script)
            assert self._references[key].result.state == "finished", self._references[key].result.failure
        return self._references[key]

    def check(self, *args: Any, compares_logs: bool = True, **job: Any) -> Ran:
        """Run the job with its events; it must equal the undisturbed run at every step."""
        found = self.run(*args, **job)
        assert found.result.state == "finished", _story(found)
        num_ests = Placement.parse(job.get("placement", "0,1|2,3")).num_ests
        script = job.get("script", SCRIPT)
        expected = self.reference(*args, num_ests=num_ests, overrides=job.get("overrides"), script=script)
        assert_equal(found, expected, compares_logs=compares_logs)
        return found


def _story(ran: Ran) -> str:
    """How a run came to its end."""
    cause = ran.result.failure
    return "\n".join(
        [f"{ran.result.state}: {cause and cause.message}", cause.details if cause else "", *ran.recorder.notices]
    )


def assert_equal(found: Ran, expected: Ran, *, compares_logs: bool = True) -> None:
    """Every step once, with the same tensors, logged values and printed text."""
    assert [step.global_step for step in found.steps] == [step.global_step for step in expected.steps]
    for ours, theirs in zip(found.steps, expected.steps, strict=True):
        wrong = [name for name in theirs.tensors or {} if (ours.tensors or {}).get(name) != theirs.tensors[name]]
        assert not wrong, f"global step {ours.global_step}: {wrong[:5]} differ ({found.placements})"
        assert ours.digest == theirs.digest
        assert ours.epoch == theirs.epoch
        if compares_logs:
            assert ours.log == theirs.log, f"global step {ours.global_step}: logged values differ"
    assert found.result.digest == expected.result.digest
    assert found.recorder.text["stdout"] == expected.recorder.text["stdout"]


@pytest.fixture(scope="package")
def forkserver() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))  # other tests' fixtures may have some
    with running_forkserver():
        yield
    assert not set(psutil.Process().children(recursive=True)) - before


@pytest.fixture(scope="package")
def shared_jobs(forkserver: None, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(tmp_path_factory.mktemp("elastic"))


@pytest.fixture
def jobs(shared_jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Afterwards no process, and nothing that workers met at, may be left."""
    monkeypatch.chdir(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield shared_jobs
    assert not leftovers(tmp_path)
    assert not list(temporary.iterdir())


Check = Callable[..., Ran]
