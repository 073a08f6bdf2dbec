"""A worker's place in a generation, and how far it is in the job's operations when another one forms. In the worker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from easyscale.core.errors import JobFailedError
from easyscale.core.placement import Placement
from easyscale.train.reduce.channel import Channel


class RetiredError(BaseException):
    """The job goes on without this worker: the script ends here, as if it had ended well."""


class RepeatError(Exception):
    """A worker was lost: what was being done with it is to be done again by those that are left."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a worker is when a generation forms.

    Attributes:
        left: operations that it has left behind.
        is_inside: whether it is inside the next one.
        has_result: whether it has that one's result.
    """

    left: int
    is_inside: bool = False
    has_result: bool = False


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place in a generation."""

    generation: int
    placement: Placement
    rank: int
    channel: Channel | None

    @property
    def size(self) -> int:
        return self.placement.num_workers


def exchange(channel: Channel | None, standing: Standing | None) -> list[Standing | None]:
    """How far each worker of a generation is, by rank; None for one that has just joined."""
    if channel is None:
        return [standing]
    mine = json.dumps(None if standing is None else asdict(standing)).encode()
    given = [json.loads(text) for text in channel.call(lambda: channel.gather_bytes(mine))]
    return [None if one is None else Standing(**one) for one in given]


def counts_for(rank: int, standings: Sequence[Standing | None]) -> bool:
    """Whether the operation that worker ``rank`` is inside of counts. The same for all who are inside of it.

    Raises:
        JobFailedError: somebody has left an operation behind whose result another one does not have.
    """
    mine = standings[rank]
    known = [one for one in standings if one is not None]
    if mine is None or not mine.is_inside:
        return False
    farthest = max(one.left for one in known)
    if mine.left == farthest:
        return all(one.left == farthest and one.is_inside and one.has_result for one in known)
    if mine.left == farthest - 1 and mine.has_result:
        return True
    raise JobFailedError(
        f"workers that are left of the job do not agree on what was done (operation {mine.left} of {farthest}): no "
        "result could be proved equal from here on; resume from a checkpoint"
    )
