"""How the processes of a run ended. Runs in the launcher."""

from __future__ import annotations

from dataclasses import dataclass
from signal import Signals

from easyscale.core.messages import Finished
from easyscale.core.placement import Placement
from easyscale.launch.failure import Failure


@dataclass(frozen=True, slots=True)
class Ending:
    """How the processes of a run ended.

    Attributes:
        signal: what stopped the launcher, if something did.
        placements: those of all generations.
        seconds: from the first worker's start of the script to the end of all.
    """

    finished: tuple[Finished, ...]
    failure: Failure | None
    signal: Signals | None
    placements: tuple[Placement, ...]
    has_session: bool
    global_steps: int
    seconds: float
