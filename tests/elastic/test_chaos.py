"""Drawn schedules of scalings, kills, stops and terminations: no bit, no sample and no process may tell of them.

``EASYSCALE_CHAOS=300`` runs as many schedules as make 300 events; ``EASYSCALE_CHAOS_SEEDS=17,23`` runs these alone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from easyscale.core.events import StepEvent
from elastic import chaos
from elastic.conftest import Jobs

SCRIPT = Path(__file__).with_name("chaos_train.py")
NUM_SAMPLES = 48
SHARED_MEMORY = Path("/dev/shm")
DEFAULT_EVENTS = 60


def chosen_seeds() -> list[int]:
    given = os.environ.get("EASYSCALE_CHAOS_SEEDS")
    if given:
        return [int(seed) for seed in given.split(",")]
    return list(chaos.seeds(int(os.environ.get("EASYSCALE_CHAOS", DEFAULT_EVENTS))))


@pytest.fixture
def shared_memory_is_given_back() -> Iterator[None]:
    before = _abandoned()
    yield
    assert not _abandoned() - before


def _abandoned() -> set[str]:
    """Pieces of torch's shared memory whose maker is dead. Their names begin with ``torch_`` and its number."""
    names = [path.name for path in SHARED_MEMORY.glob("torch_*")]
    return {name for name in names if not psutil.pid_exists(int(name.split("_")[1]))}


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", chosen_seeds())
def test_no_schedule_changes_a_bit(jobs: Jobs, shared_memory_is_given_back: None, seed: int) -> None:
    schedule = chaos.draw(seed)
    try:
        ran = jobs.check(
            *schedule.program.args,
            "--epochs",
            schedule.epochs,
            script=SCRIPT,
            placement=schedule.start,
            schedule=tuple(schedule.changes),
            faults=tuple(schedule.faults),
            overrides=schedule.program.overrides,
            max_failures=len(schedule.faults) + 5,
            hang_timeout_s=chaos.HANG_TIMEOUT_S,
        )
        check_samples(ran.steps, schedule.epochs)
        assert len(ran.losses) >= schedule.num_losses, [event.message for event in ran.losses]
        assert {step for step, _ in schedule.changes} <= {event.global_step for event in ran.rescales}
    except AssertionError as error:
        raise AssertionError(f"{error}\nwith {schedule}") from error


def check_samples(steps: list[StepEvent], epochs: int) -> None:
    """Each sample once in each epoch, by what the ESTs filed of the mini-batches that counted."""
    for epoch in range(epochs):
        logs = [values for step in steps if step.epoch == epoch for values in step.log.values()]
        seen = Counter(int(value) for values in logs for name, value in values.items() if name.startswith("sample"))
        wrong = {sample: seen[sample] for sample in range(NUM_SAMPLES) if seen[sample] != 1}
        assert not wrong, f"epoch {epoch}: samples seen more or less than once: {wrong}"


def test_schedules_are_drawn_the_same_again_and_hold_every_kind_of_event() -> None:
    drawn = [chaos.draw(seed) for seed in chaos.seeds(300)]
    assert list(map(str, drawn)) == [str(chaos.draw(schedule.seed)) for schedule in drawn]
    assert {fault.action for schedule in drawn for fault in schedule.faults} == {"kill", "exit", "stop", "term"}
    assert sum(schedule.num_events for schedule in drawn) >= 300
