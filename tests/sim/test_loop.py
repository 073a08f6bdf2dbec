"""Times are exact, events have a total order, equal simulations are equal in every byte."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from easyscale.core.errors import RefusedError
from easyscale.schedule.books import Books
from easyscale.schedule.cluster import Decision, PolicyError
from easyscale.schedule.policies import NamedPolicy
from easyscale.sim.queue import EventQueue, What
from easyscale.sim.report import job_rows, summarise, timeline_rows
from easyscale.sim.trace import DeviceChange
from sim.cases import every_policy, job, run


def ends(recorder) -> dict[str, float]:
    return {each.name: each.end_s for each in recorder.jobs}


def test_a_lone_job_ends_when_arithmetic_says() -> None:
    """4 ESTs on 4 V100: half a second a step, 100 steps, and one rescale of a second at the start."""
    assert ends(run([job("a")], "fifo")) == {"a": 1.0 + 100 * 0.5}


def test_every_change_costs_one_rescale_and_several_at_once_cost_one() -> None:
    """``a`` starts on all 4 V100, ``b`` takes some at 11 s: 20 steps are done by then."""
    recorder = run([job("a", max_devices=4), job("b", submit_s=11.0, steps=4, num_ests=1)], capacity=(4, 0))
    first = recorder.jobs[0]
    assert [(at_s, held) for at_s, held, _ in first.segments] == [
        (0.0, (4, 0)),
        (11.0, (2, 0)),
        (14.0, (4, 0)),
        (first.end_s, (0, 0)),
    ]
    assert first.rescales == 2
    assert ends(recorder)["b"] == 11.0 + 1.0 + 4 * 0.5
    # 20 steps by 11 s; then 2 s of work at 1 s a step behind a rescale; the rest behind another
    assert first.end_s == pytest.approx(14.0 + 1.0 + (100 - 20 - 2) * 0.5)


def test_a_job_may_have_a_rescale_cost_of_its_own() -> None:
    assert ends(run([job("a", rescale_s=20.0)], "fifo")) == {"a": 20.0 + 50.0}


def test_decisions_may_wait_for_an_interval() -> None:
    assert ends(run([job("a", submit_s=61.0)], "fifo", interval_s=60.0)) == {"a": 120.0 + 1.0 + 50.0}


def test_events_at_one_time_are_ordered_by_kind_then_by_counter() -> None:
    queue = EventQueue()
    for what, payload in [(What.DECIDE, 0), (What.ARRIVAL, 1), (What.ARRIVAL, 2), (What.FINISH, 3)]:
        queue.push(5.0, what, payload)
    queue.push(4.0, What.DECIDE, 4)
    assert [queue.pop()[2] for _ in range(len(queue))] == [4, 3, 1, 2, 0]


@every_policy
def test_equal_simulations_are_equal_in_every_byte(policy: str) -> None:
    def report() -> str:
        jobs = [job(f"j{n}", 1 + n % 4, 30.0 + n, 7.0 * n, can_mix=n % 2 == 0) for n in range(20)]
        changes = [DeviceChange(30.0, "V100", -1, "failure"), DeviceChange(90.0, "V100", 1, "failure")]
        recorder = run(jobs, policy, changes=changes)
        return json.dumps([summarise(policy, recorder, 0).to_json(), job_rows(recorder), timeline_rows(recorder)])

    assert report() == report()


def test_a_job_that_may_not_mix_kinds_stays_on_its_kind_for_life() -> None:
    jobs = [job(f"j{n}", 4, 50.0, 3.0 * n, can_mix=False, priority=n % 3) for n in range(12)]
    for each in run(jobs).jobs:
        used = {kind for _, held, _ in each.segments for kind, count in enumerate(held) if count}
        assert len(used) == 1, each.name


def test_a_failure_costs_the_steps_since_the_last_checkpoint() -> None:
    """At 31 s the job has made 60 steps, and 10 s of them (20 steps) since the checkpoint at 21 s of age 20."""
    changes = [DeviceChange(31.0, "V100", -1, "failure"), DeviceChange(1000.0, "V100", 1, "failure")]
    recorder = run([job("a")], "easyscale", (4, 0), changes, checkpoint_s=20.0)
    assert recorder.failures == 1
    assert recorder.jobs[0].lost_steps == pytest.approx(22.0)
    assert recorder.jobs[0].steps_done == pytest.approx(122.0)


def test_a_rigid_job_that_loses_a_device_waits_for_a_new_gang() -> None:
    changes = [DeviceChange(31.0, "V100", -1, "reclaim"), DeviceChange(100.0, "V100", 1, "reclaim")]
    recorder = run([job("a")], "fifo", (4, 0), changes)
    assert recorder.jobs[0].preemptions == 1
    assert ends(recorder) == {"a": 100.0 + 1.0 + (100 - 60) * 0.5}


def test_a_policy_that_leaves_jobs_waiting_for_ever_is_named() -> None:
    def lazy(books: Books) -> Iterator[Decision]:
        yield from ()

    with pytest.raises(PolicyError, match=r"policy 'lazy' leaves 1 jobs waiting for ever, a first"):
        run([job("a")], NamedPolicy("lazy", lazy))


def test_a_policy_that_goes_round_in_circles_is_named() -> None:
    def dizzy(books: Books) -> Iterator[Decision]:
        while True:
            for record in books.running():
                yield Decision(record, (0, 0))
            for record in books.waiting():
                yield Decision(record, (1, 0))

    with pytest.raises(PolicyError, match="policy 'dizzy' does not come to an end"):
        run([job("a")], NamedPolicy("dizzy", dizzy), max_decisions=100)


def test_a_gang_that_the_cluster_does_not_have_is_refused_before_it_starts() -> None:
    with pytest.raises(RefusedError, match="gives job big 8 V100 at once but the cluster has 4"):
        run([job("big", 8)], "fifo")


def test_settings_and_changes_that_cannot_be_are_refused() -> None:
    with pytest.raises(RefusedError, match="rescale_s is -1"):
        run([job("a")], rescale_s=-1.0)
    with pytest.raises(RefusedError, match=r"5 V100 go at 1 s \(reclaim\) but there are 4"):
        run([job("a")], changes=[DeviceChange(1.0, "V100", -5, "reclaim")])
    with pytest.raises(RefusedError, match="A100 changes at 1 s but the cluster has V100, T4"):
        run([job("a")], changes=[DeviceChange(1.0, "A100", 5, "reclaim")])
