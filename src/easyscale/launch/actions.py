"""What the job master wants to be done. Runs in the launcher."""

from __future__ import annotations

from dataclasses import dataclass

from easyscale.core.messages import Formed
from easyscale.core.orders import Form, Order
from easyscale.core.placement import Placement


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker that joins."""

    worker: int


@dataclass(frozen=True, slots=True)
class Send:
    """Give a worker an order."""

    worker: int
    order: Order


@dataclass(frozen=True, slots=True)
class Kill:
    """End a worker: nobody needs it."""

    worker: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job cannot go on."""

    message: str


@dataclass(frozen=True, slots=True)
class Say:
    """The user should know."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Begun:
    """A generation has begun.

    Attributes:
        decided_at: when it was wished for, or a worker was lost.
        started_at: when the job began to wait for new workers; without any the same as ``staffed_at``.
        staffed_at: when all that it needs were there.
    """

    form: Form
    before: Placement
    members_before: tuple[int, ...]
    reason: str
    decided_at: float
    started_at: float
    staffed_at: float
    formed: tuple[Formed, ...]


Action = Start | Send | Kill | GiveUp | Say | Begun
