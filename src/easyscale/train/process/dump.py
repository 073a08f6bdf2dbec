"""Writes a whole training state to one file, every bit of it. Runs in the worker process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def write_state(state: Mapping[str, Any], path: Path) -> None:
    """Write tensors and numbers as safetensors; the file appears whole or not at all."""
    from safetensors.torch import save_file

    partial = path.with_name(path.name + ".partial")
    save_file({name: _storable(value) for name, value in state.items()}, partial)
    partial.replace(path)


def _storable(value: Any) -> torch.Tensor:
    """A copy of its own (tied weights share memory, which the format refuses) in a layout that the format has.

    Python floats become float64 (the default, float32, would hide their last bits), and what is neither a tensor
    nor a number its spelling in bytes.
    """
    if isinstance(value, float):
        tensor = torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, torch.Tensor | int):
        tensor = torch.as_tensor(value)
    else:
        tensor = torch.tensor(list(repr(value).encode()), dtype=torch.uint8)
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.detach().to("cpu", copy=True).contiguous()
