"""What workers tell each other when a pass is new, or differs from what was learned. Runs in the worker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

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


def agree(channel: Channel | None, used: Sequence[int], late: Collection[int]) -> Agreement:
    """Put together what each worker saw."""
    if channel is None:
        return Agreement(tuple(used), frozenset(late))
    notes = torch.tensor([*used, *(int(n in late) for n in range(len(used)))], dtype=torch.int32, device=channel.device)
    totals = channel.call(lambda: channel.sum(notes)).tolist()
    return Agreement(tuple(totals[: len(used)]), frozenset(n for n in range(len(used)) if totals[len(used) + n]))
