"""The words that generators are set to for a sample or a mini-batch. Runs where mini-batches are loaded.

Each generator has words of its own, whichever of them are asked for.
"""

from __future__ import annotations

import functools

from easyscale.train.context.generators import Generator
from easyscale.train.context.philox import BLOCKS, Philox, Words
from easyscale.train.context.rng import Seeder

SAMPLE, BATCH, COLLATE = range(3)


class Source:
    """Words for the places of one loader's epoch.

    Args:
        seeder: of the job.
        key: what the source is for; other keys give unrelated words.
    """

    def __init__(self, seeder: Seeder, *key: int | str) -> None:
        self._philox = Philox(seeder.material(16, *key))

    def words(self, generator: Generator, kind: int, virtual_rank: int, first: int, count: int) -> Words:
        """``generator``'s words at ``count`` places, a row each: as many at once cost little more than one.

        Args:
            kind: what is at a place: a sample, a mini-batch loaded at once, or a call of ``collate_fn``.
            virtual_rank: whose it is.
            first: the first place's number among those of the virtual rank.
        """
        return self._philox.words((first * BLOCKS, virtual_rank, kind, generator.lane), count)


@functools.lru_cache(maxsize=8)
def source(seeder: Seeder, *key: int | str) -> Source:
    """The source for ``key``."""
    return Source(seeder, *key)
