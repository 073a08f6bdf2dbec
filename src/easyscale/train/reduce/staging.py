"""Where the gradients of a worker's ESTs wait for each other; complete subtrees are added up at once.

Runs in the worker. For k consecutive ESTs at most ``floor(log2 k) + 1`` gradient copies exist at any moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from easyscale.train.reduce.order import Node, path_to

Grads = list[Tensor | None]
"""One gradient for each parameter of the job, in a fixed order; None where an EST did not use it."""


_WIDE = (torch.float32, torch.float64)
_PART_BYTES = 1 << 18


class Shelf(Protocol):
    """Where sums wait while the next EST computes."""

    def put(self, grads: Grads) -> Grads: ...

    def take(self, grads: Grads) -> Grads: ...


class DeviceShelf:
    """``--stage device``: sums wait where they are."""

    def put(self, grads: Grads) -> Grads:
        return grads

    def take(self, grads: Grads) -> Grads:
        return grads


class HostShelf:
    """``--stage host``: sums wait in pinned host memory, copied while the next EST computes (paper, section 3.2).

    On a CPU device there is nothing to gain, so sums stay where they are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def put(self, grads: Grads) -> Grads:
        if self._stream is None:
            return grads
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            return [None if grad is None else self._to_host(grad) for grad in grads]

    def _to_host(self, grad: Tensor) -> Tensor:
        host = torch.empty_like(grad, device="cpu", pin_memory=True)
        host.copy_(grad, non_blocking=True)
        grad.record_stream(self._stream)
        return host

    def take(self, grads: Grads) -> Grads:
        if self._stream is None:
            return grads
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return [None if grad is None else grad.to(self._device, non_blocking=True) for grad in grads]


class Staging:
    """The gradients that earlier ESTs of a pass left.

    Args:
        num_ests: virtual ranks of the job.
        is_tree: add up complete subtrees; the ring adds single ranks, so there every EST's gradients wait.
        shelf: where they wait.
    """

    def __init__(self, num_ests: int, *, is_tree: bool, shelf: Shelf) -> None:
        self._root = Node(0, num_ests)
        self._is_tree = is_tree
        self._shelf = shelf
        self._held: dict[Node, Grads] = {}
        self._ranges: list[tuple[int, int]] = []

    def push(self, virtual_rank: int, grads: Grads) -> None:
        """Take the gradients of an EST whose turn is over; they belong to the staging from now on."""
        node, siblings = self.merges(virtual_rank)
        self._held[node] = self._shelf.put(self._add_up(grads, siblings, 1.0))

    def complete(self, virtual_rank: int, grads: Grads, used: Sequence[int], scale: float) -> Grads:
        """The sum over all ESTs, times ``scale``, when all ran here and ``virtual_rank`` is the last one.

        Args:
            used: how many ESTs used each parameter; one that none used is left as it is in ``grads``.
        """
        siblings = self.merges(virtual_rank)[1]
        if all(used):
            return self._add_up(grads, siblings, scale)
        total = self._add_up([g if u else None for g, u in zip(grads, used, strict=True)], siblings, scale)
        return [t if u else g for t, g, u in zip(total, grads, used, strict=True)]

    def _add_up(self, grads: Grads, siblings: list[Node], scale: float) -> Grads:
        """Add what waits to ``grads``, part by part through all levels: a part stays in the processor's cache."""
        waiting = [self._shelf.take(self._held.pop(node)) for node in siblings]
        total: Grads = []
        for start, stop in self._parts(grads):
            part = grads[start:stop]
            for held in waiting:
                part = _add(held[start:stop], part)
            present = [grad for grad in part if grad is not None]
            if scale != 1.0 and present:
                _scale(present, scale)
            total += part
        return total

    def _parts(self, grads: Grads) -> list[tuple[int, int]]:
        """Ranges of parameters whose gradients fit into a processor's cache together."""
        if not self._ranges or self._ranges[-1][1] != len(grads):
            self._ranges, start, size = [], 0, 0
            for number, grad in enumerate(grads):
                size += 0 if grad is None else grad.nbytes
                if size >= _PART_BYTES or number == len(grads) - 1:
                    self._ranges.append((start, number + 1))
                    start, size = number + 1, 0
        return self._ranges

    def merges(self, virtual_rank: int) -> tuple[Node, list[Node]]:
        """The sum that ``virtual_rank`` completes with what is held, and what it is added to, in this order."""
        path = path_to(self._root, virtual_rank)
        node, siblings = path.pop(), []
        while self._is_tree and path:
            left, right = path[-1].split()
            sibling = right if node == left else left
            if sibling not in self._held:
                break
            siblings.append(sibling)
            node = path.pop()
        return node, siblings

    def get(self, node: Node, numbers: Sequence[int]) -> Grads:
        """What is held for ``node``, of some parameters."""
        held = self._held[node]
        return self._shelf.take([held[number] for number in numbers])

    def clear(self) -> None:
        self._held.clear()

    @property
    def copies(self) -> int:
        """Gradient copies that wait."""
        return len(self._held)


def _scale(grads: list[Tensor], scale: float) -> None:
    """Multiply as ``mul_`` does. For half types the ``foreach`` kernel rounds the factor first: other bits."""
    if all(grad.dtype in _WIDE for grad in grads):
        torch._foreach_mul_(grads, scale)
        return
    for grad in grads:
        grad.mul_(scale)


def _add(left: Grads, right: Grads) -> Grads:
    """``left + right`` in place of ``left``. A gradient that is missing counts as zeros, as in DDP."""
    if all(grad is not None for grad in left) and all(grad is not None for grad in right):
        torch._foreach_add_(left, right)  # type: ignore[arg-type]
        return left
    return [_add_one(a, b) for a, b in zip(left, right, strict=True)]


def _add_one(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        present = right if left is None else left
        # x + 0 is x, except that -0 + 0 is 0: add it, or the sign would tell which worker did the sum
        return None if present is None else present.add_(0)
    return left.add_(right)
