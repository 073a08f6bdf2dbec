"""What a job's state is, tensor by tensor in a fixed order, and its hashes. Runs in the worker.

The order is that of ``prepare``: modules (parameters, then buffers), then optimizers (state by parameter, then
hyperparameters of each group).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from easyscale.train.checkpoint.sums import piece_sum, pieces


def state_of(modules: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    """Every tensor and number of a job's state by name."""
    state: dict[str, Any] = {}
    for number, module in enumerate(modules):
        state.update((f"module{number}.{name}", tensor.detach()) for name, tensor in module.named_parameters())
        state.update((f"module{number}.{name}", tensor.detach()) for name, tensor in module.named_buffers())
    for number, optimizer in enumerate(optimizers):
        saved = optimizer.state_dict()
        for index in sorted(saved["state"]):
            state.update(_flatten(f"optimizer{number}.state.{index}", saved["state"][index]))
        for index, group in enumerate(saved["param_groups"]):
            settings = {key: value for key, value in group.items() if key != "params"}
            state.update(_flatten(f"optimizer{number}.group.{index}", settings))
    return state


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _flatten(f"{prefix}.{key}", value[key])
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _flatten(f"{prefix}.{index}", item)
    else:
        yield prefix, value


def fingerprint_of(state: dict[str, Any]) -> dict[str, str]:
    """SHA-256 (hex) of every entry: dtype, shape and bytes of a tensor, ``repr`` of anything else."""
    return {name: _hash(value) for name, value in state.items()}


def quick_sum(tensor: Tensor) -> str:
    """A sum of a tensor's bytes, as fast as memory: whether it is what it was."""
    return "".join(map(piece_sum, pieces(_bytes_of(tensor)))) if tensor.numel() else ""


def _hash(value: Any) -> str:
    if not isinstance(value, Tensor):
        return hashlib.sha256(repr(value).encode()).hexdigest()
    total = hashlib.sha256(f"{value.dtype}|{tuple(value.shape)}|".encode())
    if value.numel():
        total.update(_bytes_of(value))
    return total.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
