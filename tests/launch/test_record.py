"""What a run leaves behind: events, logged scalars, watched digests, dumped state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from easyscale.core.digest import combine
from easyscale.core.errors import JobFailedError, RefusedError
from easyscale.core.events import EndEvent, StartEvent
from easyscale.core.job import WatchSpec
from easyscale.core.messages import Logged, StepReport
from easyscale.launch.folder import EventLog, RunFolder
from easyscale.launch.steps import StepMerger
from launch.harness import Ran

Run = Callable[..., Ran]

TRAIN = "from tiny import steps\nsteps(5)\nprint('end')"


def test_a_run_records_start_steps_and_end(run_script: Run) -> None:
    ran = run_script(TRAIN, placement="3,0|2|1", overrides={"seed": 7}, args=("--x",))
    start, *steps, end = ran.events()
    assert isinstance(start, StartEvent)
    assert isinstance(end, EndEvent)
    assert (start.args, start.num_ests, start.placement, start.overrides) == (["--x"], 4, "3,0|2|1", {"seed": 7})
    assert start.versions.keys() == {"python", "torch", "easyscale"}
    assert steps == ran.recorder.steps
    assert [event.global_step for event in ran.recorder.steps] == [0, 1, 2, 3, 4]
    assert ran.recorder.steps[2].log == {str(rank): {"loss": 20.0 + rank} for rank in range(4)}
    assert list(ran.recorder.steps[2].log) == ["0", "1", "2", "3"]
    assert ran.recorder.steps[0].digest is None
    assert (end.state, end.exit_code) == ("finished", 0)
    result = json.loads((ran.result.folder.path / "result.json").read_text())
    assert result["state"] == "finished"
    assert result["placements"] == ["3,0|2|1"]


def test_a_watched_run_records_digests_and_hashes(run_script: Run) -> None:
    ran = run_script(TRAIN, placement="1|0", watch=WatchSpec(digests=True))
    steps = ran.recorder.steps
    assert len({event.digest for event in steps}) == 5
    for event in steps:
        assert event.tensors is not None
        assert list(event.tensors) == ["weight", "bias"]
        assert event.digest == combine(event.tensors)


def test_a_dump_holds_every_tensor_as_it_was_and_ends_the_run_well(run_script: Run, tmp_path: Path) -> None:
    from safetensors import safe_open

    path = tmp_path / "state.safetensors"
    ran = run_script(TRAIN, placement="1|0", watch=WatchSpec(dump_step=2, dump_path=str(path)))
    assert (ran.result.state, ran.out) == ("finished", "")
    assert [event.global_step for event in ran.recorder.steps] == [0, 1, 2]
    with safe_open(path, "np") as dumped:
        assert dumped.get_tensor("weight").tolist() == dumped.get_tensor("tied").tolist() == [3, 3, 3]
        assert dumped.get_tensor("lr").item() == 0.1
        assert dumped.get_tensor("count").item() == 7
    assert [file.name for file in tmp_path.glob("state*")] == ["state.safetensors"]


def report(worker: int, step: int, digest: str | None = None) -> StepReport:
    return StepReport(worker, step, 0, None, 0.1 + worker, {str(worker): {"loss": 1.0}}, digest)


def test_a_step_counts_when_every_worker_has_finished_it() -> None:
    merger = StepMerger({0: 0, 1: 0})
    assert merger.add(report(0, 1)) == []
    assert merger.add(report(0, 2)) == []
    assert merger.last_finished is None
    (whole,) = merger.add(report(1, 1))
    assert (whole.global_step, whole.seconds, list(whole.scalars)) == (1, 1.1, ["0", "1"])
    assert (merger.last_finished, merger.finished_steps) == (1, 1)


def test_a_step_waits_neither_for_a_lost_worker_nor_for_one_that_came_after_it() -> None:
    merger = StepMerger({0: 0, 1: 0})
    merger.log(Logged(1, 4, {"1": {"loss": 2.0}}))
    merger.add(report(0, 4))
    (whole,) = merger.change({0: 0, 2: 5})
    assert whole.scalars == {"0": {"loss": 1.0}, "1": {"loss": 2.0}}
    assert merger.add(report(1, 4)) == []
    assert merger.add(report(0, 5)) == []
    assert len(merger.add(report(2, 5))) == 1


def test_workers_that_hold_different_tensors_end_the_run() -> None:
    merger = StepMerger({0: 0, 1: 0})
    merger.add(report(0, 0, "aa"))
    with pytest.raises(JobFailedError, match="workers 0 and 1 hold different tensors after global step 0"):
        merger.add(report(1, 0, "bb"))


def test_a_full_disk_is_said_once() -> None:
    said: list[str] = []
    event = EndEvent(1.0, "finished", 0, 1, 1.0)
    with EventLog(Path("/dev/full"), said.append) as log:
        log.write(event)
        log.write(event)
    assert len(said) == 1
    assert "No space left on device" in said[0]


def test_training_goes_on_without_its_record(run_script: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("easyscale.core.events.FILE_NAME", "/dev/full")
    ran = run_script(TRAIN)
    assert (ran.result.state, ran.out) == ("finished", "end\n")
    assert len(ran.recorder.notices) == 1


def test_logs_that_cannot_be_written_do_not_break_training(run_script: Run) -> None:
    ran = run_script(
        """
        import os, sys
        from tiny import steps
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, 1); os.dup2(full, 2)
        print("still", "here")
        print("and here")
        """
    )
    assert ran.out == "still here\nand here\n"
    assert ran.err.count("No space left on device") == 1


def test_names_of_runs_are_unique(tmp_path: Path) -> None:
    paths = {RunFolder.create(tmp_path, None, "some/digits.py").path.name for _ in range(3)}
    assert len(paths) == 3
    assert all(name.startswith("digits-2") for name in paths)
    RunFolder.create(tmp_path, "mine", "digits.py")
    with pytest.raises(RefusedError, match="a run named 'mine' is already in"):
        RunFolder.create(tmp_path, "mine", "digits.py")


@pytest.mark.parametrize("name", ["a/b", "..", ""])
def test_a_name_is_the_name_of_a_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(RefusedError, match="is not the name of a folder"):
        RunFolder.create(tmp_path, name, "digits.py")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError, match="--run-dir"):
        RunFolder.create(tmp_path / "file", None, "digits.py")
