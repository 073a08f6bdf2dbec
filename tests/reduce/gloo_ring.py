"""Runs gloo's real all-reduce in the members of a fleet, for many sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

Case = tuple[str, int]
"""dtype by name, number of elements"""


def all_reduce(rank: int, size: int, store_path: str, cases: Sequence[Case]) -> list[str]:
    """Hash of what rank ``rank`` of ``size`` holds after each all-reduce."""
    store = dist.FileStore(store_path, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    try:
        return [_reduced(case, rank) for case in cases]
    finally:
        dist.destroy_process_group()


def _reduced(case: Case, rank: int) -> str:
    values = part(case, rank)
    dist.all_reduce(values)
    return bit_hash(values)


def part(case: Case, rank: int) -> torch.Tensor:
    """What ``rank`` brings: numbers of very different size, so that most orders give other bits."""
    name, elements = case
    generator = torch.Generator().manual_seed(1000 * elements + rank)
    values = torch.randn(elements, generator=generator)
    exponents = torch.randint(-3, 4, (elements,), generator=generator)
    return torch.ldexp(values, exponents).to(getattr(torch, name))


def bit_hash(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest()
