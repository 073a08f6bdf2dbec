"""What every bench shares: models, interleaved timing, memory, the one line of JSON. Imports nothing of EasyScale."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)


class Cnn(nn.Module):
    """A small residual-free CNN with BatchNorm and dropout; 32 images of 32x32 take about 40 ms on one core."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 16, 32, 64]
        blocks: list[nn.Module] = []
        for before, after in zip(widths, widths[1:], strict=False):
            blocks += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            blocks += [
                nn.Conv2d(after, after, 3, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        self.body = nn.Sequential(*blocks, nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Transformer(nn.Module):
    """A small causal language model with dropout."""

    def __init__(self, vocabulary: int = 256, width: int = 128, layers: int = 3, length: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embed(x) + self.position, mask=self.mask, is_causal=True))


def cnn_batch() -> tuple[Tensor, Tensor]:
    return torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))


def text_batch() -> tuple[Tensor, Tensor]:
    return torch.randint(0, 256, (8, 64)), torch.randint(0, 256, (8, 64))


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten())


class HeapWatch:
    """Highest size of all live allocations at the end of a forward, where activations and gradients meet.

    Resident memory also holds what the allocator has not given back, which differs from run to run.
    """

    def __init__(self) -> None:
        self.peak_mib = 0.0
        self._libc = ctypes.CDLL(None)
        self._libc.mallinfo2.restype = _MallInfo

    def loss_of(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = loss_of(model, batch)
        info = self._libc.mallinfo2()
        self.peak_mib = max(self.peak_mib, (info.uordblks + info.hblkhd) / 2**20)
        return loss


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of mallinfo2(3)."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def keep_heap() -> None:
    """Let glibc keep freed memory, on all sides alike.

    Otherwise it gives the top of the heap back to the system and takes it again within a step, or not, as the order of
    allocations happens to be: thousands of page faults, or none, for the very same code (docs/log.md). For times;
    memory is measured without.
    """
    libc = ctypes.CDLL(None)
    for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
        libc.mallopt(parameter, 1 << 30)


def interleave(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every run, taken in turns, so that a slow minute of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        names = list(runs) if number % 2 else list(reversed(runs))
        for name in names:
            times[name].append(runs[name]())
    return times


def ratio(times: dict[str, list[float]], ours: str, base: str) -> float:
    """Median over rounds of the ratio of neighbouring measurements."""
    return statistics.median(a / b for a, b in zip(times[ours], times[base], strict=True))


def peak_mib() -> float:
    """Highest resident memory of this process so far, in MiB."""
    # getrusage would also count what the parent held when it started this process
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def report(name: str, **results: Any) -> None:
    """Print the bench's one line."""
    versions = {
        "torch": torch.__version__,
        "easyscale": importlib.metadata.version("easyscale-torch"),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps({"bench": name, **results, "versions": versions}))
    sys.stdout.flush()
