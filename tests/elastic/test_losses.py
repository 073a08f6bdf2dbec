"""Workers that are lost at any moment cost the pass that runs, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from easyscale.core.job import Fault
from elastic.conftest import Jobs, assert_equal

IN_A_STEP = [
    "step.begin",
    "step.in_turn",
    "step.before_reduction",
    "step.after_reduction",
    "operation.before_barrier",
    "operation.after_barrier",
    "step.outer_body",
    "step.end",
]
IN_A_RESCALE = [
    "joiner.ready",
    "rescale.border",
    "rescale.before_meeting",
    "rescale.before_state",
    "rescale.in_state",
    "rescale.after_state",
    "rescale.formed",
    "rescale.done",
    "joiner.arrived",
]
AT_THE_START = ["startup.session", "startup.first_loop"]


def test_a_killed_worker_costs_one_pass(jobs: Jobs) -> None:
    ran = jobs.check("cnn", faults=(Fault("step.in_turn", step=3, worker_rank=1),))
    assert ran.placements[:2] == ["0,1|2,3", "0,1,2,3"]
    assert [event.worker_rank for event in ran.losses] == [1]
    assert ran.rescales[0].reason == "loss"
    assert "was ended by SIGKILL" in ran.recorder.notices[0]


def test_virtual_rank_0_s_worker_may_be_lost_in_the_drop_in_form(jobs: Jobs) -> None:
    faults = (Fault("step.before_reduction", step=3, virtual_rank=0),)
    ran = jobs.check("cnn", "--form", "drop_in", placement="0|1|2|3", faults=faults)
    assert [event.worker_rank for event in ran.losses] == [0]


def test_a_lost_worker_is_replaced(jobs: Jobs) -> None:
    ran = jobs.check("cnn", "--sleep", 0.02, placement="0,1|2,3", faults=(Fault("step.begin", step=2, worker_rank=0),))
    assert ran.placements == ["0,1|2,3", "0,1,2,3", "0,1|2,3"]
    assert ran.rescales[1].reason == "replacement"


@pytest.mark.slow
@pytest.mark.parametrize("point", IN_A_STEP)
@pytest.mark.parametrize("placement", ["0|1|2|3", "0,1|2,3"])
@pytest.mark.parametrize("worker", [0, 1])
def test_a_kill_anywhere_in_a_step(jobs: Jobs, point: str, placement: str, worker: int) -> None:
    jobs.check("cnn", placement=placement, faults=(Fault(point, step=3, worker_rank=worker),))


@pytest.mark.slow
@pytest.mark.parametrize("point", IN_A_STEP)
def test_a_kill_anywhere_in_a_step_of_the_drop_in_form(jobs: Jobs, point: str) -> None:
    # what a script logs after its backward is said when the turn is over, and may be lost with its worker
    job = {"placement": "0|1|2|3", "compares_logs": False}
    jobs.check("cnn", "--form", "drop_in", **job, faults=(Fault(point, step=3, virtual_rank=2),))


@pytest.mark.slow
@pytest.mark.parametrize("point", IN_A_RESCALE)
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_kill_anywhere_in_a_rescale(jobs: Jobs, point: str, worker: int) -> None:
    jobs.check("cnn", schedule=((3, 4), (5, 2)), faults=(Fault(point, worker_rank=worker),))


@pytest.mark.slow
@pytest.mark.parametrize("point", AT_THE_START)
@pytest.mark.parametrize("action", ["kill", "exit", "stop"])
def test_a_worker_that_joins_is_lost_while_it_starts(jobs: Jobs, point: str, action: str) -> None:
    faults = (Fault(point, action, worker_rank=2),)
    ran = jobs.check("cnn", schedule=((3, 4),), faults=faults, hang_timeout_s=1.5)
    assert [event.worker_rank for event in ran.losses] == [2]
    assert ran.rescales[0].joined == [3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("point", AT_THE_START)
def test_a_worker_lost_before_anybody_trained_is_replaced_or_ends_the_run_in_words(jobs: Jobs, point: str) -> None:
    """By chance: where the other one has come to its first loop by then, it has the job's state."""
    ran = jobs.run("cnn", faults=(Fault(point, worker_rank=1),))
    if ran.result.state == "finished":
        assert [event.worker_rank for event in ran.losses] == [1]
        assert_equal(ran, jobs.reference("cnn"))
    else:
        assert "worker 1 (virtual ranks 2, 3) was ended by SIGKILL" in str(ran.result.error)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["recovery.begin", "rescale.before_meeting", "rescale.formed"])
def test_a_kill_while_another_loss_is_dealt_with(jobs: Jobs, point: str) -> None:
    faults = (Fault("step.in_turn", step=3, worker_rank=1), Fault(point, step=3, worker_rank=2))
    ran = jobs.check("cnn", placement="0|1|2|3", faults=faults)
    assert len(ran.losses) == 2


@pytest.mark.slow
@pytest.mark.parametrize("action", ["kill", "exit", "stop"])
def test_all_workers_but_one_are_lost_at_once(jobs: Jobs, action: str) -> None:
    faults = tuple(Fault("step.in_turn", action, step=2, worker_rank=worker) for worker in (0, 1, 2))
    ran = jobs.check("cnn", placement="0|1|2|3", faults=faults, hang_timeout_s=1.0)
    assert sorted(event.worker_rank for event in ran.losses) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["step.in_turn", "step.after_reduction", "rescale.before_meeting"])
