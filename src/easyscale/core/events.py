"""What a run leaves in ``events.jsonl``: one JSON object a line, written by the launcher, read by everyone.

Lines are only ever appended, so a reader may meet a last line that is not complete yet; it is left out.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from easyscale.core.errors import EasyScaleError

FILE_NAME = "events.jsonl"


@dataclass(frozen=True, slots=True)
class StartEvent:
    """The run begins: what the user asked for. What is None is the script's to say."""

    t: float
    script: str
    args: list[str]
    num_workers: int
    overrides: dict[str, Any]
    versions: dict[str, str]
    num_ests: int | None = None
    placement: str | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    max_failures: int | None = None


@dataclass(frozen=True, slots=True)
class StepEvent:
    """A global step that every worker has finished. ``log`` is virtual rank (a string) -> name -> value."""

    t: float
    global_step: int
    epoch: int
    seconds: float
    log: dict[str, dict[str, float]] = field(default_factory=dict)
    digest: str | None = None
    tensors: dict[str, str] | None = None
    total_steps: int | None = None


@dataclass(frozen=True, slots=True)
class FailureEvent:
    """Why the run did not end well: the first cause, in one sentence."""

    t: float
    message: str
    kind: str
    worker_rank: int | None = None
    virtual_rank: int | None = None
    global_step: int | None = None


@dataclass(frozen=True, slots=True)
class RescaleEvent:
    """A generation has begun.

    ``seconds`` has the phases: decide (from the wish or the loss until something is done about it), start (until new
    workers stand ready), drain (until all are at the border), rendezvous (until all have met), restore (until joiners
    have the state), begin (until all are told), first_step (until all had finished a step). And pause: how long the
    worker that waited longest among those that had the state already did nothing else.
    """

    t: float
    generation: int
    global_step: int
    before: str
    placement: str
    reason: str
    joined: list[int]
    left: list[int]
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class LossEvent:
    """A worker was lost, and the run goes on."""

    t: float
    worker_rank: int
    message: str
    failures_in_a_row: int


@dataclass(frozen=True, slots=True)
class PlanEvent:
    """What the job's planner decided after a global step, and why.

    Attributes:
        decision: "move", "back" (to the placement before, since this one is slower) or "stay".
        placement: where the job goes, or stays; ``workers`` by rank there, each with "worker", "kind", "ests" and
            "capability" (mini-batches/s of one EST).
        capability: the same by kind.
        steps_per_s: what the plan predicts.
        waste: the share of the workers' capability that is not used, in [0, 1).
        measured_steps_per_s: where the job was when this was decided; None before it was measured.
    """

    t: float
    global_step: int
    decision: str
    reason: str
    placement: str
    workers: list[dict[str, Any]]
    capability: dict[str, float]
    steps_per_s: float
    waste: float
    measured_steps_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointEvent:
    """A checkpoint was written, or (``path`` is None) was not, for a ``reason``; training waited for ``stalled_s``."""

    t: float
    global_step: int
    stalled_s: float
    written_s: float
    num_bytes: int
    path: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ResumeEvent:
    """The run goes on from a checkpoint."""

    t: float
    global_step: int
    path: str
    notes: list[str]


@dataclass(frozen=True, slots=True)
class EndEvent:
    """The last line of every run: ``state`` is "finished", "failed" or "stopped"."""

    t: float
    state: str
    exit_code: int
    global_steps: int
    seconds: float
    digest: str | None = None


Event = (
    StartEvent
    | StepEvent
    | RescaleEvent
    | LossEvent
    | PlanEvent
    | CheckpointEvent
    | ResumeEvent
    | FailureEvent
    | EndEvent
)
_TYPE_BY_NAME: dict[str, type[Any]] = {
    "start": StartEvent,
    "step": StepEvent,
    "rescale": RescaleEvent,
    "loss": LossEvent,
    "plan": PlanEvent,
    "checkpoint": CheckpointEvent,
    "resume": ResumeEvent,
    "failure": FailureEvent,
    "end": EndEvent,
}
_NAME_BY_TYPE = {event_type: name for name, event_type in _TYPE_BY_NAME.items()}


def to_line(event: Event) -> str:
    """One line of strict JSON without its newline; what is None is left out."""
    facts = {name: value for name, value in dataclasses.asdict(event).items() if value is not None}
    if isinstance(event, StepEvent):
        facts["log"] = _map_log(event.log, float_to_json)
    body = {"t": facts.pop("t"), "type": _NAME_BY_TYPE[type(event)], **facts}
    return json.dumps(body, separators=(",", ":"), allow_nan=False)


def from_line(line: str | bytes) -> Event:
    """Read one line.

    Raises:
        EasyScaleError: the line is not an event of this version.
    """
    try:
        body = json.loads(line)
        event: Event = _TYPE_BY_NAME[body.pop("type")](**body)
        if isinstance(event, StepEvent):
            event = dataclasses.replace(event, log=_map_log(event.log, float))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EasyScaleError(f"not an event: {line[:80]!r} ({error})") from error
    return event


def read(path: Path) -> Iterator[Event]:
    """All events of a file in order; a torn last line (the writer lives or died in it) is left out.

    Raises:
        EasyScaleError: a line before the last is not an event.
        OSError: the file cannot be read.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield from_line(line)
            except EasyScaleError as error:
                raise EasyScaleError(f"{path}, line {number}: {error}") from error


def _map_log(log: Mapping[str, Mapping[str, Any]], convert: Any) -> dict[str, dict[str, Any]]:
    return {rank: {name: convert(value) for name, value in values.items()} for rank, values in log.items()}


def float_to_json(value: float) -> float | str:
    """JSON has no words for infinite or undefined numbers, and a diverged loss is worth recording."""
    return value if math.isfinite(value) else str(value)
