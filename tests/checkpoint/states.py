"""Small job states, and what "the same" means: types, bits and ties."""

from __future__ import annotations

import collections
import struct
from typing import Any

import numpy as np
import torch
from torch import Tensor

from easyscale.train.checkpoint.state import JobFacts, JobState

FACTS = JobFacts(num_ests=4, seed=7, bucket_layout=[[[1, 0], [2]]])


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random bits, which make NaNs and the like too, without touching the process's streams."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.Size(shape).numel() * dtype.itemsize
    high = 2 if dtype is torch.bool else 256
    return torch.randint(0, high, (size,), dtype=torch.uint8, generator=generator).view(dtype).reshape(shape)


def job_state(step: int = 0, size: int = 40) -> JobState:
    """Another one for each step."""
    tensors = {"module0.weight": tensor(size, 3, seed=step), "module0.bias": tensor(3, seed=step + 1)}
    meta = {"epoch": step // 10, "rng": {0: ("MT", tensor(5, seed=step).clone())}, "registered": {"ema": [step, 0.5]}}
    return JobState(FACTS, step, tensors, meta)


def bits(value: Tensor) -> bytes:
    plain = value.detach().resolve_conj().resolve_neg()
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    plain = plain.view(same_size[value.element_size()]).contiguous()  # some dtypes have no kernels
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def is_same_state(one: JobState, other: JobState) -> bool:
    return (
        one.facts == other.facts
        and one.global_step == other.global_step
        and is_same(dict(one.tensors), dict(other.tensors))
        and is_same(dict(one.meta), dict(other.meta))
    )


def is_same(one: Any, other: Any) -> bool:
    """Equal in type, order and every bit, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        facts = [(t.dtype, t.shape, t.requires_grad, bits(t)) for t in (one, other)]
        return facts[0] == facts[1]
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, complex):
        return struct.pack("<dd", one.real, one.imag) == struct.pack("<dd", other.real, other.imag)
    if isinstance(one, dict):
        settings = [getattr(d, "default_factory", None) for d in (one, other)]
        return settings[0] is settings[1] and is_same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple | collections.deque):
        lengths = [(len(s), getattr(s, "maxlen", None)) for s in (one, other)]
        return lengths[0] == lengths[1] and all(map(is_same, one, other))
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and is_same(sorted(one, key=repr), sorted(other, key=repr))
    return bool(one == other)
