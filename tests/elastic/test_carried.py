"""ESTs that carry something from step to step (random streams of rng="ddp", buffers of their own) move and survive."""

from __future__ import annotations

import pytest

from easyscale.core.job import Fault
from elastic.conftest import Jobs

DDP = {"rng": "ddp"}
CASES = [
    ("cnn",),
    ("cnn", "--form", "drop_in"),
    ("cnn_own_buffers",),
    ("augmented",),
    ("augmented", "--workers", 2),
    ("augmented", "--workers", 2, "--persistent", "--epochs", 3),
    ("augmented", "--workers", 2, "--form", "drop_in"),
]


def test_carried_random_streams_move(jobs: Jobs) -> None:
    jobs.check("cnn", schedule=((2, 4), (4, 1), (6, 3)), overrides=DDP)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", CASES, ids=lambda case: " ".join(map(str, case)))
def test_what_ests_carry_moves(jobs: Jobs, arguments: tuple[object, ...]) -> None:
    jobs.check(*arguments, schedule=((2, 4), (4, 1), (5, 3)), overrides=DDP)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", CASES, ids=lambda case: " ".join(map(str, case)))
@pytest.mark.parametrize("point", ["step.in_turn", "step.after_reduction"])
@pytest.mark.parametrize("worker", [0, 2])
def test_what_ests_carry_is_not_lost_with_their_worker(
    jobs: Jobs, arguments: tuple[object, ...], point: str, worker: int
) -> None:
    faults = (Fault(point, step=2, worker_rank=worker),)
    ran = jobs.check(*arguments, placement="0|1|2,3", faults=faults, overrides=DDP, compares_logs=False)
    assert [event.worker_rank for event in ran.losses] == [worker]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["step.in_turn", "step.after_reduction"])
def test_buffers_of_their_own_survive(jobs: Jobs, point: str) -> None:
    jobs.check("cnn_own_buffers", placement="0|1|2,3", faults=(Fault(point, step=3, worker_rank=2),))


@pytest.mark.slow
@pytest.mark.parametrize("point", ["operation.before_barrier", "operation.after_barrier"])
@pytest.mark.parametrize(
    ("recipe", "first_step", "overrides"),
    [("augmented", 3, DDP), ("cnn_own_buffers", 4, {})],
)
def test_a_loss_while_an_epoch_begins(
    jobs: Jobs, point: str, recipe: str, first_step: int, overrides: dict[str, str]
) -> None:
    """What the workers agreed on may count, although the lost one's ESTs have opened no stream."""
    faults = (Fault(point, step=first_step, virtual_rank=3),)
    ran = jobs.check(recipe, placement="0|1|2,3", faults=faults, overrides=overrides)
    assert [event.worker_rank for event in ran.losses] == [2]
