"""Whatever the trace and the policy: no device twice, none beyond the cluster, all work done, no guarantee broken."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.schedule.policies import named
from easyscale.sim.recorder import Recorder
from easyscale.sim.trace import DeviceChange, TraceJob
from sim.cases import KINDS, elastic_policies, every_policy, job, run, traces

pytestmark = pytest.mark.slow

CAPACITY = (4, 4)


@st.composite
def device_changes(draw: st.DrawFn) -> list[DeviceChange]:
    """Devices that go and come back, never more than there are."""
    changes = []
    for kind in KINDS:
        for number in range(draw(st.integers(0, 3))):
            at_s = draw(st.floats(0.0, 200.0))
            cause = draw(st.sampled_from(["serving", "reclaim", "failure"]))
            changes += [DeviceChange(at_s, kind, -1, cause), DeviceChange(at_s + 50.0 * (number + 1), kind, 1, cause)]
    return changes


def check(jobs: list[TraceJob], recorder: Recorder) -> None:
    for index in range(len(recorder.times_s)):
        for kind in range(len(KINDS)):
            held, there = recorder.held_by_kind[kind][index], recorder.capacity_by_kind[kind][index]
            assert 0 <= held <= there <= CAPACITY[kind]
    _check_no_device_twice(recorder)
    assert recorder.num_done == len(jobs)
    asked = {each.job.name: each for each in jobs}
    for stats in recorder.jobs:
        assert stats.steps_done - stats.lost_steps == pytest.approx(asked[stats.name].steps, rel=1e-9)
        assert stats.end_s >= stats.submit_s
        assert all(sum(held) <= asked[stats.name].job.max_devices for _, held, _ in stats.segments)


def _check_no_device_twice(recorder: Recorder) -> None:
    """From the jobs' own lives, not from the books: what they hold together is never more than there is."""
    changes = []
    for stats in recorder.jobs:
        before = (0,) * len(KINDS)
        for at_s, held, _ in stats.segments:
            changes.append((at_s, tuple(new - old for new, old in zip(held, before, strict=True))))
            before = held
    totals = [0] * len(KINDS)
    by_time: dict[float, list[tuple[int, ...]]] = {}
    for at_s, change in changes:
        by_time.setdefault(at_s, []).append(change)
    for at_s in sorted(by_time):
        for kind in range(len(KINDS)):
            totals[kind] += sum(change[kind] for change in by_time[at_s])
            assert 0 <= totals[kind] <= CAPACITY[kind]
    assert totals == [0] * len(KINDS)


@every_policy
@settings(max_examples=40, deadline=None)
@given(jobs=traces())
def test_nothing_is_lost_or_given_twice(policy: str, jobs: list[TraceJob]) -> None:
    check(jobs, run(jobs, policy, CAPACITY))


@every_policy
@settings(max_examples=25, deadline=None)
@given(jobs=traces(), changes=device_changes())
def test_nor_when_devices_come_and_go(policy: str, jobs: list[TraceJob], changes: list[DeviceChange]) -> None:
    check(jobs, run(jobs, policy, CAPACITY, changes))


@elastic_policies
@settings(max_examples=40, deadline=None)
@given(jobs=traces())
def test_guaranteed_minimums_are_kept_from_the_first_device_on(policy: str, jobs: list[TraceJob]) -> None:
    minimum = {each.job.name: each.job.min_devices for each in jobs}
    for stats in run(jobs, policy, CAPACITY).jobs:
        lives = [held for at_s, held, _ in stats.segments if at_s < stats.end_s and any(held)]
        assert all(sum(held) >= minimum[stats.name] for held in lives)
        if minimum[stats.name]:
            assert stats.preemptions == 0


@settings(max_examples=40, deadline=None)
@given(jobs=traces())
def test_a_homogeneous_job_never_leaves_its_preferred_kind(jobs: list[TraceJob]) -> None:
    preferred = {each.job.name: KINDS.index(each.job.preferred) for each in jobs}
    for stats in run(jobs, "easyscale-homo", CAPACITY).jobs:
        for _, held, _ in stats.segments:
            assert sum(held) == held[preferred[stats.name]]


def test_no_job_starves_under_aging() -> None:
    """A low priority that needs half the cluster at once, under a flood of higher ones that keep it full."""
    flood = [job(f"high-{n}", 1, 200.0, 25.0 * n, priority=1, min_devices=1) for n in range(2000)]
    big = job("low", 4, 10.0, 5.0, priority=0, min_devices=4)
    recorder = run([*flood, big], "easyscale", (4, 0))
    stats = next(each for each in recorder.jobs if each.name == "low")
    rules_s = 3600.0
    longest_job_s = 1.0 + 200.0 * 0.5
    assert stats.queued_s <= rules_s + 2 * longest_job_s
    assert math.isfinite(stats.jct_s)


def test_without_aging_the_same_job_would_starve() -> None:
    """So the test above tests something: first come by priority lets it in only when the flood ends."""
    flood = [job(f"high-{n}", 1, 200.0, 25.0 * n, priority=1, min_devices=1) for n in range(2000)]
    recorder = run([*flood, job("low", 4, 10.0, 5.0, priority=0, min_devices=4)], named("fifo"), (4, 0))
    assert next(each for each in recorder.jobs if each.name == "low").queued_s > 40_000


@elastic_policies
def test_a_higher_priority_shrinks_and_preempts_lower_ones(policy: str) -> None:
    low = [job(f"low-{n}", 1, 1000.0, 0.0) for n in range(4)]
    recorder = run([*low, job("high", 2, 10.0, 50.0, priority=5, min_devices=2)], policy, (4, 0))
    stats = {each.name: each for each in recorder.jobs}
    assert stats["high"].queued_s == 0.0
    assert sorted(stats[f"low-{n}"].preemptions for n in range(4)) == [0, 0, 1, 1]
