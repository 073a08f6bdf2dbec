"""The plan is the exact optimum: against every division of up to 12 ESTs over up to 8 devices of 3 kinds."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from easyscale.schedule.model import JobModel, Plan, Share
from easyscale.schedule.planner import as_key, best_plan, best_plan_cached, plans_by_size, step_time, unused
from schedule.brute import brute_best, capabilities, fleets, jobs

pytestmark = pytest.mark.slow

ROUNDING = 1e-9


@given(jobs(), fleets())
@settings(max_examples=400, deadline=None)
def test_no_division_is_faster_and_none_as_fast_uses_fewer_devices(job: JobModel, devices: dict[str, int]) -> None:
    plan, best = best_plan(job, devices), brute_best(job, devices)
    assert (plan is None) == (best is None)
    if plan is not None and best is not None:
        assert plan.step_s == pytest.approx(float(best.step_s), rel=ROUNDING)
        assert plan.num_devices == best.num_devices


@given(jobs(), fleets(), fleets())
@settings(max_examples=200, deadline=None)
def test_of_equals_the_fewest_ests_move(job: JobModel, before: dict[str, int], devices: dict[str, int]) -> None:
    current = best_plan(job, before)
    assume(current is not None)
    plan, best = best_plan(job, devices, current), brute_best(job, devices, current)
    assert (plan is None) == (best is None)
    if plan is not None and best is not None and current is not None:
        assert plan.step_s == pytest.approx(float(best.step_s), rel=ROUNDING)
        assert (plan.num_devices, plan.moves_from(current)) == (best.num_devices, best.moves)


@given(jobs(is_plain=True), st.data(), fleets())
@settings(max_examples=200, deadline=None)
def test_the_fewest_move_from_any_place(job: JobModel, data: st.DataObject, devices: dict[str, int]) -> None:
    """Not only from a place that was once the best."""
    current = data.draw(any_plan(job))
    assume(current is not None)
    plan, best = best_plan(job, devices, current), brute_best(job, devices, current)
    assert (plan is None) == (best is None)
    if plan is not None and best is not None and current is not None:
        assert (plan.num_devices, plan.moves_from(current)) == (best.num_devices, best.moves)


@st.composite
def any_plan(draw: st.DrawFn, job: JobModel) -> Plan | None:
    shares, left = [], job.num_ests
    kinds = job.kinds if job.can_mix_kinds else job.kinds[:1]
    while left and kinds:
        kind = draw(st.sampled_from(kinds))
        shares.append(Share(kind.name, 1, draw(st.integers(1, min(left, kind.limit)))))
        left -= shares[-1].ests
    return Plan.of(job, shares) if kinds else None


@given(jobs(), fleets(), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_a_greatest_number_of_devices_is_kept(job: JobModel, devices: dict[str, int], most: int) -> None:
    plan, best = best_plan(job, devices, max_devices=most), brute_best(job, devices, max_devices=most)
    assert (plan is None) == (best is None)
    if plan is not None and best is not None:
        assert plan.step_s == pytest.approx(float(best.step_s), rel=ROUNDING)
        assert plan.num_devices == best.num_devices <= most


KINDS = ("V100", "P100", "T4", "A10", "L4")


@st.composite
def large_jobs(draw: st.DrawFn) -> JobModel:
    names = draw(st.lists(st.sampled_from(KINDS), min_size=1, unique=True))
    num_ests = draw(st.integers(1, 300))
    limits = {name: draw(st.integers(1, 40)) for name in names if draw(st.booleans())}
    return JobModel(num_ests, {name: draw(capabilities) for name in names}, limits, draw(st.booleans()))


large_fleets = st.fixed_dictionaries({name: st.integers(0, 60) for name in KINDS})


@given(large_jobs(), large_fleets, large_fleets)
@settings(max_examples=200, deadline=None)
def test_what_holds_for_every_plan(job: JobModel, before: dict[str, int], devices: dict[str, int]) -> None:
    plan = best_plan(job, devices, best_plan(job, before))
    assume(plan is not None)
    assert plan is not None
    assert sum(share.devices * share.ests for share in plan.shares) == job.num_ests
    assert all(1 <= share.ests <= job.max_ests_by_kind.get(share.kind, job.num_ests) for share in plan.shares)
    assert all(used <= devices[kind] for kind, used in plan.devices_by_kind.items())
    assert job.can_mix_kinds or not plan.mixes_kinds
    assert 0 <= plan.waste < 1
    slowest_s = max(share.ests / job.capability_by_kind[share.kind] for share in plan.shares)
    assert plan.step_s == slowest_s
    # the closed form: all ESTs one after another on the slowest kind, against the slowest device of the plan
    alone_s = job.num_ests / min(job.capability_by_kind.values())
    assert plan.speedup == pytest.approx(alone_s / slowest_s, rel=ROUNDING)
    offered = sum(count * job.capability_by_kind[kind] for kind, count in plan.devices_by_kind.items())
    assert plan.waste == pytest.approx(1 - plan.mini_batches_per_s / offered, abs=ROUNDING)
    assert step_time(job, devices) <= plan.step_s * (1 + ROUNDING)


@given(large_jobs(), large_fleets, st.sampled_from(KINDS))
@settings(max_examples=200, deadline=None)
def test_one_more_device_never_slows_the_plan(job: JobModel, devices: dict[str, int], kind: str) -> None:
    plan, more = best_plan(job, devices), best_plan(job, {**devices, kind: devices[kind] + 1})
    if plan is not None:
        assert more is not None
        assert more.step_s <= plan.step_s * (1 + ROUNDING)


@given(large_jobs(), large_fleets)
@settings(max_examples=100, deadline=None)
def test_the_time_is_the_first_that_is_enough_of_all_candidates(job: JobModel, devices: dict[str, int]) -> None:
    """As the sorted list of all ``k / C`` says, which the planner never makes."""
    kinds = [kind for kind in job.kinds if devices[kind.name]]
    times = []
    for together in [kinds] if job.can_mix_kinds else [[kind] for kind in kinds]:
        for time in sorted(k / kind.capability for kind in together for k in range(1, kind.limit + 1)):
            rooms = (min(kind.limit, int(time * kind.capability + 1e-6)) * devices[kind.name] for kind in together)
            if sum(rooms) >= job.num_ests:
                times.append(time)
                break
    plan = best_plan(job, devices)
    assert (plan is None) == (not times)
    if plan is not None:
        assert plan.step_s == pytest.approx(min(times), rel=ROUNDING)


@given(jobs(), fleets())
@settings(max_examples=150, deadline=None)
def test_sizes_are_listed_where_they_gain(job: JobModel, devices: dict[str, int]) -> None:
    plans = plans_by_size(job, devices)
    best = [brute_best(job, devices, max_devices=size) for size in range(1, 9)]
    times = [float(found.step_s) for found in best if found is not None]
    assert [plan.step_s for plan in plans] == pytest.approx(sorted(set(times), reverse=True), rel=ROUNDING)
    assert all(a.num_devices < b.num_devices for a, b in zip(plans, plans[1:], strict=False))


@given(jobs(), fleets())
@settings(max_examples=100, deadline=None)
def test_what_is_unused_brings_nothing(job: JobModel, devices: dict[str, int]) -> None:
    plan = best_plan(job, devices)
    left = unused(plan, devices)
    used = {kind: count - left.get(kind, 0) for kind, count in devices.items()}
    assert best_plan(job, used) == plan
    assert sum(used.values()) == (0 if plan is None else plan.num_devices)


def test_answers_are_kept_by_question() -> None:
    job = JobModel(12, {"A": 3.0, "B": 1.0})
    again = JobModel(12, {"B": 1.0, "A": 3.0})
    first = best_plan_cached(job, {"A": 2, "B": 1})
    assert best_plan_cached(again, {"B": 1, "A": 2, "C": 0}) is first
    assert first == best_plan(job, {"A": 2, "B": 1})
    assert as_key({"B": 1, "A": 2, "C": 0}) == (("A", 2), ("B", 1))


def test_without_d2_a_running_job_stays_on_its_kind() -> None:
    job = JobModel(4, {"A": 3.0, "B": 1.0}, can_mix_kinds=False)
    slow = best_plan(job, {"B": 2})
    assert slow is not None
    assert best_plan(job, {"A": 4, "B": 2}, slow) == slow
    assert best_plan(job, {"A": 4}, slow) is None
    fresh = best_plan(job, {"A": 4, "B": 4})
    assert fresh is not None
    assert fresh.devices_by_kind == {"A": 4}


def test_equal_times_are_equal_whatever_was_rounded() -> None:
    """3 ESTs on one B take as long as 1 on each A, but as floats a little longer: still one device is fewer."""
    job = JobModel(3, {"A": 4.9, "B": 14.7})
    assert 3 / 14.7 > 1 / 4.9
    plan = best_plan(job, {"A": 3, "B": 1})
    assert plan is not None
    assert plan.devices_by_kind == {"B": 1}


def test_kinds_that_the_job_does_not_know_are_left_out() -> None:
    job = JobModel(2, {"A": 1.0})
    assert best_plan(job, {"Z": 8}) is None
    assert unused(best_plan(job, {"A": 1, "Z": 8}), {"A": 1, "Z": 8}) == {"Z": 8}
