"""The two orders in which gradients are summed over virtual ranks. Pure integers, no torch.

Floating-point addition is not associative, so the order is part of the job. ``tree``: ``[0, N)`` splits at the largest
power of two below its length, down to single ranks. ``ring``: what gloo's ring all-reduce does, found by experiment
(tests/reduce). Neither knows of workers: a placement only decides who does which part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GLOO_MAX_SEGMENT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """The virtual ranks ``start .. stop - 1``: one sum of the tree."""

    start: int
    stop: int

    @property
    def is_leaf(self) -> bool:
        return self.stop - self.start == 1

    def split(self) -> tuple[Node, Node]:
        """The two sums that this one adds: left holds the largest power of two of ranks below the length."""
        middle = self.start + (1 << (self.stop - self.start - 1).bit_length() - 1)
        return Node(self.start, middle), Node(middle, self.stop)


def path_to(root: Node, rank: int) -> list[Node]:
    """The nodes from ``root`` down to the leaf of ``rank``, both included."""
    path = [root]
    while not path[-1].is_leaf:
        left, right = path[-1].split()
        path.append(left if rank < left.stop else right)
    return path


def complete_nodes(root: Node, ranks: Iterable[int]) -> list[Node]:
    """The largest nodes under ``root`` whose ranks are all in ``ranks``, from left to right.

    They are what a worker that hosts ``ranks`` can add up by itself, and so what it sends.
    """
    held = set(ranks)

    def visit(node: Node) -> list[Node]:
        inside = sum(rank in held for rank in range(node.start, node.stop))
        if inside == node.stop - node.start:
            return [node]
        if inside == 0:
            return []
        left, right = node.split()
        return visit(left) + visit(right)

    return visit(root)


def exchange_order(root: Node, node_by_worker: list[Node]) -> list[int] | None:
    """Workers in tree order if their nodes are the leaves of a perfect binary tree, else None.

    Then neighbours at distance 1, 2, 4, ... in this order are exactly the siblings of the tree, level by level, and
    recursive halving follows it.
    """
    workers = len(node_by_worker)
    if workers & (workers - 1):
        return None
    frontier = [root]
    for _ in range(workers.bit_length() - 1):
        if any(node.is_leaf for node in frontier):
            return None
        frontier = [child for node in frontier for child in node.split()]
    if sorted(node_by_worker) != frontier:
        return None
    return [node_by_worker.index(node) for node in frontier]


def ring_chunks(elements: int, element_size: int, num_ranks: int) -> list[tuple[int, int]]:
    """Where gloo's ring all-reduce cuts a buffer: ``(start, stop)`` for the chunk of each rank, in elements.

    Args:
        elements: length of the buffer.
        element_size: bytes of one element.
        num_ranks: ranks of the ring.
    """
    total = elements * element_size
    segment_limit = element_size * max(1, GLOO_MAX_SEGMENT_BYTES // element_size)
    segments = max(_ceil_div(total, segment_limit), 2 * num_ranks)
    segments = _ceil_div(segments, num_ranks) * num_ranks
    segment_bytes = _ceil_div(_ceil_div(total, segments), element_size) * element_size
    size = segments // num_ranks * segment_bytes // element_size
    return [(min(rank * size, elements), min((rank + 1) * size, elements)) for rank in range(num_ranks)]


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def ring_order(chunk: int, num_ranks: int) -> list[int]:
    """Ranks in the order in which they are added for a chunk: ``chunk - 1``, ``chunk - 2``, ... modulo N, ``chunk``."""
    return [(chunk - 1 - hop) % num_ranks for hop in range(num_ranks)]
