"""What a DDP rank loads in plain PyTorch. Runs in the members of a fleet that have nothing of EasyScale."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from consistency.loaders import SEED, bits, drawn, loader_of
from consistency.oracle import seed_everything


def load(rank: int, size: int, kind: str, epochs: int, options: dict[str, Any]) -> list[tuple[float, float]]:
    """Iterate as rank ``rank`` of ``size``.

    Returns:
        For every mini-batch the hash of its values, and the sum of what the loop's body drew.
    """
    assert not [name for name in sys.modules if name.split(".")[0] == "easyscale"]
    seed_everything(SEED + rank)
    loader = rank_loader(rank, size, kind, **options)
    found = []
    for epoch in range(epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        found += [(bits(batch), sum(drawn())) for batch in loader]
    return found


def rank_loader(rank: int, size: int, kind: str, **options: Any) -> DataLoader[Any]:
    """The loader of one rank, as DDP tutorials have it."""
    base = loader_of(kind, **options)
    common = {
        "num_workers": base.num_workers,
        "collate_fn": base.collate_fn,
        "generator": base.generator,
        "persistent_workers": base.persistent_workers,
        "drop_last": base.drop_last,
    }
    if isinstance(base.dataset, IterableDataset):
        return DataLoader(Part(base.dataset, rank, size), base.batch_size, **common)
    seed = SEED if base.generator is None else base.generator.initial_seed()
    shuffled = type(base.sampler).__name__ == "RandomSampler"
    sampler: DistributedSampler[Any] = DistributedSampler(base.dataset, size, rank, shuffle=shuffled, seed=seed)
    return DataLoader(base.dataset, base.batch_size, sampler=sampler, **common)


class Part(IterableDataset[Any]):
    """Every so manieth sample of a stream, or its shard."""

    def __init__(self, dataset: Any, rank: int, size: int) -> None:
        self.dataset = dataset.shard(size, rank) if hasattr(dataset, "shard") else dataset
        self.first, self.step = (0, 1) if hasattr(dataset, "shard") else (rank, size)

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.dataset), self.first, None, self.step)
