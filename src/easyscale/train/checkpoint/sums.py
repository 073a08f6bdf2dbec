"""Sums that tell whether bytes are still those that were written. Runs in the worker, in several threads.

Two kinds, for two questions. SHA-256 of every tensor says what the state is; checking it when reading would take much
longer than reading. So what is read is checked by sums that are as fast as memory: a piece of the file is a table of
64-bit words, its rows and its columns are added up, and those sums are hashed. A change is missed only if it leaves all
sums of rows and all sums of columns as they were. So any change within up to three words is noticed, and so is a part
that is missing, zero or in another place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

PIECE_BYTES = 4 << 20
_ROW_WORDS = 512
_ROW_BYTES = 8 * _ROW_WORDS
_HEX_DIGITS = 32
_MOST_THREADS = 8


def sums_of(data: memoryview) -> list[str]:
    """A sum for each piece of ``PIECE_BYTES`` of ``data``."""
    with ThreadPoolExecutor(available_threads()) as pool:
        return list(pool.map(piece_sum, pieces(data)))


def pieces(data: memoryview) -> Iterator[memoryview]:
    """``data`` in pieces of ``PIECE_BYTES``; the last one may be shorter."""
    return (data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))


def piece_sum(piece: memoryview) -> str:
    """The sum of one piece, in hexadecimal."""
    whole = len(piece) - len(piece) % _ROW_BYTES
    total = hashlib.sha256()
    if whole:
        table = np.frombuffer(piece[:whole], "<u8").reshape(-1, _ROW_WORDS)
        for axis in (1, 0):
            total.update(np.add.reduce(table, axis=axis).astype("<u8", copy=False).data)
    total.update(piece[whole:])
    return total.hexdigest()[:_HEX_DIGITS]


def available_threads() -> int:
    """How many threads this process can keep busy, within reason."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_THREADS)
