"""A job that was ended goes on from its checkpoint, anywhere, as if nothing had been."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from easyscale.core.events import CheckpointEvent, ResumeEvent, StepEvent
from easyscale.core.job import CheckpointSpec, Fault
from elastic.conftest import SCRIPT, Jobs, Ran
from launch.harness import Recorder, leftovers

pytestmark = pytest.mark.timeout(120)


def spec(folder: Path, every: int = 0, **how: Any) -> CheckpointSpec:
    return CheckpointSpec(str(folder / "checkpoints"), every, **how)


def saved(ran: Ran) -> list[int]:
    return [event.global_step for event in ran.events if isinstance(event, CheckpointEvent) and event.path]


def assert_continued(first: Ran, second: Ran, whole: Ran) -> None:
    """The steps of both are those of the undisturbed run; those that both made are the same."""
    digests = {step.global_step: step.digest for step in whole.steps}
    assert second.result.state == "finished", (second.result.failure, second.recorder.notices)
    resumed = next(event for event in second.events if isinstance(event, ResumeEvent))
    assert [step.global_step for step in second.steps] == list(range(resumed.global_step, len(whole.steps)))
    assert resumed.global_step <= len(first.steps)
    for step in [*first.steps, *second.steps]:
        assert step.digest == digests[step.global_step], step.global_step
    assert second.result.digest == whole.result.digest
    assert second.recorder.text["stdout"] == whole.recorder.text["stdout"]


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stopping_at(step: int) -> Recorder:
    """Somebody ends the launcher, which is this process, after that step."""
    recorder = Recorder()

    def stop(event: StepEvent) -> None:
        if event.global_step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    recorder.on_step = stop
    return recorder


CASES = [
    ("cnn", "0,1|2,3", "0,1,2,3", ()),
    pytest.param("cnn", "0,1,2,3", "0|1|2,3", ("--workers", 1, "--evaluate"), marks=pytest.mark.slow),
    pytest.param("transformer", "0|1,2|3", "0,1|2,3", ("--form", "flat"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("recipe", "before", "after", "arguments"), CASES)
def test_a_job_that_lost_all_its_workers_goes_on_from_its_newest_checkpoint(
    jobs: Jobs, tmp_path: Path, recipe: str, before: str, after: str, arguments: tuple[Any, ...]
) -> None:
    whole = jobs.reference(recipe, *arguments)
    middle = len(whole.steps) // 2 + 1
    first = jobs.run(
        recipe,
        *arguments,
        placement=before,
        checkpoint=spec(tmp_path, 1),
        faults=(Fault("step.in_turn", step=middle),),
        max_failures=0,
    )
    assert first.result.state == "failed"
    assert saved(first)
    second = jobs.run(recipe, *arguments, placement=after, checkpoint=spec(tmp_path, 1, resume=True))
    assert_continued(first, second, whole)
    assert saved(second)[-1] == len(whole.steps)


@pytest.mark.parametrize(
    "overrides", [None, pytest.param({"rng": "ddp"}, marks=pytest.mark.slow)], ids=["stepwise", "ddp"]
)
def test_a_run_that_is_asked_to_end_writes_a_checkpoint_first(
    jobs: Jobs, tmp_path: Path, overrides: dict[str, Any] | None
) -> None:
    arguments = ("cnn", "--sleep", 0.02)
    whole = jobs.reference(*arguments, overrides=overrides)
    first = jobs.run(*arguments, checkpoint=spec(tmp_path), recorder=stopping_at(2), overrides=overrides)
    assert first.result.state == "stopped"
    assert first.result.exit_code == 128 + signal.SIGTERM
    (step,) = saved(first)
    assert 3 <= step <= len(first.steps) + 1
    second = jobs.run(*arguments, placement="0,1,2,3", checkpoint=spec(tmp_path, resume=True), overrides=overrides)
    digests = {step.global_step: step.digest for step in whole.steps}
    assert [s.global_step for s in second.steps] == list(range(step, len(whole.steps)))
    assert all(s.digest == digests[s.global_step] for s in second.steps)
    assert second.result.digest == whole.result.digest


@pytest.mark.slow
def test_a_finished_job_has_nothing_left_to_do(jobs: Jobs, tmp_path: Path) -> None:
    whole = jobs.reference("cnn", "--evaluate")
    first = jobs.run("cnn", "--evaluate", checkpoint=spec(tmp_path, 3))
    assert saved(first)[-1] == len(whole.steps)
    again = jobs.run("cnn", "--evaluate", placement="0,1,2,3", checkpoint=spec(tmp_path, 3, resume=True))
    assert again.result.state == "finished", again.result.failure
    assert again.steps == []
    assert again.result.digest == whole.result.digest
    assert again.recorder.text["stdout"] == whole.recorder.text["stdout"]


def test_checkpoints_that_nobody_asked_to_go_on_from_are_no_silent_fresh_start(jobs: Jobs, tmp_path: Path) -> None:
    jobs.run("cnn", placement="0,1,2,3", checkpoint=spec(tmp_path, 4))
    again = jobs.run("cnn", checkpoint=spec(tmp_path, 4))
    assert again.result.exit_code == 2
    assert "holds checkpoints already" in (again.result.error or "")
    assert "--resume" in (again.result.error or "")


@pytest.mark.slow
def test_the_checkpoint_of_another_job_is_refused(jobs: Jobs, tmp_path: Path) -> None:
    jobs.run("cnn", placement="0,1,2,3", checkpoint=spec(tmp_path, 4))
    for placement, overrides, word in [
        ("0,1,2", None, "num_ests=4"),
        ("0,1|2,3", {"reduction": "ring"}, "reduction="),
    ]:
        other = jobs.run("cnn", placement=placement, overrides=overrides, checkpoint=spec(tmp_path, 4, resume=True))
        assert other.result.exit_code == 2
        assert word in (other.result.error or "")


@pytest.mark.slow
def test_a_torn_checkpoint_is_passed_over_and_told(jobs: Jobs, tmp_path: Path) -> None:
    whole = jobs.reference("cnn")
    first = jobs.run("cnn", checkpoint=spec(tmp_path, 2, keep=0))
    newest = [event.path for event in first.events if isinstance(event, CheckpointEvent)][-1]
    for file in Path(str(newest)).iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    second = jobs.run("cnn", placement="0,1,2,3", checkpoint=spec(tmp_path, 2, resume=True))
    resumed = second.recorder.checkpoints[0]
    assert isinstance(resumed, ResumeEvent)
    assert any("was passed over" in note for note in resumed.notes)
    assert_continued(first, second, whole)


@pytest.mark.slow
def test_the_writer_may_leave_and_the_next_one_goes_on_writing(jobs: Jobs, tmp_path: Path) -> None:
    ran = jobs.check(
        "cnn",
        checkpoint=spec(tmp_path, 1, keep=2),
        schedule=((2, 1), (4, "3,0|1,2")),
        faults=(Fault("step.outer_body", step=5, virtual_rank=3),),
    )
    assert saved(ran)[-1] == len(ran.steps)
    assert len(list((tmp_path / "checkpoints").glob("step*"))) <= 2


@pytest.mark.slow
def test_a_job_whose_launcher_is_gone_ends_with_a_checkpoint(jobs: Jobs, tmp_path: Path) -> None:
    arguments = ("cnn", "--sleep", "0.1")
    whole = jobs.reference(*arguments)
    line = [sys.executable, "-m", "easyscale", "run", "--placement", "0,1|2,3", "--name", "orphaned"]
    line += ["--checkpoint-dir", str(tmp_path / "checkpoints"), str(SCRIPT), *arguments]
    events_path = tmp_path / "runs" / "orphaned" / "events.jsonl"
    with subprocess.Popen(line, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as launcher:
        wait_until(lambda: events_path.exists() and b'"step"' in events_path.read_bytes())
        launcher.kill()
    wait_until(lambda: not leftovers(tmp_path))
    second = jobs.run(*arguments, placement="0,1,2,3", checkpoint=spec(tmp_path, resume=True))
    assert second.recorder.checkpoints, "nothing was saved"
    assert second.steps[0].global_step >= 1
    digests = {step.global_step: step.digest for step in whole.steps}
    assert all(step.digest == digests[step.global_step] for step in second.steps)
    assert second.result.digest == whole.result.digest


SAVING = """
import easyscale, torch
session = easyscale.session(num_ests=2, seed=1)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters())
model, optimizer = session.prepare(model, optimizer)
for step in session.steps(6):
    for rank in step:
        model(torch.full((2, 3), rank + 1.0)).sum().backward()
    optimizer.step()
    if step.global_step == 3:
        session.save_checkpoint()
"""


def test_the_script_may_ask_for_a_checkpoint(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "saving.py"
    script.write_text(SAVING)
    ran = jobs.run(script=script, placement="0|1", checkpoint=spec(tmp_path))
    assert ran.result.state == "finished", ran.result.failure
    assert saved(ran) == [4, 6]
    refused = jobs.run(script=script, placement="0|1")
    assert refused.result.exit_code == 2
    assert "--checkpoint-dir DIR" in (refused.result.error or "")


def test_training_goes_on_loudly_where_nothing_can_be_written(jobs: Jobs, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    recorder = Recorder()

    def spoil(event: StepEvent) -> None:
        if event.global_step == 2 and folder.is_dir():
            shutil.rmtree(folder)
            folder.write_text("in the way")

    recorder.on_step = spoil
    ran = jobs.check("cnn", "--sleep", 0.02, placement="0,1|2,3", checkpoint=spec(tmp_path, 1), recorder=recorder)
    reasons = [event.reason for event in ran.recorder.checkpoints if isinstance(event, CheckpointEvent)]
    assert any(reason and "training goes on" in reason for reason in reasons), reasons
