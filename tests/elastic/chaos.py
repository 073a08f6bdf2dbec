"""Draws what happens to the workers of a job, from a seed: scalings and losses, each of which a job can survive.

A job whose only worker is lost has nothing left to go on with. So before a loss the job waits at a border, by a planned
change, until it has the workers that it needs; what is left to chance is everything else.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from easyscale.core.job import Fault

NUM_ESTS = 4
STEPS_PER_EPOCH = 6
HANG_TIMEOUT_S = 2.0

IN_A_STEP = (
    "step.begin",
    "step.in_turn",
    "step.before_reduction",
    "step.after_reduction",
    "operation.before_barrier",
    "operation.after_barrier",
    "step.outer_body",
)
IN_A_FLAT_STEP = IN_A_STEP[:-1]
"""The drop-in form has no outer body of its own."""
BEFORE_COUNTS = ("step.begin", "step.in_turn", "step.before_reduction")
"""With an evaluation: what a worker has counted and not added yet is lost with it, which ends the run in words."""
IN_A_RESCALE = (
    "rescale.border",
    "rescale.before_meeting",
    "rescale.before_state",
    "rescale.after_state",
    "rescale.formed",
)
KINDS = {"scale": 5, "kill": 5, "exit": 1, "stop": 1, "term": 3, "two": 2, "while it recovers": 1, "in a rescale": 3}
PLACEMENTS = {
    1: ("0,1,2,3", "3,1,0,2"),
    2: ("0,1|2,3", "2|0,3,1", "3,0|1,2"),
    3: ("0,1|2|3", "3,0|2|1", "1|0|3,2"),
    4: ("0|1|2|3", "1|0|3|2"),
}


@dataclass(frozen=True)
class Program:
    """What is trained, and how."""

    args: tuple[Any, ...]
    overrides: dict[str, Any] = field(default_factory=dict)
    points: tuple[str, ...] = IN_A_STEP


PROGRAMS = (
    Program(("cnn",)),
    Program(("transformer",)),
    Program(("augmented", "--workers", 2)),
    Program(("cnn", "--form", "drop_in"), points=IN_A_FLAT_STEP),
    Program(("augmented", "--workers", 2, "--persistent"), {"rng": "ddp"}),
    Program(("transformer", "--form", "drop_in"), {"rng": "ddp", "reduction": "ring"}, points=IN_A_FLAT_STEP),
    Program(("cnn", "--evaluate-every", 4), points=BEFORE_COUNTS),
    Program(("augmented", "--workers", 1, "--form", "drop_in"), points=IN_A_FLAT_STEP),
)


@dataclass
class Schedule:
    """What happens to one job; printing it is enough to make it happen again.

    Attributes:
        changes: planned changes of the placement, by global step.
        faults: what happens to single workers.
    """

    seed: int
    program: Program
    start: str
    epochs: int
    changes: list[tuple[int, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @property
    def num_events(self) -> int:
        return len(self.changes) + len(self.faults)

    @property
    def num_losses(self) -> int:
        """Workers that are lost for sure: whoever recovers is lost only if somebody is inside of an operation then."""
        return sum(fault.action != "term" and fault.virtual_rank is not None for fault in self.faults)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.program.args} {self.program.overrides}, from {self.start}"]
        lines += [f"  before step {step}: {placement}" for step, placement in self.changes]
        lines += [f"  in step {f.step}: {f.action} at {f.point}, virtual rank {f.virtual_rank}" for f in self.faults]
        return "\n".join(lines)


def draw(seed: int, epochs: int = 4) -> Schedule:
    """The schedule of this seed."""
    drawing = _Drawing(seed, epochs)
    drawing.run()
    return drawing.schedule


def seeds(num_events: int) -> Iterator[int]:
    """As many seeds, from 0, as are needed for so many events."""
    for seed in count():
        if num_events <= 0:
            return
        yield seed
        num_events -= draw(seed).num_events


class _Drawing:
    """Knows how many workers there are: ``workers``, or fewer where one may not have been replaced yet."""

    def __init__(self, seed: int, epochs: int) -> None:
        self._random = random.Random(seed)
        self._workers = self._random.randint(1, NUM_ESTS)
        self._is_full, self._leaving = True, 0
        start = self._random.choice(PLACEMENTS[self._workers])
        self.schedule = Schedule(seed, PROGRAMS[seed % len(PROGRAMS)], start, epochs)

    def run(self) -> None:
        step = 0
        while (step := step + self._random.choice((1, 1, 1, 2, 3))) < self.schedule.epochs * STEPS_PER_EPOCH:
            (kind,) = self._random.choices(list(KINDS), list(KINDS.values()))
            if kind == "scale":
                self._change(step, 1)
            elif kind == "term":
                self._fault(step, "term", "step.in_turn")
                self._is_full, self._leaving = False, self._leaving + 1
            elif kind == "in a rescale":
                self._lose_in_a_rescale(step)
            else:
                self._lose(step, kind)

    def _change(self, step: int, at_least: int) -> None:
        self._workers = self._random.randint(at_least, NUM_ESTS)
        self.schedule.changes.append((step, self._random.choice(PLACEMENTS[self._workers])))
        self._is_full, self._leaving = True, 0

    def _fault(self, step: int, action: str, point: str) -> None:
        # who recovers is not the host of what was lost, and not known
        rank = None if point == "recovery.begin" else self._random.randrange(NUM_ESTS)
        self.schedule.faults.append(Fault(point, action, step=step, virtual_rank=rank))

    def _lose(self, step: int, kind: str) -> None:
        num_lost = 2 if kind in ("two", "while it recovers") else 1
        needed = num_lost + 1 + self._leaving
        if needed > NUM_ESTS:
            self._change(step, 1)
            return
        if not self._is_full or self._workers < needed:
            self._change(step, needed)
        # after the pass counts, a loss is noticed at the border, and nobody recovers from it inside a step
        points = BEFORE_COUNTS if kind == "while it recovers" else self.schedule.program.points
        point = self._random.choice(points)
        self._fault(step, kind if num_lost == 1 else "kill", point)
        if kind == "two":
            self._fault(step, self._random.choice(("kill", "kill", "stop")), self._random.choice(BEFORE_COUNTS))
        if kind == "while it recovers":
            self._fault(step, "kill", "recovery.begin")
        self._is_full = False

    def _lose_in_a_rescale(self, step: int) -> None:
        """Only where the workers before it are known to be two or more: the job waits there until it is over."""
        can_lose = self._is_full and self._workers > 1
        self._change(step, 1)
        if can_lose:
            self._fault(step, self._random.choice(("kill", "kill", "kill", "stop")), self._random.choice(IN_A_RESCALE))
