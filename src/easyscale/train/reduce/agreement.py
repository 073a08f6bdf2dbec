"""What workers tell each other when a pass is new, or differs from what was learned. Runs in the worker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from easyscale.train.reduce.channel import Channel


@dataclass(frozen=True, slots=True)
class Agreement:
    """The same on every worker.

    Attributes:
        used: how many ESTs of the job used each parameter in this pass.
        late: parameters into which a worker accumulated after it had sent their bucket.
    """

    used: tuple[int, ...]
    late: frozenset[int]


class Votes(Protocol):
    """Whether all workers are ready to change the job's membership at the next border (see ``elastic/member``)."""

    @property
    def wants_to_move(self) -> bool:
        """Whether this worker is."""

    def agree(self, votes: int) -> None:
        """So many workers are."""


class NoVotes:
    """The membership never changes."""

    wants_to_move = False

    def agree(self, votes: int) -> None:
        return


def agree(channel: Channel | None, used: Sequence[int], late: Collection[int], votes: Votes) -> Agreement:
    """Put together what each worker saw."""
    if channel is None:
        return Agreement(tuple(used), frozenset(late))
    own = [*used, *(int(n in late) for n in range(len(used))), int(votes.wants_to_move)]
    notes = torch.tensor(own, dtype=torch.int32, device=channel.device)
    totals = channel.call(lambda: channel.sum(notes)).tolist()
    votes.agree(totals[-1])
    return Agreement(tuple(totals[: len(used)]), frozenset(n for n in range(len(used)) if totals[len(used) + n]))


ODD = 1024.0
"""What an irregular pass adds to the flag; below it are votes. Half types hold both exactly where it matters."""


def flag_of(is_odd: bool, votes: Votes) -> float:
    """What this worker adds to the flag on the last bucket."""
    return ODD if is_odd else float(votes.wants_to_move)


def read_flag(total: float, votes: Votes) -> bool:
    """Whether some worker's pass was irregular; if none was, the votes are counted."""
    if total >= ODD / 2:
        return True
    votes.agree(int(total))
    return False


def exchange_flag(channel: Channel, is_odd: bool, votes: Votes) -> bool:
    """The same in a message of its own, where a bucket has no room for it."""
    own = torch.tensor([int(is_odd), int(votes.wants_to_move)], dtype=torch.int32, device=channel.device)
    odd, count = channel.call(lambda: channel.sum(own)).tolist()
    if odd:
        return True
    votes.agree(count)
    return False
