"""What a script reports: scalars by virtual rank and global step, and sums over all ESTs. Runs in the worker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from easyscale.core.errors import UsageError
from easyscale.train.reduce.channel import Channel
from easyscale.train.reduce.order import Node


class Log:
    """Scalars of the global step that runs, each once, whatever ran how often."""

    def __init__(self) -> None:
        self._values: dict[int, dict[str, Any]] = {}

    def file(self, virtual_rank: int, scalars: Mapping[str, Any]) -> None:
        for name, value in scalars.items():
            self._values.setdefault(virtual_rank, {})[name] = _scalar(name, value)

    def values(self) -> dict[int, dict[str, float]]:
        """What was filed since it was last taken, as numbers."""
        return {rank: {name: float(value) for name, value in own.items()} for rank, own in sorted(self._values.items())}

    def take(self) -> dict[int, dict[str, float]]:
        """The same; from now on new ones are filed."""
        values, self._values = self.values(), {}
        return values


def _scalar(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise UsageError(f"session.log({name}=...) got a tensor of shape {tuple(value.shape)}: give one number")
        # a device tensor is read when the step ends, so that logging does not wait for the device
        return value.detach().clone() if value.device.type != "cpu" else value.item()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"session.log({name}=...) got {type(value).__name__}: give a number or a tensor of one"
        ) from None


def job_sum(value: Any, num_ests: int, channel: Channel | None) -> Any:
    """Add up what workers hold, with the same result on every placement.

    Args:
        value: an integer, a tensor of integers or booleans, or a mapping from virtual rank to number.

    Returns:
        An ``int``, an integer tensor of the same shape, or for a mapping a ``float`` summed along the job's tree.

    Raises:
        UsageError: a floating-point number that several ESTs may have been added up into: its rounding depends on
            the placement.
    """
    if isinstance(value, Mapping):
        return _sum_by_rank({int(rank): float(number) for rank, number in value.items()}, num_ests, channel)
    if isinstance(value, bool | int):
        return int(_sum_integers(torch.tensor(int(value)), channel).item())
    if isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex():
        return _sum_integers(value, channel)
    raise UsageError(
        f"session.sum got a floating-point {type(value).__name__}: the order in which this worker added it up "
        "depends on the placement, and so do its bits. Give integers (counts), or one number for each EST: "
        f"session.sum({{virtual_rank: value}})"
    )


def _sum_integers(value: Tensor, channel: Channel | None) -> Tensor:
    total = value.detach().to(torch.int64).clone()
    if channel is not None:
        on_device = total.to(channel.device)
        total = channel.call(lambda: channel.sum(on_device)).to(value.device)
    return total


def _sum_by_rank(own: dict[int, float], num_ests: int, channel: Channel | None) -> float:
    given = [own]
    if channel is not None:
        data = json.dumps({str(rank): number.hex() for rank, number in own.items()}).encode()
        frames = channel.call(lambda: channel.gather_bytes(data))
        given = [{int(rank): float.fromhex(text) for rank, text in json.loads(f).items()} for f in frames]
    by_rank: dict[int, float] = {}
    for rank, number in itertools.chain.from_iterable(part.items() for part in given):
        if rank in by_rank or not 0 <= rank < num_ests:
            raise UsageError(
                f"session.sum got virtual rank {rank} twice or out of 0..{num_ests - 1}: give each EST's number once"
            )
        by_rank[rank] = number

    def visit(node: Node) -> float:
        if node.is_leaf:
            return by_rank.get(node.start, 0.0)
        left, right = node.split()
        return visit(left) + visit(right)

    return visit(Node(0, num_ests))


def job_least(count: int, channel: Channel | None) -> int:
    """The least of what all workers say."""
    if channel is None:
        return count
    said = torch.zeros(channel.size, dtype=torch.int64, device=channel.device)
    said[channel.rank] = count
    total: torch.Tensor = channel.call(lambda: channel.sum(said))
    return int(total.min())
