"""What every bench shares: models, interleaved timing, memory, the one line of JSON. Imports nothing of EasyScale."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import sys
from collections.abc import Callable
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


def keep_heap() -> None:
    """Let glibc keep freed memory, on all sides alike.

    Otherwise it gives the top of the heap back to the system and takes it again within a step, or not, as the order of
    allocations happens to be: thousands of page faults, or none, for the very same code (docs/log.md).
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
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


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
