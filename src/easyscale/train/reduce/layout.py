"""Which parameters travel together: the bucket layout, decided as PyTorch's DDP decides it. Runs in the worker.

With ``reduction="tree"`` it changes no bit; with ``ring`` it does, since a ring cuts every bucket into chunks. So the
functions that DDP uses are used here too, in the same order: one bucket (or DDP's size limits, where parameters may be
unused) for the first pass, then buckets in the order in which virtual rank 0's gradients arrived.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from easyscale.core.errors import RefusedError

_MIB = 1 << 20
_DEFAULT_CAP_MB = 25

Layout = tuple[tuple[int, ...], ...]
"""Buckets of parameter numbers, in the order in which they are reduced."""


@dataclass(frozen=True, slots=True)
class DdpOptions:
    """The options of ``DistributedDataParallel`` that decide an order, under their names there."""

    bucket_cap_mb: float | None = None
    find_unused_parameters: bool = False
    static_graph: bool = False
    broadcast_buffers: bool = True

    def __post_init__(self) -> None:
        if self.bucket_cap_mb is not None and self.bucket_cap_mb <= 0:
            raise RefusedError(f"bucket_cap_mb is {self.bucket_cap_mb}: give a size above 0, in MiB")

    @property
    def cap_bytes(self) -> int:
        return int((_DEFAULT_CAP_MB if self.bucket_cap_mb is None else self.bucket_cap_mb) * _MIB)

    @property
    def first_cap_bytes(self) -> int:
        return dist._DEFAULT_FIRST_BUCKET_BYTES if self.bucket_cap_mb is None else self.cap_bytes

    @property
    def passes_before_rebuild(self) -> int:
        """DDP with ``static_graph`` only counts hooks in its first pass and records their order in the second."""
        return 2 if self.static_graph else 1


def initial_layout(params: Sequence[Tensor], options: DdpOptions, *, may_be_unused: bool) -> Layout:
    """DDP's buckets before any gradient was seen."""
    if options.static_graph or not may_be_unused:
        limits = [sys.maxsize]
    elif options.first_cap_bytes < options.cap_bytes:
        limits = [options.first_cap_bytes, options.cap_bytes]
    else:
        limits = [options.cap_bytes]
    return tuple(reversed(_assign(params, limits, [])))


def rebuilt_layout(params: Sequence[Tensor], options: DdpOptions, arrival: Sequence[int]) -> Layout:
    """DDP's buckets once the order of gradients is known.

    Args:
        arrival: parameter numbers in the order in which virtual rank 0's gradients arrived.
    """
    ordered = [params[number] for number in arrival]
    return _assign(ordered, [options.first_cap_bytes, options.cap_bytes], list(arrival))


def _assign(params: Sequence[Tensor], limits: list[int], numbers: list[int]) -> Layout:
    if not params:
        return ()
    buckets, _ = dist._compute_bucket_assignment_by_size(list(params), limits, [False] * len(params), numbers)
    return tuple(tuple(bucket) for bucket in buckets)
