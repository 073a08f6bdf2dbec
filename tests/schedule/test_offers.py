"""Ways to grow and to give back: as many as gain, worth what the planner says, each kind on its own."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.schedule import offers
from easyscale.schedule.model import JobModel
from easyscale.schedule.planner import best_plan

KINDS = ("V100", "T4")
JOB = JobModel(8, {"V100": 2.0, "T4": 1.0})

counts = st.tuples(st.integers(0, 6), st.integers(0, 6))


def test_growth_offers_only_counts_at_which_a_step_becomes_shorter() -> None:
    """8 ESTs on 1 T4: two, three, four ... of which each holds fewer than before, and at most twice as many."""
    job = JobModel(8, {"T4": 1.0})
    assert [(o.count, o.step_s) for o in offers.growths(("T4",), job, (1,), 8, 8.0)] == [
        (1, 4.0),
        (2, 3.0),
        (3, 2.0),
        (7, 1.0),
    ]
    assert [o.count for o in offers.growths(("T4",), job, (2,), 8, 2.0)] == [1, 2]
    assert [o.count for o in offers.growths(("T4",), job, (2,), 3, 2.0)] == [1]


def test_a_growth_leaves_out_what_brings_nothing_any_more() -> None:
    """With 8 V100 each runs one EST in half a second; a T4 would take a whole one."""
    grown = next(o for o in offers.growths(KINDS, JOB, (6, 3), 16, 2.0) if o.kind == 0 and o.count == 2)
    assert grown.held == (8, 0)


def test_a_job_that_may_not_mix_grows_on_its_own_kind() -> None:
    job = JobModel(8, {"V100": 2.0, "T4": 1.0}, can_mix_kinds=False)
    assert {o.kind for o in offers.growths(KINDS, job, (2, 0), 8, 2.0)} == {0}
    assert {o.kind for o in offers.growths(KINDS, job, (0, 2), 8, 2.0)} == {1}


@given(counts, st.integers(1, 4))
def test_giving_back_is_worth_what_growing_would_bring_again(held: tuple[int, int], minimum: int) -> None:
    now_s = offers.step_s(KINDS, JOB, held)
    for offer in offers.give_backs(KINDS, JOB, held, minimum):
        assert sum(offer.held) == sum(held) - offer.count >= minimum
        assert offer.step_s == offers.step_s(KINDS, JOB, offer.held) < inf
        assert offer.per_device == pytest.approx((offer.step_s / now_s - 1) / offer.count)


@given(counts)
def test_speed_and_waste_are_the_planners(held: tuple[int, int]) -> None:
    plan = best_plan(JOB, dict(zip(KINDS, held, strict=True)))
    used = offers.useful(KINDS, JOB, held)
    if plan is None:
        assert offers.step_s(KINDS, JOB, held) == inf
        return
    assert offers.step_s(KINDS, JOB, held) == pytest.approx(plan.step_s)
    assert dict(zip(KINDS, used, strict=True)) == {**dict.fromkeys(KINDS, 0), **plan.devices_by_kind}
    assert offers.waste(KINDS, JOB, used) == pytest.approx(plan.waste)
