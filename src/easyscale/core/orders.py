"""What the launcher orders a worker to do while it runs; what workers answer is in ``messages``.

A *generation* is the time between two changes of membership. The launcher numbers generations and workers and uses no
number twice. A worker's rank in a generation is its place in ``Form.members``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Form:
    """Meet the others of a new generation, at a border between global steps (or now, if urgent), and wait for ``Go``.

    Attributes:
        placement: as ``Placement`` writes it.
        members: workers by rank in the generation.
        joiners: those of them that have no state of the job yet.
        store_path: folder or file in which they meet, for this generation alone.
        source: where all members are joiners: the worker that gives them the state and then leaves.
        is_urgent: a worker was lost, or a generation did not come about: leave whatever waits for others.
        at_step: the border before this global step and no other; None leaves it to the workers to agree on one.
    """

    generation: int
    placement: str
    members: list[int]
    joiners: list[int]
    store_path: str
    is_urgent: bool = False
    at_step: int | None = None
    source: int | None = None


@dataclass(frozen=True, slots=True)
class Go:
    """All have met: the generation begins, and who is no member of it may end."""

    generation: int


@dataclass(frozen=True, slots=True)
class Save:
    """Write a checkpoint at the next border and say so: the run is about to be ended."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The run ends: a SIGTERM from now on is the launcher's."""


Order = Form | Go | Save | Stop
