"""A worker sends no more than an ordinary all-reduce would: ``2 B (W - 1) / W`` bytes a step, counted in the code."""

from __future__ import annotations

import pytest

from consistency.conftest import Jobs

ALIGNED = [
    "0|1",
    "0,1|2,3",
    "0|1|2|3",
    "0,1|2,3|4,5|6,7",
    "2,3|0,1|6,7|4,5",
    "0,1,2,3|4|5|6,7",
    "0|1|2",
    "0|1|2|3|4",
    "0|1|2|3|4|5|6|7",
    "1,0|2,3",
]
"""Each worker hosts one complete subtree."""


def bytes_over_ideal(run: dict[str, object], placement: str, parameters: int) -> float:
    workers = placement.count("|") + 1
    ideal = 2 * 4 * parameters * (workers - 1) / workers
    return run["bytes_sent"] / (len(run["steps"]) * ideal)


@pytest.mark.parametrize("placement", ALIGNED)
def test_aligned_placements_send_what_an_all_reduce_sends(jobs: Jobs, placement: str) -> None:
    run = jobs.run(placement, "traffic", epochs=1)
    assert 0.98 <= bytes_over_ideal(run, placement, run["returned"]) <= 1.02


def test_a_worker_with_two_subtrees_sends_both(jobs: Jobs) -> None:
    run = jobs.run("0,1,2|3", "traffic", epochs=1)
    assert 1.4 < bytes_over_ideal(run, "0,1,2|3", run["returned"]) <= 1.53
