"""Sums and hashes of a file, made while it is written. Runs in the worker, in threads of its own."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Mapping

from easyscale.train.checkpoint.manifest import StoredBlock
from easyscale.train.checkpoint.sums import PIECE_BYTES, piece_sum


class Hashes:
    """Starts its threads at once, in the caller's: a process that is about to end starts no more of them.

    Args:
        data: the file.
        span_by_block: first byte and length of each block.
        threads: how many hash; more are sooner done and leave less to others meanwhile.
    """

    def __init__(self, data: memoryview, span_by_block: Mapping[str, tuple[int, int]], threads: int) -> None:
        self._data = data
        self._span_by_block = span_by_block
        self._sha256_by_block: dict[str, str] = {}
        self._sum_by_piece: dict[int, str] = {}
        self._tasks: queue.SimpleQueue[str | int] = queue.SimpleQueue()
        for name in sorted(span_by_block, key=lambda name: -span_by_block[name][1]):
            self._tasks.put(name)
        for begin in self._pieces():
            self._tasks.put(begin)
        self._threads = [
            threading.Thread(target=self._run, name=f"easyscale-checkpoint-hash-{number}") for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def blocks(self) -> dict[str, StoredBlock]:
        """Where each block is, and its SHA-256."""
        self.join()
        return {name: StoredBlock(*span, self._sha256_by_block[name]) for name, span in self._span_by_block.items()}

    def sums(self) -> list[str]:
        """The sum of each piece of the file."""
        self.join()
        return [self._sum_by_piece[begin] for begin in self._pieces()]

    def join(self) -> None:
        """Wait until nobody reads the data any more."""
        for thread in self._threads:
            thread.join()

    def _pieces(self) -> range:
        return range(0, len(self._data), PIECE_BYTES)

    def _run(self) -> None:
        while True:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                return
            if isinstance(task, str):
                begin, size = self._span_by_block[task]
                self._sha256_by_block[task] = hashlib.sha256(self._data[begin : begin + size]).hexdigest()
            else:
                self._sum_by_piece[task] = piece_sum(self._data[task : task + PIECE_BYTES])
