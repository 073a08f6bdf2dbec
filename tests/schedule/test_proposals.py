"""Proposals and ways to give up are exactly those that planning each number of devices would find."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.core.errors import RefusedError
from easyscale.schedule.model import JobModel
from easyscale.schedule.planner import best_plan
from easyscale.schedule.proposals import give_up, proposals, proposals_cached
from schedule.brute import fleets, jobs

pytestmark = pytest.mark.slow

Found = tuple[str, int, float]


def one_by_one(job: JobModel, held: dict[str, int], free: dict[str, int], most: int) -> list[Found]:
    """Kind, count and gain of every number of devices that gains over all smaller ones."""
    base = best_plan(job, held)
    found = []
    for kind in job.kinds:
        last = base
        for count in range(1, min(most, free.get(kind.name, 0)) + 1):
            plan = best_plan(job, {**held, kind.name: held.get(kind.name, 0) + count}, base)
            if plan is not None and (last is None or plan.step_s < last.step_s * (1 - 1e-9)):
                gain = plan.speedup if base is None else plan.speedup / base.speedup - 1
                found.append((kind.name, count, gain))
                last = plan
    return sorted(found, key=lambda entry: (-round(entry[2] / entry[1], 9), -entry[1]))


@given(jobs(max_ests=30), fleets(), st.dictionaries(st.sampled_from("ABC"), st.integers(0, 30)), st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_all_that_gain_are_proposed(job: JobModel, held: dict[str, int], free: dict[str, int], most: int) -> None:
    found = proposals(job, held, free, most, best=None)
    expected = one_by_one(job, held, free, most)
    assert [(entry.kind, entry.count) for entry in found] == [(kind, count) for kind, count, _ in expected]
    assert [entry.gain for entry in found] == pytest.approx([gain for _, _, gain in expected])
    assert proposals(job, held, free, most) == found[:3] == proposals_cached(job, held, free, most)


@given(jobs(max_ests=30), fleets(), st.fixed_dictionaries({name: st.integers(0, 8) for name in "ABC"}))
@settings(max_examples=100, deadline=None)
def test_a_proposal_keeps_its_word(job: JobModel, held: dict[str, int], free: dict[str, int]) -> None:
    for proposal in proposals(job, held, free, best=None):
        assert proposal.devices == {**dict(proposal.held), proposal.kind: held[proposal.kind] + proposal.count}
        assert proposal.plan.step_s == pytest.approx(proposal.step_s, rel=1e-9)
        assert proposal.gain_per_device == proposal.gain / proposal.count > 0


def test_the_best_come_first_and_ties_go_to_more_devices() -> None:
    job = JobModel(8, {"A": 2.0, "B": 1.0})
    found = proposals(job, {"A": 1}, {"A": 7, "B": 2}, best=None)
    # with 1 + 1 A: twice as fast; with 3 more: 4 times, the same for each device; 7 more: 8 times, the same again
    assert [(entry.kind, entry.count) for entry in found[:3]] == [("A", 7), ("A", 3), ("A", 1)]
    assert [entry.gain_per_device for entry in found[:3]] == pytest.approx([1.0, 1.0, 1.0])


def test_a_running_job_without_d2_asks_for_its_own_kind() -> None:
    job = JobModel(8, {"A": 2.0, "B": 1.0}, can_mix_kinds=False)
    assert {entry.kind for entry in proposals(job, {"B": 2}, {"A": 8, "B": 8}, best=None)} == {"B"}
    assert {entry.kind for entry in proposals(job, {}, {"A": 8, "B": 8}, best=None)} == {"A", "B"}


def test_a_waiting_job_asks_for_what_can_hold_it() -> None:
    job = JobModel(8, {"A": 2.0, "B": 1.0}, {"A": 3})
    found = proposals(job, {}, {"A": 8, "B": 1}, best=None)
    assert {(entry.kind, entry.count) for entry in found} == {("A", 3), ("A", 4), ("A", 8), ("B", 1)}
    assert found[0].gain == found[0].plan.speedup


@given(jobs(max_ests=16), fleets(), st.integers(0, 8))
@settings(max_examples=150, deadline=None)
def test_giving_up_loses_least(job: JobModel, held: dict[str, int], count: int) -> None:
    count = min(count, sum(held.values()))
    before = best_plan(job, held)
    losses = []
    for returned in product(*(range(held[kind] + 1) for kind in sorted(held))):
        if sum(returned) == count:
            after = best_plan(
                job, {kind: held[kind] - n for kind, n in zip(sorted(held), returned, strict=True)}, before
            )
            losses.append(0.0 if before is None else 1.0 if after is None else 1 - before.step_s / after.step_s)
    options = give_up(job, held, count)
    assert options[0].loss == pytest.approx(min(losses), abs=1e-9)
    assert [option.loss for option in options] == pytest.approx(sorted(option.loss for option in options))
    for option in options:
        returned_by_kind = dict(option.returned)
        assert sum(returned_by_kind.values()) == count
        stays = {kind: held[kind] - returned_by_kind.get(kind, 0) for kind in held}
        assert min(stays.values()) >= 0
        assert option.plan == best_plan(job, stays, before)
    for kind in held:
        assert any(dict(option.returned).get(kind, 0) == min(count, held[kind]) for option in options)


def test_giving_up_named_devices_is_one_way() -> None:
    job = JobModel(16, {"V100": 3.1, "P100": 2.4, "T4": 1.0})
    (option,) = give_up(job, {"V100": 2, "P100": 1}, {"P100": 1})
    assert option.returned == (("P100", 1),)
    assert option.loss == pytest.approx(1 - 6.2 / (16 / (6 / 3.1)))
    (everything,) = give_up(job, {"V100": 2}, {"V100": 2})
    assert (everything.plan, everything.loss) == (None, 1.0)


def test_what_brings_nothing_goes_first() -> None:
    job = JobModel(4, {"A": 3.0, "B": 1.0})
    options = give_up(job, {"A": 4, "B": 3, "Z": 1}, 2)
    assert options[0].returned == (("B", 1), ("Z", 1))
    assert options[0].loss == 0


@pytest.mark.parametrize("asked", [5, -1, {"A": 4}, {"C": 1}])
def test_more_than_is_held_cannot_be_returned(asked: int | dict[str, int]) -> None:
    with pytest.raises(RefusedError, match="ask for at most"):
        give_up(JobModel(4, {"A": 3.0, "B": 1.0}), {"A": 3, "B": 1}, asked)
