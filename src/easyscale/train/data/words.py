"""The words that generators are set to, as a function of a place in the job. Runs where mini-batches are loaded.

Philox4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) enciphers a counter with a key: here the
place with (seed, loader, epoch). Each generator has words of its own, whichever of them are asked for.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from easyscale.train.context.rng import Seeder
from easyscale.train.data.generators import WORDS, Generator, Words

SAMPLE, BATCH, COLLATE = range(3)
_NUMBERS = WORDS // 2  # of 64 bits
_BLOCKS = _NUMBERS // 4  # of four such numbers, which a counter gives


class Source:
    """Words for the places of one loader's epoch.

    Args:
        seeder: of the job.
        key: what the source is for; other keys give unrelated words.
    """

    def __init__(self, seeder: Seeder, *key: int | str) -> None:
        self._philox = np.random.Philox(0)
        self._state: Any = self._philox.state
        self._state["state"]["key"][:] = np.frombuffer(seeder.material(16, *key), dtype="<u8")
        self._counter = self._state["state"]["counter"]

    def words(self, generator: Generator, kind: int, virtual_rank: int, first: int, count: int) -> Words:
        """``generator``'s words at ``count`` places, a row each: as many at once cost little more than one.

        Args:
            kind: what is at a place: a sample, a mini-batch loaded at once, or a call of ``collate_fn``.
            virtual_rank: whose it is.
            first: the first place's number among those of the virtual rank.
        """
        self._counter[:] = (first * _BLOCKS, virtual_rank, kind, generator.lane)
        self._philox.state = self._state
        return self._philox.random_raw(count * _NUMBERS).view(np.uint32).reshape(count, WORDS)


@functools.lru_cache(maxsize=8)
def source(seeder: Seeder, *key: int | str) -> Source:
    """The source for ``key``."""
    return Source(seeder, *key)
