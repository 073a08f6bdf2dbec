"""Who loads the mini-batches of one loader: pools, or the loaders of DDP ranks. Runs in the worker."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils.data import DataLoader

from easyscale.train.data.pool import Pool, Replacements
from easyscale.train.data.pulling import PulledDataset
from easyscale.train.data.rank_streams import RankLoader, generator_of_rank
from easyscale.train.data.seeding import SeededDataset
from easyscale.train.data.sending import sendable


class Supply:
    """The data workers of one loader.

    Args:
        base: the user's loader.
        dataset: takes keys and gives whole mini-batches.
        seed: of the data workers' own generators.
        replacements: how many data workers that ended may be replaced.
        is_batched: whether a mini-batch is a list of samples.
        records: whether the job may move, so that what is needed to go on elsewhere is kept.
    """

    def __init__(
        self,
        base: DataLoader[Any],
        dataset: SeededDataset | PulledDataset,
        seed: int,
        replacements: int,
        *,
        is_batched: bool,
        records: bool,
    ) -> None:
        self._base = base
        self._dataset = dataset
        self._seed = seed
        self._replacements = Replacements(replacements)
        self._is_batched = is_batched
        self._records = records
        self._idle: dict[str, Pool] = {}
        self._busy: list[Pool] = []
        self._loader_by_rank: dict[int, RankLoader] = {}
        self._generator_by_rank: dict[int, torch.Generator | None] = {}

    def take_pool(self, use: str) -> Pool:
        """A pool that nobody uses: the one of the last iteration, or a new one."""
        pool = self._idle.pop(use, None)
        if pool is None:
            # a copy: where there are no data workers, loops over one stream at once must not read from one another's
            pool = Pool(self._base, copy.copy(self._dataset), sendable, self._seed, self._replacements)
        self._busy.append(pool)
        return pool

    def give_back(self, use: str, pool: Pool) -> None:
        """The iteration over ``pool`` is over."""
        if pool not in self._busy:  # ended by ``close``
            return
        self._busy.remove(pool)
        pool.end_epoch()
        if use in self._idle:
            pool.end()
        else:
            self._idle[use] = pool

    def load_here(self, key: list[Any]) -> Any:
        """A mini-batch by its key, loaded in this process."""
        return self._dataset.__getitems__(key)

    def of_rank(self, virtual_rank: int) -> RankLoader:
        """The loader of a DDP rank."""
        if virtual_rank not in self._loader_by_rank:
            self._loader_by_rank[virtual_rank] = RankLoader(
                self._base, is_batched=self._is_batched, records=self._records
            )
        return self._loader_by_rank[virtual_rank]

    def generator_of(self, virtual_rank: int) -> torch.Generator | None:
        """The loader's generator as a DDP rank has it: each goes on by itself from epoch to epoch."""
        if virtual_rank not in self._generator_by_rank:
            self._generator_by_rank[virtual_rank] = generator_of_rank(self._base)
        return self._generator_by_rank[virtual_rank]

    def close(self) -> None:
        """End all data workers, also those in use."""
        for pool in [*self._idle.values(), *self._busy]:
            pool.end()
        for loader in self._loader_by_rank.values():
            loader.end()
        self._idle.clear()
        self._busy.clear()
        self._loader_by_rank.clear()
