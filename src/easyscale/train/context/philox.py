"""Words that generators are set to, as a function of a key and a place.

Philox4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) enciphers a counter with a key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

WORDS = 624
"""Of 32 bits: the state of a Mersenne Twister."""

Words = NDArray[np.uint32]

_NUMBERS = WORDS // 2  # of 64 bits
BLOCKS = _NUMBERS // 4
"""Counters that a generator's words take: each gives four numbers of 64 bits."""


class Philox:
    """Words under one key.

    Args:
        key: 16 bytes; other keys give unrelated words.
    """

    def __init__(self, key: bytes) -> None:
        self._philox = np.random.Philox(key=0)
        self._state: Any = self._philox.state
        self._state["state"]["key"][:] = np.frombuffer(key, dtype="<u8")
        self._counter = self._state["state"]["counter"]

    def words(self, place: tuple[int, int, int, int], count: int) -> Words:
        """Words for ``count`` generators from ``place`` on, a row each: many at once cost little more than one.

        The next row is that of a place whose first number is greater by ``BLOCKS``.
        """
        self._counter[:] = place
        self._philox.state = self._state
        return self._philox.random_raw(count * _NUMBERS).view(np.uint32).reshape(count, WORDS)
