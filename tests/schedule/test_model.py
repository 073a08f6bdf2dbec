"""Jobs and plans as values: what is refused, what is equal, what a plan's figures mean."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from easyscale.core.errors import RefusedError
from easyscale.schedule.model import JobModel, Plan, Share

WRONG = [
    ({"num_ests": 0}, "num_ests is 0"),
    ({"capability_by_kind": {}}, "no capability was given"),
    ({"capability_by_kind": {"A": 0.0}}, "the capability of A is 0.0"),
    ({"capability_by_kind": {"A": float("nan")}}, "the capability of A is nan"),
    ({"max_ests_by_kind": {"B": 1}}, "a memory limit was given for B"),
    ({"max_ests_by_kind": {"A": -1}}, "the most ESTs on one A are -1"),
    ({"allowed_sizes": (0, 1)}, "each must be 1 or more"),
    ({"allowed_sizes": ()}, "no number of devices is allowed"),
    ({"sync_s_by_devices": ((1, 0.1), (1, 0.2))}, "each number once"),
    ({"sync_s_by_devices": ((0, 0.1),)}, "1 or more"),
    ({"sync_s_by_devices": ((1, -0.1),)}, "below 0"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=[words for _, words in WRONG])
def test_a_job_that_cannot_be_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        JobModel(**{"num_ests": 4, "capability_by_kind": {"A": 1.0}, **changes})  # type: ignore[arg-type]


def test_equal_jobs_are_one_key() -> None:
    one = JobModel(4, {"A": 2.0, "B": 1.0}, {"B": 3}, True, (4, 2, 2), ((8, 0.2), (1, 0.0)))
    other = JobModel(4, {"B": 1.0, "A": 2.0}, {"B": 3}, True, (2, 4), ((1, 0.0), (8, 0.2)))
    assert {one: "kept"}[other] == "kept"
    assert one != JobModel(4, {"A": 2.0, "B": 1.0})
    with pytest.raises(AttributeError):
        one.num_ests = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        one.capability_by_kind["A"] = 3.0  # type: ignore[index]


def test_a_job_finds_itself_in_another_process() -> None:
    """Hashes of names differ from process to process, so one that was computed here must not travel."""
    job = JobModel(4, {"A": 2.0, "B": 1.0}, {"B": 3}, False, (2, 4), ((1, 0.0), (8, 0.2)))
    assert pickle.loads(pickle.dumps(job)) == job
    code = (
        f"import pickle; job = pickle.loads({pickle.dumps(job)!r}); print(job in {{type(job)(*job.__reduce__()[1])}})"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


def test_kinds_come_fastest_first_and_without_those_that_hold_nothing() -> None:
    job = JobModel(4, {"B": 1.0, "A": 1.0, "C": 2.0, "D": 9.0}, {"D": 0, "A": 3})
    assert [(kind.name, kind.limit) for kind in job.kinds] == [("C", 4), ("A", 3), ("B", 4)]


def test_only_some_kinds() -> None:
    job = JobModel(4, {"A": 2.0, "B": 1.0}, {"A": 2, "B": 3}, False, (1, 2), ((1, 0.1),))
    assert job.only("B") == JobModel(4, {"B": 1.0}, {"B": 3}, False, (1, 2), ((1, 0.1),))
    with pytest.raises(RefusedError, match="no capability for C: choose from A, B"):
        job.only("C")


def test_synchronising_costs_are_lines_between_points() -> None:
    job = JobModel(4, {"A": 1.0}, sync_s_by_devices=((2, 0.1), (4, 0.3), (8, 0.2)))
    assert [job.sync_s(size) for size in (1, 2, 3, 4, 6, 8, 99)] == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.25, 0.2, 0.2])
    assert not job.is_sync_rising
    assert JobModel(4, {"A": 1.0}).sync_s(3) == 0


def test_a_plan_says_what_comes_of_it() -> None:
    job = JobModel(16, {"V100": 3.1, "P100": 2.4, "T4": 1.0}, sync_s_by_devices=((1, 0.0), (3, 0.1)))
    plan = Plan.of(job, [Share("P100", 1, 4), Share("V100", 1, 6), Share("V100", 1, 6)])
    assert plan.shares == (Share("V100", 2, 6), Share("P100", 1, 4))
    assert (plan.compute_s, plan.sync_s) == pytest.approx((6 / 3.1, 0.1))
    assert plan.steps_per_s == pytest.approx(1 / (6 / 3.1 + 0.1))
    assert plan.mini_batches_per_s == pytest.approx(16 / (6 / 3.1 + 0.1))
    assert plan.speedup == pytest.approx(16 / (6 / 3.1 + 0.1) / 1.0)
    assert plan.waste == pytest.approx(1 - 16 / (6 / 3.1 + 0.1) / (2 * 3.1 + 2.4))
    assert (plan.num_devices, plan.devices_by_kind, plan.mixes_kinds) == (3, {"V100": 2, "P100": 1}, True)
    assert str(plan) == "2 V100 x 6 + 1 P100 x 4"
    assert {plan: 1}[Plan.of(job, plan.shares)] == 1


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([Share("A", 2, 1)], "places 2 ESTs but the job has 4"),
        ([Share("A", 1, 4)], "4 ESTs on one A"),
        ([Share("A", 1, 3), Share("B", 1, 1)], "1 ESTs on one B"),
        ([Share("A", 4, 1), Share("A", 1, 0)], "0 ESTs on one A"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(shares: list[Share], words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        Plan.of(JobModel(4, {"A": 1.0}, {"A": 3}), shares)


def test_moves_are_counted_between_the_fullest() -> None:
    job = JobModel(8, {"A": 2.0, "B": 1.0})
    before = Plan.of(job, [Share("A", 1, 4), Share("A", 1, 2), Share("B", 1, 2)])
    assert before.moves_from(before) == 0
    assert Plan.of(job, [Share("A", 1, 3), Share("A", 1, 3), Share("B", 1, 2)]).moves_from(before) == 1
    assert Plan.of(job, [Share("B", 2, 4)]).moves_from(before) == 6
