"""Moves the partial sums of one bucket between workers and adds them in the job's order.

Runs in the channel's thread of every worker. Each worker brings some sums over virtual ranks (for the tree: the largest
complete subtrees it hosts; for the ring: its single ranks); all leave with the sum over all ranks in their first
buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from easyscale.core.placement import Placement
from easyscale.train.reduce.channel import Channel
from easyscale.train.reduce.order import Node, complete_nodes, exchange_order, ring_chunks, ring_order


class Transport(Protocol):
    """One way to reduce a bucket over workers.

    Attributes:
        nodes: the sums this worker brings, in the order of its buffers.
    """

    nodes: list[Node]

    def reduce(self, buffers: list[Tensor], elements: int) -> None:
        """Leave the sum in ``buffers[0][:elements]``; a buffer's length is a multiple of the workers."""


def choose_transport(placement: Placement, worker_rank: int, reduction: str, channel: Channel | None) -> Transport:
    """The cheapest transport that follows ``reduction`` for ``placement``."""
    if reduction == "ring":
        return RingTransport(placement, worker_rank, channel)
    assert channel is not None, "one worker adds up a tree by itself"
    nodes = [complete_nodes(Node(0, placement.num_ests), ranks) for ranks in placement.ranks_by_worker]
    if all(len(own) == 1 for own in nodes):
        if placement.num_workers == 2:
            return PairTransport(nodes, channel)
        order = exchange_order(Node(0, placement.num_ests), [own[0] for own in nodes])
        if order is not None and channel.device.type == "cpu":
            return ExchangeTransport(nodes, order, channel)
    return TreeTransport(nodes, placement.num_ests, channel)


class PairTransport:
    """Two workers with one sum each: a sum of two has one order, so the transport's own all-reduce serves."""

    def __init__(self, nodes: list[list[Node]], channel: Channel) -> None:
        self.nodes = nodes[channel.rank]
        self._channel = channel

    def reduce(self, buffers: list[Tensor], elements: int) -> None:
        self._channel.group.allreduce([buffers[0]]).wait()
        self._channel.gradient_bytes += buffers[0].nbytes


class ExchangeTransport:
    """Recursive halving, then doubling: neighbours at distance 1, 2, 4, ... are the siblings of the tree.

    For a power of two of workers that bring one node each, all at the same depth.
    """

    def __init__(self, nodes: list[list[Node]], order: list[int], channel: Channel) -> None:
        self.nodes = nodes[channel.rank]
        self._order = order
        self._position = order.index(channel.rank)
        self._channel = channel

    def reduce(self, buffers: list[Tensor], elements: int) -> None:
        part, halves = buffers[0], []
        for level in range(len(self._order).bit_length() - 1):
            partner = self._order[self._position ^ (1 << level)]
            low, high = part.tensor_split(2)
            keep, give = (high, low) if self._position >> level & 1 else (low, high)
            received = torch.empty_like(keep)
            self._swap(give, received, partner, level)
            keep.add_(received)
            halves.append((partner, keep, give))
            part = keep
        for level, (partner, keep, give) in reversed(list(enumerate(halves))):
            self._swap(keep, give, partner, level)

    def _swap(self, give: Tensor, take: Tensor, partner: int, tag: int) -> None:
        group = self._channel.group
        works = [group.send([give], partner, tag), group.recv([take], partner, tag)]
        for work in works:
            work.wait()
        self._channel.gradient_bytes += give.nbytes


class TreeTransport:
    """Any placement: the owner of a shard gets all sums of it and adds them along the tree; all gather the shards."""

    def __init__(self, nodes: list[list[Node]], num_ests: int, channel: Channel) -> None:
        self.nodes = nodes[channel.rank]
        self._rows = {node: row for row, node in enumerate(node for own in nodes for node in own)}
        self._counts = [len(own) for own in nodes]
        self._num_ests = num_ests
        self._channel = channel

    def reduce(self, buffers: list[Tensor], elements: int) -> None:
        workers = self._channel.size
        shard = buffers[0].numel() // workers
        sent = (
            buffers[0] if len(buffers) == 1 else torch.stack([b.view(workers, shard) for b in buffers], dim=1).view(-1)
        )
        rows = sent.new_empty(len(self._rows), shard)
        _all_to_all(
            self._channel,
            rows.view(-1),
            sent,
            [count * shard for count in self._counts],
            [len(buffers) * shard] * workers,
        )
        mine = self._sum(Node(0, self._num_ests), rows)
        self._channel.group._allgather_base(buffers[0], mine).wait()
        self._channel.gradient_bytes += mine.nbytes * (workers - 1)

    def _sum(self, node: Node, rows: Tensor) -> Tensor:
        if node in self._rows:
            return rows[self._rows[node]]
        left, right = node.split()
        return self._sum(left, rows).add_(self._sum(right, rows))


