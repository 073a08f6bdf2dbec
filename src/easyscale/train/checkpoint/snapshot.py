"""The host's copy of a job's tensors, laid out as the file that it becomes. Runs in the worker.

Training goes on as soon as the copy is made. The memory is kept for the next one.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor

from easyscale.train.checkpoint.blocks import FileLayout, bits_of


class HostBuffer:
    """Memory of this host that outlives a save."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._is_pinned = False

    def take(self, layout: FileLayout) -> memoryview:
        """Copy all blocks; the result is the file, byte by byte, and is valid until the next ``take``."""
        devices = {block.source.device for block in layout.blocks if block.source.is_cuda}
        self._make_room(layout.num_bytes, is_pinned=bool(devices))
        header = torch.frombuffer(bytearray(layout.header), dtype=torch.uint8)
        self._bytes[: len(header)].copy_(header)
        for block in layout.blocks:
            if block.num_bytes:
                source = bits_of(block.source)
                room = self._bytes[block.begin : block.begin + block.num_bytes].view(source.dtype)
                room.view(source.shape).copy_(source, non_blocking=True)
        for device in devices:
            torch.cuda.synchronize(device)
        return self._bytes.numpy().data[: layout.num_bytes]

    def _make_room(self, num_bytes: int, *, is_pinned: bool) -> None:
        kept = self._bytes.numel()
        if num_bytes <= kept <= 2 * num_bytes and self._is_pinned == is_pinned:
            return
        self._bytes = torch.empty(0, dtype=torch.uint8)  # never both at once
        self._bytes = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True) if is_pinned else _pages(num_bytes)
        self._is_pinned = is_pinned


def _pages(num_bytes: int) -> Tensor:
    """Fresh memory, which forked data workers share: else each fork would make the next copy slow and take it twice."""
    pages = mmap.mmap(-1, num_bytes)
    with suppress(AttributeError, OSError):  # a system without large pages, with which the first copy is faster
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)
