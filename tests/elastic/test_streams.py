"""Iterable datasets go on in the middle of their streams, whoever reads them then."""

from __future__ import annotations

from pathlib import Path

import pytest

from easyscale.core.job import Fault
from elastic.conftest import Jobs

SCRIPT = Path(__file__).with_name("stream_train.py")
CASES = [
    ("stream",),
    ("uneven",),
    ("uneven", "--workers", 2),
    ("stream", "--workers", 1, "--form", "drop_in"),
]

pytestmark = pytest.mark.slow
each_case = pytest.mark.parametrize("arguments", CASES, ids=lambda case: " ".join(map(str, case)))


@each_case
@pytest.mark.parametrize("overrides", [{}, {"rng": "ddp"}], ids=["stepwise", "ddp"])
def test_streams_move(jobs: Jobs, arguments: tuple[object, ...], overrides: dict[str, str]) -> None:
    if overrides and "--workers" in arguments:
        pytest.skip("positions of data workers of DDP ranks: tests/data")
    ran = jobs.check(*arguments, schedule=((2, 4), (4, 1), (7, 3)), script=SCRIPT, overrides=overrides)
    assert [event.placement.count("|") + 1 for event in ran.rescales] == [4, 1, 3]
    assert len(ran.steps) == 12


@each_case
@pytest.mark.parametrize(("worker", "overrides"), [(0, {}), (2, {}), (2, {"rng": "ddp"})], ids=["0", "2", "2-ddp"])
def test_streams_are_not_lost_with_their_worker(
    jobs: Jobs, arguments: tuple[object, ...], worker: int, overrides: dict[str, str]
) -> None:
    if overrides and "--workers" in arguments:
        pytest.skip("positions of data workers of DDP ranks: tests/data")
    faults = (Fault("step.in_turn", step=3, worker_rank=worker),)
    is_flat = "--form" in arguments
    ran = jobs.check(
        *arguments, placement="0|1|2,3", faults=faults, script=SCRIPT, overrides=overrides, compares_logs=not is_flat
    )
    assert [event.worker_rank for event in ran.losses] == [worker]


@pytest.mark.parametrize("step", [0, 1])
def test_a_loss_in_a_step_of_several_mini_batches(jobs: Jobs, step: int) -> None:
    """Six mini-batches in an epoch: four make up its first step, the two that are left its last one."""
    faults = (Fault("step.in_turn", step=step, worker_rank=1),)
    ran = jobs.check("uneven", "--accumulate", 4, placement="0|1|2,3", faults=faults, script=SCRIPT)
    assert [event.worker_rank for event in ran.losses] == [1]
    assert len(ran.steps) == 4