def test_a_hung_worker_is_lost_after_the_seconds_given(jobs: Jobs, point: str) -> None:
    faults = (Fault(point, "stop", worker_rank=1),)
    ran = jobs.check("cnn", placement="0|1|2,3", schedule=((3, 4),), faults=faults, hang_timeout_s=1.0)
    assert len(ran.losses) == 1
    assert ran.result.seconds < 6


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["transformer", "patchy", "never_zeroed", "replacing", "augmented", "mixed_dtypes"])
@pytest.mark.parametrize("point", ["step.in_turn", "step.after_reduction", "step.outer_body"])
def test_every_kind_of_model_survives(jobs: Jobs, recipe: str, point: str) -> None:
    faults = (Fault(point, step=1, virtual_rank=0), Fault(point, step=4, virtual_rank=3))
    jobs.check(recipe, placement="0|1|2|3", faults=faults)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["evaluation.in_loop", "sum.after", "operation.after_barrier"])
@pytest.mark.parametrize("worker", [0, 1])
def test_a_loss_in_an_evaluation(jobs: Jobs, point: str, worker: int) -> None:
    """What the lost worker had counted is counted again by the others."""
    faults = (Fault(point, step=3, worker_rank=worker),)
    jobs.check("cnn", "--evaluate-every", 4, placement="0|1|2,3", faults=faults)


@pytest.mark.slow
def test_counts_that_are_gone_end_the_run_in_words(jobs: Jobs) -> None:
    ran = jobs.run("cnn", "--evaluate-every", 4, faults=(Fault("sum.before", step=3, worker_rank=1),))
    assert ran.result.state == "failed"
    assert "a worker was lost with counts that it had not added" in str(ran.result.error)


@pytest.mark.slow
@pytest.mark.parametrize("worker", [0, 1])
def test_sigterm_to_a_worker_moves_the_job_off_it(jobs: Jobs, worker: int) -> None:
    ran = jobs.check("cnn", "--sleep", 0.05, faults=(Fault("step.in_turn", "term", step=2, worker_rank=worker),))
    assert ran.rescales[0].reason == "preemption"
    assert ran.rescales[0].left == [worker]
    assert not ran.losses


@pytest.mark.slow
def test_a_change_at_a_far_step_does_not_hold_up_a_preemption(jobs: Jobs) -> None:
    fault = Fault("step.in_turn", "term", step=2, worker_rank=1)
    ran = jobs.check("cnn", "--sleep", 0.05, schedule=((7, 1),), faults=(fault,))
    assert ran.rescales[0].reason == "preemption"
    assert ran.rescales[0].global_step < 7
    assert ran.placements[-1] == "0,1,2,3"


@pytest.mark.slow
def test_sigterm_to_the_only_worker_waits_for_another_one(jobs: Jobs) -> None:
    fault = Fault("step.in_turn", "term", step=2)
    ran = jobs.check("cnn", "--sleep", 0.05, placement="0,1", faults=(fault,))
    assert ran.placements == ["0,1", "0,1"]
    assert (ran.rescales[0].joined, ran.rescales[0].left) == ([1], [0])


@pytest.mark.slow
def test_losses_without_steps_between_end_with_the_last_cause(jobs: Jobs) -> None:
    faults = tuple(Fault("step.in_turn", step=3, virtual_rank=0) for _ in range(3))
    ran = jobs.run("cnn", placement="0|1|2|3", faults=faults, max_failures=2)
    assert ran.result.state == "failed"
    assert "3 workers were lost in a row" in str(ran.result.error)
    assert "SIGKILL" in str(ran.result.error)


@pytest.mark.slow
def test_new_workers_that_fail_leave_the_job_as_it_is(jobs: Jobs) -> None:
    faults = (Fault("step.in_turn", step=1, worker_rank=1), Fault("joiner.ready"), Fault("joiner.ready"))
    ran = jobs.check("cnn", "--sleep", 0.05, faults=faults)
    assert len(ran.losses) == 3


@pytest.mark.slow
@pytest.mark.parametrize("form", ["two_loop", "drop_in"])
@pytest.mark.parametrize("placement", ["0|1|2|3", "0,1|2,3"])
@pytest.mark.parametrize("recipe", ["cnn", "augmented"])
@pytest.mark.parametrize("last_step", ["of an epoch", "of all"])
def test_virtual_rank_0_s_worker_is_lost_after_the_last_pass(
    jobs: Jobs, form: str, placement: str, recipe: str, last_step: str
) -> None:
    """What the script does after its loops is done by the worker that has virtual rank 0 then."""
    per_epoch = {"cnn": 4, "augmented": 3}[recipe]
    step = {"of an epoch": per_epoch, "of all": 2 * per_epoch}[last_step] - 1
    faults = (Fault("operation.after_barrier", step=step, virtual_rank=0),)
    job = {"placement": placement, "faults": faults, "overrides": {"rng": "ddp"}, "compares_logs": form == "two_loop"}
    ran = jobs.check(recipe, "--form", form, **job)
    assert [event.worker_rank for event in ran.losses] == [0]


ENDS_WITHOUT_MAIN = """
import os, signal, time
import torch
import easyscale

session = easyscale.session(seed=1)
model = torch.nn.Linear(2, 1)
model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in session.steps(3):
    for _ in step:
        model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
is_main = session.is_main
if is_main:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.5)
"""


def test_a_script_whose_end_is_lost_has_not_finished(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "ends_without_main.py"
    script.write_text(ENDS_WITHOUT_MAIN)
    ran = jobs.run(script=script, placement="0|1")
    assert ran.result.state == "failed"
    assert "the worker of virtual rank 0 was lost after its last global step" in str(ran.result.error)
