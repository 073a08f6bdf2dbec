"""What the launcher is asked to run, and what it says while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from easyscale.core.events import CheckpointEvent, PlanEvent, RescaleEvent, ResumeEvent, StepEvent
from easyscale.core.job import CheckpointSpec, ScriptSpec, WatchSpec
from easyscale.core.placement import Placement
from easyscale.launch.elasticity import Elasticity


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run of a script.

    Attributes:
        placement: where the ESTs run; a default one if nobody said how many there are.
        is_num_ests_explicit: whether the user said it; if not, the script's own ``num_ests`` counts.
        overrides: fields of ``JobSpec`` that win over the script's.
        elasticity: what may change while it runs.
        checkpoint: where and when it writes checkpoints; None: never.
        grace_s: how long a run that is asked to end may take to write one.
    """

    script: ScriptSpec
    placement: Placement
    is_num_ests_explicit: bool = True
    overrides: Mapping[str, Any] = field(default_factory=dict)
    watch: WatchSpec = field(default_factory=WatchSpec)
    elasticity: Elasticity = field(default_factory=Elasticity)
    checkpoint: CheckpointSpec | None = None
    grace_s: float = 30.0


class Listener(Protocol):
    """Who shows a run. Called in the launcher's only thread, between messages: must return soon."""

    def output(self, stream: str, text: str) -> None:
        """The script printed text that belongs on the console."""

    def step(self, event: StepEvent, total_steps: int | None) -> None:
        """All workers have finished a global step."""

    def rescale(self, event: RescaleEvent) -> None:
        """The job has changed its workers."""

    def planned(self, event: PlanEvent) -> None:
        """The planner has decided to move ESTs, or to leave them."""

    def checkpoint(self, event: CheckpointEvent | ResumeEvent) -> None:
        """A checkpoint was written, or was not, or the run goes on from one."""

    def notice(self, sentence: str) -> None:
        """Something the user should know; the run goes on."""

    def tick(self) -> None:
        """Time has passed."""
