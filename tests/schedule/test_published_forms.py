"""The closed forms of the published program, and what it should have said where it errs."""

from __future__ import annotations

from itertools import product
from math import ceil, floor

import pytest

from easyscale.schedule.model import JobModel, Plan, Share
from easyscale.schedule.planner import best_plan, unused
from easyscale.schedule.proposals import proposals

pytestmark = pytest.mark.slow

PERF = {"V100": 3.1, "P100": 2.4, "T4": 1.0}
JOB = JobModel(16, PERF)


def planned(job: JobModel, devices: dict[str, int]) -> Plan:
    plan = best_plan(job, devices)
    assert plan is not None
    return plan


def test_two_v100_and_one_p100_run_at_8_27() -> None:
    """The published program keeps (7, 5), which runs at 7.09."""
    plan = planned(JOB, {"V100": 2, "P100": 1})
    assert plan.shares == (Share("V100", 2, 6), Share("P100", 1, 4))
    assert plan.speedup == pytest.approx(8.27, abs=0.005)
    assert plan.speedup == pytest.approx(16 * 1.0 / (6 / 3.1))
    assert plan.waste == pytest.approx(1 - plan.speedup / (2 * 3.1 + 2.4))
    kept = Plan.of(JOB, [Share("V100", 1, 7), Share("V100", 1, 5), Share("P100", 1, 4)])
    assert kept.speedup == pytest.approx(7.09, abs=0.005)


@pytest.mark.parametrize("kind", PERF)
@pytest.mark.parametrize("count", range(1, 17))
def test_devices_of_one_kind_waste_what_does_not_divide(kind: str, count: int) -> None:
    """The published program says 0, and with 6 devices 6.00x where it runs at 5.33x."""
    plan = planned(JOB, {kind: count})
    ests, used = ceil(16 / count), ceil(16 / ceil(16 / count))
    assert plan.num_devices == used
    assert plan.waste == pytest.approx(1 - 16 / (used * ests))
    assert plan.speedup == pytest.approx(16 / ests * PERF[kind])


def test_six_slow_devices_run_at_5_33() -> None:
    assert planned(JOB, {"T4": 6}).speedup == pytest.approx(16 / 3)


@pytest.mark.parametrize("kind", PERF)
def test_only_some_counts_of_one_kind_are_worth_asking_for(kind: str) -> None:
    found = proposals(JOB.only(kind), {}, {kind: 99}, best=None)
    assert sorted(proposal.count for proposal in found) == [1, 2, 3, 4, 6, 8, 16]


def thread_vectors(num_ests: int, perf: tuple[float, ...]) -> set[tuple[int, ...]]:
    """For 1, 2, ... ESTs on the slowest kind, those on the others rounded down and up, any kinds left out."""
    vectors = set()
    for slow in range(1, num_ests + 1):
        around = [sorted({floor(slow * speed), ceil(slow * speed)}) for speed in perf]
        for ests in product(*around):
            for used in product((0, 1), repeat=len(perf)):
                vectors.add(tuple(count * use for count, use in zip(ests, used, strict=True)))
    return vectors


def test_no_proposal_of_the_published_enumeration_is_faster() -> None:
    """For every tight choice of devices for each of its thread vectors, within 4, 4 and 6 devices."""
    names, perf = tuple(PERF), tuple(PERF.values())
    compared = 0
    for ests in sorted(thread_vectors(16, perf)):
        for counts in product(range(5), range(5), range(7)):
            used = [index for index in range(3) if counts[index] and ests[index]]
            if sum(counts[index] * ests[index] for index in used) < 16:
                continue
            speedup = 16 / max(ests[index] / perf[index] for index in used)
            plan = planned(JOB, {names[index]: counts[index] for index in used})
            assert plan.speedup >= speedup * (1 - 1e-9)
            compared += 1
    assert compared > 1000


def test_devices_without_ests_are_given_back() -> None:
    """The published program keeps them: 16 T4 beside 16 V100 run nothing."""
    devices = {"V100": 16, "T4": 16}
    plan = planned(JOB, devices)
    assert plan.devices_by_kind == {"V100": 16}
    assert unused(plan, devices) == {"T4": 16}


def test_nothing_is_proposed_that_gains_nothing() -> None:
    """The published program grants requests with a gain of 0 while devices are free."""
    assert proposals(JOB, {"V100": 16}, {"V100": 16, "P100": 16, "T4": 16}, best=None) == ()
    for proposal in proposals(JOB, {"V100": 2}, {"V100": 14, "P100": 16, "T4": 16}, best=None):
        assert proposal.gain > 1e-9
        assert proposal.gain_per_device == pytest.approx((proposal.plan.speedup / 6.2 - 1) / proposal.count)
