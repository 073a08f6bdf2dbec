"""How a simulated cluster behaves. Runs in ``easyscale simulate``."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from easyscale.core.errors import RefusedError


@dataclass(frozen=True, slots=True)
class Settings:
    """How the cluster behaves.

    Attributes:
        rescale_s: what a change of its devices costs a job, in which it makes no step; the first start included.
        interval_s: decide at multiples of this only; 0 decides whenever something happened.
        give_back_s: the longest that a job may keep devices that serving wants; a mini-batch not done by then is
            dropped.
        checkpoint_s: a failure throws a job back to its last checkpoint, which is at most this old.
        seed: of everything drawn: which device fails, where in a mini-batch a worker stands.
        max_decisions: in one round; a policy that says more goes round in circles and is refused.
    """

    rescale_s: float = 1.0
    interval_s: float = 0.0
    give_back_s: float = 5.0
    checkpoint_s: float = 600.0
    seed: int = 0
    max_decisions: int = 100_000

    def __post_init__(self) -> None:
        for name in ("rescale_s", "interval_s", "give_back_s", "checkpoint_s"):
            if not 0 <= getattr(self, name) < inf:
                raise RefusedError(f"{name} is {getattr(self, name)}: give seconds, 0 or more")
