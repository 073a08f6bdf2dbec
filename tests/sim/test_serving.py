"""Serving has priority: what it wants it gets, in time, and what it leaves is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from easyscale.core.errors import RefusedError
from easyscale.schedule.policies import named
from easyscale.sim.experiment import Experiment, Outcome, run_policy
from easyscale.sim.serving import DAY_S, Curve, Serving, read_curve
from easyscale.sim.settings import Settings
from easyscale.sim.trace import DeviceChange, TraceJob
from sim.cases import KINDS, every_policy, job, run

DEMAND = Curve((0.0, 100.0, 200.0, 300.0), (1.0, 3.0, 4.0, 0.0))
ALWAYS = Curve((0.0,), (1.0,))


def served(policy: str = "easyscale", jobs: list[TraceJob] | None = None, **settings: float) -> Outcome:
    serving = Serving("V100", DEMAND, Curve((0.0,), (0.25,)), 0.0, 400.0)
    many = [job(f"j{n}", 4, 5000.0) for n in range(3)]
    return run_policy(
        Experiment(KINDS, (4, 4), jobs or many, Settings(**settings), serving=serving, until_s=400.0), named(policy)
    )


@every_policy
def test_serving_always_has_what_it_wants(policy: str) -> None:
    recorder = served(policy).recorder
    for at_s, there, held in zip(recorder.times_s, recorder.capacity_by_kind[0], recorder.held_by_kind[0], strict=True):
        if at_s < 400.0:
            assert there == 4 - DEMAND.at(at_s)
        assert held <= there


def test_allocation_and_utilisation_with_and_without_jobs_add_up() -> None:
    outcome = served()
    figures = outcome.serving
    assert figures is not None
    assert figures["allocation_without"] == pytest.approx((1 + 3 + 4 + 0) * 100 / (8 * 400))
    assert figures["utilisation_without"] == pytest.approx(figures["allocation_without"] / 4)
    on_v100 = outcome.summary.device_s_by_kind["V100"]
    assert on_v100 == pytest.approx((3 + 1 + 0 + 4) * 100)
    assert figures["jobs_failed"] == 0
    assert figures["jobs_completed"] == 0


def test_a_cluster_in_which_all_is_held_is_allocated_once() -> None:
    figures = served().serving
    assert figures is not None
    assert figures["allocation_with"] == pytest.approx(1.0)
    assert figures["utilisation_with"] <= 1.0


@pytest.mark.parametrize(("give_back_s", "num_ests"), [(5.0, 1), (0.2, 1)])
def test_giving_back_takes_no_longer_than_is_allowed(give_back_s: float, num_ests: int) -> None:
    """A mini-batch on a T4 takes a second; with 0.2 s to give back it is cut off."""
    changes = [DeviceChange(float(10 * n), "T4", -1, "serving") for n in range(1, 5)]
    jobs = [job(f"j{n}", num_ests, 100.0, preferred="T4") for n in range(4)]
    recorder = run(
        jobs, "easyscale-homo", (0, 4), [*changes, DeviceChange(500.0, "T4", 4, "serving")], give_back_s=give_back_s
    )
    took = [each.took_s for each in recorder.give_backs]
    assert len(took) == 4
    assert 0 < max(took) <= min(1.0, give_back_s)
    assert sum(each.devices for each in recorder.give_backs) == 4
    assert all(each.lost_steps == 0 for each in recorder.jobs)


def test_serving_does_not_wait_for_the_interval_of_decisions() -> None:
    recorder = run([job("a")], "easyscale", (4, 0), [DeviceChange(70.5, "V100", -2, "serving")], interval_s=60.0)
    assert [(at_s, held) for at_s, held, _ in recorder.jobs[0].segments][:2] == [(0.0, (4, 0)), (70.5, (2, 0))] or (
        recorder.jobs[0].end_s < 70.5
    )
    long = run(
        [job("a", steps=1000.0)], "easyscale", (4, 0), [DeviceChange(70.5, "V100", -2, "serving")], interval_s=60.0
    )
    assert [(at_s, held) for at_s, held, _ in long.jobs[0].segments][:2] == [(0.0, (4, 0)), (70.5, (2, 0))]


def test_a_policy_that_keeps_what_is_wanted_back_loses_it() -> None:
    """FIFO never gives anything back: the latest jobs are taken from."""
    jobs = [job(f"j{n}", 1, 200.0, float(n)) for n in range(4)]
    changes = [DeviceChange(50.0, "V100", -2, "serving"), DeviceChange(60.0, "V100", 2, "serving")]
    recorder = run(jobs, "fifo", (4, 0), changes)
    assert [each.preemptions for each in recorder.jobs] == [0, 0, 1, 1]


def test_curves_are_steps_and_days_repeat(tmp_path: Path) -> None:
    path = tmp_path / "duty.csv"
    path.write_text("t_s,percent,other\n0,10,1\n43200,30,2\n")
    daily = read_curve(path, 0.01, is_daily=True)
    assert [daily.at(hours * 3600.0) for hours in (0, 11, 12, 23, 24, 36)] == [0.1, 0.1, 0.3, 0.3, 0.1, 0.3]
    assert read_curve(path, column="other").at(5 * DAY_S) == 2.0
    path.write_text("t_s,percent\n")
    with pytest.raises(RefusedError, match="has no rows"):
        read_curve(path)
    path.write_text("time,percent\n1,2\n")
    with pytest.raises(RefusedError, match="a curve has t_s and percent"):
        read_curve(path)


def test_a_curve_may_begin_in_its_middle() -> None:
    serving = Serving("V100", DEMAND, ALWAYS, 150.0, 400.0)
    assert [(each.at_s, each.count) for each in serving.changes(4)] == [(0.0, -3), (50.0, -1), (150.0, 4)]
