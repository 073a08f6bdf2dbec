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

    def push(self, virtual_rank: int, grads: Grads) -> None:
        """Take the gradients of an EST whose turn is over; they belong to the staging from now on."""
        node, siblings = self.merges(virtual_rank)
        for held in self._pop(siblings):
            grads = [_add(left, right) for left, right in zip(held, grads, strict=True)]
        self._held[node] = self._shelf.put(grads)

    def complete(self, virtual_rank: int, grads: Grads, used: Sequence[int], scale: float) -> Grads:
        """The sum over all ESTs, times ``scale``, when all ran here and ``virtual_rank`` is the last one.

        Args:
            used: how many ESTs used each parameter; one that none used is left as it is in ``grads``.
        """
        waiting = self._pop(self.merges(virtual_rank)[1])
        # parameter by parameter through all levels: what was just added is still in the processor's cache
        return [
            self._add_up(number, grad, waiting, scale) if used[number] else grad for number, grad in enumerate(grads)
        ]

    def _pop(self, nodes: list[Node]) -> list[Grads]:
        return [self._shelf.take(self._held.pop(node)) for node in nodes]

    @staticmethod
    def _add_up(number: int, grad: Tensor | None, waiting: list[Grads], scale: float) -> Tensor | None:
        for held in waiting:
            grad = _add(held[number], grad)
        return grad if grad is None or scale == 1.0 else grad.mul_(scale)

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


def _add(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """``left + right`` in place of ``left``. A gradient that is missing counts as zeros, as in DDP."""
    if left is None or right is None:
        present = right if left is None else left
        # x + 0 is x, except that -0 + 0 is 0: add it, or the sign would tell which worker did the sum
        return None if present is None else present.add_(0)
    return left.add_(right)
