"""What happens to the workers in the elastic run of ``verify``: what was asked for, and what the run recorded of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from easyscale.cli import options
from easyscale.core import events
from easyscale.core.errors import RefusedError
from easyscale.core.events import RescaleEvent, StepEvent
from easyscale.core.job import Fault
from easyscale.core.placement import Placement

if TYPE_CHECKING:
    from easyscale.launch.elasticity import Elasticity

_PLANNED = ("schedule", "replacement", "scale", "preemption")
_MORE_FAILURES = 20
"""Losses that nobody asked for and that end no run."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One thing that was asked for.

    Attributes:
        kind: "rescale" (planned, before the global step), "kill" (SIGKILL in it) or "stop" (SIGSTOP in it).
        num_workers: what a rescale goes to.
    """

    kind: Literal["rescale", "kill", "stop"]
    global_step: int
    num_workers: int | None = None

    def __str__(self) -> str:
        return f"--{self.kind} {self.global_step}{'' if self.num_workers is None else f':{self.num_workers}'}"


@dataclass(frozen=True, slots=True)
class Happening:
    """What became of it; without a ``placement`` it did not happen.

    Attributes:
        placement: that of the generation which followed.
        pause_s: the longest time for which a worker that stayed did nothing else, from when it noticed.
        step_s: the whole global step of a loss: until it was noticed, the pause, and the pass that was done again.
    """

    asked: Disturbance
    placement: str | None = None
    pause_s: float | None = None
    step_s: float | None = None

    @property
    def has_happened(self) -> bool:
        return self.placement is not None


def parse(rescale: str | None, kill: str | None, stop: str | None) -> tuple[Disturbance, ...]:
    """What the options ask for, in the order in which it happens.

    Raises:
        RefusedError: an option is not understood.
    """
    found = [Disturbance("rescale", step, count) for step, count in options.rescale_schedule(rescale)]
    found += [Disturbance("kill", step) for step in _steps("kill", kill)]
    found += [Disturbance("stop", step) for step in _steps("stop", stop)]
    return tuple(sorted(found, key=lambda one: one.global_step))  # in one step: rescale, kill, stop


def _steps(name: str, text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        steps = [int(part) for part in text.split(",")]
    except ValueError:
        raise RefusedError(f"--{name} {text!r} is not understood: write it as --{name} 7,12") from None
    if steps != sorted(set(steps)) or steps[0] < 0:
        raise RefusedError(f"--{name} {text}: give rising global steps from 0 on, each once")
    return steps


def start_among(placements: Iterable[Placement]) -> Placement:
    """Where the elastic run begins: on the first placement that can lose a worker, else on the first."""
    chosen = list(placements)
    return next((placement for placement in chosen if placement.num_workers > 1), chosen[0])


def elasticity(asked: Iterable[Disturbance], start: Placement, hang_timeout_s: float) -> Elasticity:
    """The rules of a run that begins on ``start`` and in which all that happens.

    Losses hit the host of virtual rank 0 and that of the last one in turn. Before a further one the job waits until
    the worker that was lost before is replaced, so that it is always known how many workers there are.

    Raises:
        RefusedError: it cannot happen.
    """
    from easyscale.launch.elasticity import Elasticity

    if hang_timeout_s <= 0:
        raise RefusedError(f"--hang-timeout is {hang_timeout_s}: give more than 0 seconds")
    placement, since = start, f"it starts on placement {start}"
    schedule: list[tuple[int, Placement]] = []
    faults: list[Fault] = []
    for step, group in groupby(asked, key=lambda one: one.global_step):
        losses = []
        for one in group:
            if one.num_workers is None:
                losses.append(one)
                continue
            placement, since = Placement.even(start.num_ests, one.num_workers), str(one)
            schedule.append((step, placement))
        if not losses:
            continue
        _check_losses(losses, placement.num_workers, since)
        if faults and (not schedule or schedule[-1][0] != step):
            schedule.append((step, placement))
        for one in losses:
            victim = start.num_ests - 1 if len(faults) % 2 else 0
            faults.append(Fault("step.in_turn", one.kind, step=step, virtual_rank=victim))
    counts = [start.num_workers, *(placement.num_workers for _, placement in schedule)]
    return Elasticity(
        min(counts),
        max(counts),
        tuple(schedule),
        max_failures=_MORE_FAILURES + len(faults),
        hang_timeout_s=hang_timeout_s,
        faults=tuple(faults),
    )


def _check_losses(losses: list[Disturbance], num_workers: int, since: str) -> None:
    if len(losses) < num_workers:
        return
    asked = " and ".join(map(str, losses))
    there = "1 worker" if num_workers == 1 else f"{num_workers} workers"
    raise RefusedError(
        f"{asked} cannot be survived: the job has {there} in global step {losses[0].global_step} ({since}), and one "
        f"must be left that has the job's state: choose another step, or have {len(losses) + 1} workers or more in it"
    )


def happenings(asked: Iterable[Disturbance], folder: Path) -> tuple[Happening, ...]:
    """What the run in ``folder`` recorded of it."""
    record = list(events.read(folder / events.FILE_NAME))
    seconds = {event.global_step: event.seconds for event in record if isinstance(event, StepEvent)}
    changes = [event for event in record if isinstance(event, RescaleEvent)]
    losses = [(change, worker) for change in changes if change.reason not in _PLANNED for worker in change.left]
    found = []
    for one in asked:
        if one.num_workers is not None:
            change = next((change for change in changes if _is_that(change, one)), None)
            found.append(_happening(one, change, None))
            continue
        loss = next((loss for loss in losses if loss[0].global_step == one.global_step), None)
        if loss is not None:
            losses.remove(loss)
        found.append(_happening(one, None if loss is None else loss[0], seconds.get(one.global_step)))
    return tuple(found)


def _is_that(change: RescaleEvent, asked: Disturbance) -> bool:
    workers = Placement.parse(change.placement).num_workers
    return (change.reason, change.global_step, workers) == ("schedule", asked.global_step, asked.num_workers)


def _happening(asked: Disturbance, change: RescaleEvent | None, step_s: float | None) -> Happening:
    if change is None:
        return Happening(asked)
    return Happening(asked, change.placement, change.seconds.get("pause"), step_s)


def to_json(happening: Happening) -> dict[str, Any]:
    asked = happening.asked
    return {
        "event": asked.kind,
        "global_step": asked.global_step,
        "num_workers": asked.num_workers,
        "happened": happening.has_happened,
        "placement": happening.placement,
        "pause_s": happening.pause_s,
        "step_s": happening.step_s,
    }
