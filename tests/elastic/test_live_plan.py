"""A job whose workers pretend to be of different speeds moves its ESTs to where they are faster; no bit changes.

A mini-batch sleeps for a time beside which its computation is short, so that workers on few cores keep their pretended
speeds. ``bench/live_plan.py`` compares with the prediction to the per cent; here are bounds that a busy machine keeps.
"""

from __future__ import annotations

import statistics

import pytest

from easyscale.core.events import PlanEvent
from easyscale.core.job import Fault
from easyscale.launch.devices import Devices
from easyscale.schedule.replan import PlanRules
from elastic.conftest import Jobs, Ran, assert_equal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KINDS = ("V100", "T4", "T4")
SPEEDS = {"V100": 1.0, "T4": 0.4}
EVEN = "0,1,2|3,4,5|6,7"
PLANNED = "0,1,2,3|4,5|6,7"
SLOW_FROM = 34


def steps_per_s(ran: Ran, first: int, last: int) -> float:
    """From the end of one global step to the end of another."""
    times = {step.global_step: step.t for step in ran.steps}
    return (last - first) / (times[last] - times[first])


def plans(ran: Ran) -> list[PlanEvent]:
    return [event for event in ran.events if isinstance(event, PlanEvent)]


def test_ests_move_to_where_they_are_faster_and_off_a_worker_that_slows_down(jobs: Jobs) -> None:
    devices = Devices(KINDS, SPEEDS, slowdowns=((SLOW_FROM, 1, 0.5),))
    job = ("cnn", "--epochs", 28)
    ran = jobs.run(*job, "--sleep", 0.02, placement=EVEN, plan=PlanRules(), devices=devices)
    assert ran.result.state == "finished"
    assert_equal(ran, jobs.reference(*job, num_ests=8))

    first, kept, *_ = plans(ran)
    assert (first.decision, first.placement, kept.decision) == ("move", PLANNED, "stay")
    assert [event.reason for event in ran.rescales] == ["plan", "plan"]
    arrived = ran.rescales[0].global_step
    assert arrived <= 28
    even = statistics.median(step.seconds for step in ran.steps[2 : first.global_step])
    measured = steps_per_s(ran, max(arrived, 12), SLOW_FROM - 1)
    assert measured == pytest.approx(first.steps_per_s, rel=0.2)
    assert measured >= 1.3 / even

    unloaded = next(plan for plan in plans(ran) if plan.global_step >= SLOW_FROM)
    assert unloaded.decision == "move"
    assert "worker 1 (T4) is slow" in unloaded.reason
    assert ran.rescales[1].global_step <= SLOW_FROM + 20
    assert [len(part.split(",")) for part in ran.placements[-1].split("|")] == [5, 1, 2]
    assert (ran.result.folder.path / "profile.json").exists()


def test_a_loss_and_the_drop_in_form_under_a_plan(jobs: Jobs) -> None:
    faults = (Fault("step.in_turn", "kill", 20, 2),)
    job = ("cnn", "--epochs", 20, "--form", "drop_in")
    devices = Devices(KINDS, SPEEDS)
    ran = jobs.run(*job, "--sleep", 0.01, placement=EVEN, plan=PlanRules(), devices=devices, faults=faults)
    assert ran.result.state == "finished"
    # what a script logs after its backward may be lost with its worker (docs/elasticity.md)
    assert_equal(ran, jobs.reference(*job, num_ests=8), compares_logs=False)
    assert [loss.worker_rank for loss in ran.losses] == [2]
    assert plans(ran)[0].decision == "move"
    assert ran.placements[-1] == PLANNED
