"""Where there is barely room enough, the choice that keeps most is found, and found soon."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings

from easyscale.schedule import tight
from easyscale.schedule.model import JobModel
from easyscale.schedule.planner import best_plan
from schedule.brute import fleets, jobs


class Counted(tight._Search):
    """Remembers all searches that were made."""

    made: list[Counted]

    def go(self, counts: list[int], size: int, num_ests: int, keeps: int) -> None:
        if not counts:
            self.made.append(self)
        super().go(counts, size, num_ests, keeps)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    monkeypatch.setattr(tight, "_Search", Counted)
    Counted.made = []
    return Counted.made


def test_a_thousand_ests_need_few_tries(searches: list[Counted]) -> None:
    numbers = random.Random(7)
    for scale in (2, 5, 20, 100) * 40:
        kinds = [f"K{index}" for index in range(numbers.choice([3, 6, 8]))]
        job = JobModel(numbers.choice([64, 1024]), {kind: numbers.uniform(1, 12) for kind in kinds})
        before, after = ({kind: numbers.randint(0, scale) for kind in kinds} for _ in range(2))
        if any(before.values()):
            best_plan(job, after, best_plan(job, before))
    assert len(searches) > 10
    assert max(search.tries for search in searches) < 100


@given(jobs(), fleets(), fleets())
@settings(max_examples=100, deadline=None)
def test_giving_up_the_search_costs_no_time_and_no_device(
    job: JobModel, before: dict[str, int], devices: dict[str, int]
) -> None:
    current = best_plan(job, before)
    plan = best_plan(job, devices, current)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tight, "MAX_TRIES", 0)
        hasty = best_plan(job, devices, current)
    assert (hasty is None) == (plan is None)
    if hasty is not None and plan is not None:
        assert hasty.num_devices == plan.num_devices
        assert hasty.step_s == pytest.approx(plan.step_s, rel=1e-9)