@dataclass(frozen=True, slots=True)
class _Owned:
    """The chunks of a bucket that one worker adds up: of the virtual ranks that it hosts."""

    chunks: list[tuple[int, tuple[int, int]]]

    @property
    def elements(self) -> int:
        return sum(stop - start for _, (start, stop) in self.chunks)


class RingTransport:
    """The order of gloo's ring all-reduce over virtual ranks: bits of an unmodified DDP program.

    Buffers hold gradients that are divided already, as DDP does before it sums.
    """

    def __init__(self, placement: Placement, worker_rank: int, channel: Channel | None) -> None:
        self.nodes = [Node(rank, rank + 1) for rank in placement.ranks_by_worker[worker_rank]]
        self._placement = placement
        self._channel = channel

    def reduce(self, buffers: list[Tensor], elements: int) -> None:
        chunks = ring_chunks(elements, buffers[0].element_size(), self._placement.num_ests)
        if self._channel is None:
            self._reduce_here(buffers, chunks)
        else:
            self._reduce_over(self._channel, buffers, elements, chunks)

    def _reduce_here(self, buffers: list[Tensor], chunks: list[tuple[int, int]]) -> None:
        by_rank = [buffer for _, buffer in sorted(zip(self.nodes, buffers, strict=True), key=lambda pair: pair[0])]
        sums = [ring_sum([b[start:stop] for b in by_rank], chunk) for chunk, (start, stop) in enumerate(chunks)]
        for (start, stop), total in zip(chunks, sums, strict=True):
            buffers[0][start:stop] = total

    def _reduce_over(
        self, channel: Channel, buffers: list[Tensor], elements: int, chunks: list[tuple[int, int]]
    ) -> None:
        ranks_by_worker = self._placement.ranks_by_worker
        owned = [_Owned([(rank, chunks[rank]) for rank in ranks]) for ranks in ranks_by_worker]
        mine = owned[channel.rank]
        pieces = [buffer[start:stop] for own in owned for _, (start, stop) in own.chunks for buffer in buffers]
        received = [mine.elements * len(ranks) for ranks in ranks_by_worker]
        flat = buffers[0].new_empty(sum(received))
        _all_to_all(channel, flat, torch.cat(pieces), received, [own.elements * len(buffers) for own in owned])
        result = self._add(flat, mine, received)
        gathered = flat.new_empty(elements)
        sizes = [own.elements for own in owned]
        _all_to_all(channel, gathered, result.repeat(len(sizes)), sizes, [result.numel()] * len(sizes))
        self._scatter(gathered, owned, buffers[0])

    def _add(self, flat: Tensor, mine: _Owned, received: list[int]) -> Tensor:
        """Sum of every own chunk over all ranks; ``flat`` holds, by worker, chunk by chunk, its ranks' parts."""
        parts: dict[tuple[int, int], Tensor] = {}
        offset = 0
        for ranks in self._placement.ranks_by_worker:
            for chunk, (start, stop) in mine.chunks:
                for rank in ranks:
                    parts[chunk, rank] = flat[offset : offset + stop - start]
                    offset += stop - start
        sums = [ring_sum([parts[chunk, r] for r in range(self._placement.num_ests)], chunk) for chunk, _ in mine.chunks]
        return torch.cat(sums)

    @staticmethod
    def _scatter(gathered: Tensor, owned: list[_Owned], target: Tensor) -> None:
        offset = 0
        for own in owned:
            for _, (start, stop) in own.chunks:
                target[start:stop] = gathered[offset : offset + stop - start]
                offset += stop - start


def ring_sum(part_by_rank: list[Tensor], chunk: int) -> Tensor:
    """Sum of one chunk over ranks in ring order; the parts are left as they were."""
    first, *others = ring_order(chunk, len(part_by_rank))
    total = part_by_rank[first].clone()
    for rank in others:
        torch.add(part_by_rank[rank], total, out=total)  # gloo's operand order: it decides which NaN survives
    return total


def _all_to_all(channel: Channel, output: Tensor, source: Tensor, received: list[int], sent: list[int]) -> None:
    channel.group.alltoall_base(output, source, received, sent, dist.AllToAllOptions()).wait()
    to_others = sum(size for worker, size in enumerate(sent) if worker != channel.rank)
    channel.gradient_bytes += to_others * source.element_size()
