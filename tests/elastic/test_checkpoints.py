"""A job that was ended goes on from its checkpoint, anywhere, as if nothing had been."""

from __future__ import annotations

import os
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
from easyscale.train.checkpoint.read import find_newest
from easyscale.train.checkpoint.write import POINTS
from elastic.conftest import SCRIPT, Jobs, Ran
from launch.harness import Recorder, leftovers

pytestmark = pytest.mark.timeout(120)


def spec(folder: Path, every: int = 0, **how: Any) -> CheckpointSpec:
    return CheckpointSpec(str(folder / "checkpoints"), every, **how)


def saved(ran: Ran) -> list[int]:
    return [event.global_step for event in ran.events if isinstance(event, CheckpointEvent) and event.path]


def assert_rest(second: Ran, whole: Ran, start: int) -> None:
    """The steps from ``start`` on, and the end, are those of the undisturbed run."""
    assert [step.global_step for step in second.steps] == list(range(start, len(whole.steps)))
    for ours, theirs in zip(second.steps, whole.steps[start:], strict=True):
        assert ours.digest == theirs.digest, ours.global_step
    assert second.result.digest == whole.result.digest


def assert_continued(first: Ran, second: Ran, whole: Ran) -> None:
    """The steps of both are those of the undisturbed run; those that both made are the same."""
    assert second.result.state == "finished", (second.result.failure, second.recorder.notices)
    resumed = next(event for event in second.events if isinstance(event, ResumeEvent))
    assert_rest(second, whole, resumed.global_step)
    assert resumed.global_step <= len(first.steps)
    digests = {step.global_step: step.digest for step in whole.steps}
    for step in first.steps:
        assert step.digest == digests[step.global_step], step.global_step
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
    assert_rest(second, whole, step)


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
    assert_rest(second, whole, second.steps[0].global_step)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_writer_that_is_killed_anywhere_costs_neither_the_job_nor_its_checkpoints(
    jobs: Jobs, tmp_path: Path, point: str
) -> None:
    ran = jobs.check(
        "cnn", "--sleep", 0.02, placement="0,1|2,3", checkpoint=spec(tmp_path, 1, keep=2), faults=(Fault(point),)
    )
    assert ran.losses
    found = find_newest(tmp_path / "checkpoints")
    assert found is not None
    assert not found.skipped
    assert found.checkpoint.state.global_step == len(ran.steps)
    assert not list((tmp_path / "checkpoints").glob(".*partial*"))


SCALED = """
import easyscale, torch
session = easyscale.session(num_ests=2, seed=1)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
model, optimizer, scaler, schedule = session.prepare(model, optimizer, scaler, schedule)
for step in session.steps(10):
    for rank in step:
        x = torch.full((2, 3), rank + 1.0)
        if step.global_step == 7:
            x[0, 0] = float("inf")  # an overflow
        scaler.scale(model(x).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    before = schedule.get_last_lr()[0]
    schedule.step()
    session.log(scale=scaler.get_scale(), growth=scaler.state_dict()["_growth_tracker"], lr=before)
"""


def test_loss_scale_schedule_and_moments_go_on_where_they_were(jobs: Jobs, tmp_path: Path) -> None:
    """Scenarios 45, 46 and 48."""
    script = tmp_path / "scaled.py"
    script.write_text(SCALED)
    whole = jobs.run(script=script, placement="0,1")
    assert {step.log["0"]["scale"] for step in whole.steps} == {256.0, 512.0, 1024.0}
    jobs.run(
        script=script,
        placement="0|1",
        checkpoint=spec(tmp_path, 5),
        faults=(Fault("step.in_turn", step=5),),
        max_failures=0,
    )
    second = jobs.run(script=script, placement="0,1", checkpoint=spec(tmp_path, 5, resume=True))
    assert [step.global_step for step in second.steps] == list(range(5, 10))
    for found, expected in zip(second.steps, whole.steps[5:], strict=True):
        assert (found.digest, found.log) == (expected.digest, expected.log)


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
            folder.rename(tmp_path / "moved")  # at once: a checkpoint may be being written into it
            folder.write_text("in the way")

    recorder.on_step = spoil
    ran = jobs.check("cnn", "--sleep", 0.02, placement="0,1|2,3", checkpoint=spec(tmp_path, 1), recorder=recorder)
    reasons = [event.reason for event in ran.recorder.checkpoints if isinstance(event, CheckpointEvent)]
    assert any(reason and "training goes on" in reason for reason in reasons), reasons
