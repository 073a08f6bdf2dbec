"""Virtual ranks of a plan: consecutive, and whole subtrees of the reduction wherever all blocks are powers of two."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from easyscale.core.errors import PlacementError
from easyscale.core.placement import Placement
from easyscale.schedule.model import JobModel, Plan, Share
from easyscale.schedule.planner import PlacedPlan, best_plan, to_placement
from easyscale.train.reduce.order import Node, complete_nodes
from schedule.brute import fleets, jobs


@given(jobs(max_ests=40), fleets())
def test_each_device_gets_its_ests_in_consecutive_ranks(job: JobModel, devices: dict[str, int]) -> None:
    plan = best_plan(job, devices)
    assume(plan is not None)
    assert plan is not None
    placed = to_placement(plan)
    workers = list(zip(placed.kind_by_worker, placed.placement.ranks_by_worker, strict=True))
    assert Plan.of(job, [Share(kind, 1, len(ranks)) for kind, ranks in workers]) == plan
    assert [rank for _, ranks in workers for rank in ranks] == list(range(job.num_ests))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_powers_of_two_are_whole_subtrees(exponents: list[int]) -> None:
    num_ests = sum(2**exponent for exponent in exponents)
    job = JobModel(num_ests, {"A": 1.0, "B": 2.0})
    plan = Plan.of(job, [Share("AB"[index % 2], 1, 2**exponent) for index, exponent in enumerate(exponents)])
    for ranks in to_placement(plan).placement.ranks_by_worker:
        assert len(complete_nodes(Node(0, num_ests), ranks)) == 1


@pytest.mark.parametrize(
    ("num_ests", "devices", "placement"),
    [
        (8, 2, "0,1,2,3|4,5,6,7"),
        (16, 3, "0,1,2,3|4,5,6,7,8,9|10,11,12,13,14,15"),
        (9, 2, "0,1,2,3|4,5,6,7,8"),
        (17, 5, "0,1,2,3|4,5,6,7|8,9,10,11|12,13,14,15|16"),
    ],
)
def test_where_it_costs_no_time_devices_get_powers_of_two(num_ests: int, devices: int, placement: str) -> None:
    plan = best_plan(JobModel(num_ests, {"A": 1.0}), {"A": devices})
    assert plan is not None
    assert plan.step_s == -(-num_ests // devices)
    assert to_placement(plan).placement == Placement.parse(placement)


def test_what_is_placed_so_already_stays() -> None:
    job = JobModel(4, {"A": 2.0, "B": 1.0})
    current = PlacedPlan(Placement.parse("3|0,1|2"), ("A", "B", "A"))
    same = Plan.of(job, [Share("A", 2, 1), Share("B", 1, 2)])
    assert to_placement(same, current) is current
    other = Plan.of(job, [Share("A", 1, 2), Share("B", 2, 1)])
    assert to_placement(other, current) == PlacedPlan(Placement.parse("0,1|2|3"), ("A", "B", "B"))


def test_every_worker_has_a_kind() -> None:
    with pytest.raises(PlacementError, match="1 kinds were given for the 2 workers"):
        PlacedPlan(Placement.parse("0|1"), ("A",))
