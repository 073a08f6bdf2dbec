"""Process-wide settings that decide bits: set when a session opens, put back when it closes. Runs in the worker."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

_deterministic: Any = torch.utils.deterministic  # its attributes are set up by hand, unknown to type checkers


@dataclass(frozen=True, slots=True)
class Settings:
    """Number of intra-op threads, deterministic algorithms, no autotuning (paper, section 3.3: D0)."""

    threads: int
    is_deterministic: bool
    warns_only: bool
    fills_memory: bool
    cudnn_benchmark: bool
    cudnn_deterministic: bool

    @classmethod
    def for_job(cls, threads: int) -> Settings:
        """What a job needs; uninitialised memory is not filled, which takes time and changes no result."""
        return cls(threads, True, False, False, False, True)

    @classmethod
    def current(cls) -> Settings:
        """What is in force now."""
        return cls(
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            _deterministic.fill_uninitialized_memory,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
        )

    def apply(self) -> None:
        """Put these settings in force, for the thread that calls."""
        torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(self.is_deterministic, warn_only=self.warns_only)
        _deterministic.fill_uninitialized_memory = self.fills_memory
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        torch.backends.cudnn.deterministic = self.cudnn_deterministic


def allow_deterministic_cublas() -> None:
    """cuBLAS has deterministic kernels only with a fixed workspace, which must be said before CUDA starts."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
