"""Loaders of every kind over tiny data that draw random numbers wherever they can, in plain torch.

Nothing here knows of EasyScale or of DDP. Runs in the members of the fleet and in tests. ``loading`` (EasyScale) and
``rank_loading`` (plain PyTorch) iterate over these.
"""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

SEED = 11


def drawn() -> list[float]:
    """Numbers of all three generators; a normal number of ``random`` and of ``numpy`` leaves another one over."""
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.random()),
        float(np.random.standard_normal()),
        torch.rand(()).item(),
    ]


def sample(index: int) -> Tensor:
    return torch.tensor([float(index), *drawn()], dtype=torch.float64)


def collate(samples: Sequence[Tensor]) -> dict[str, Tensor]:
    """Draws as well."""
    return {"samples": torch.stack(list(samples)), "batch": torch.tensor(drawn(), dtype=torch.float64)}


class Noisy(Dataset[Tensor]):
    """Sample i is i, and numbers drawn for it."""

    def __init__(self, length: int = 23) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return sample(index)


class InBulk(Noisy):
    """Loads the samples of a mini-batch together."""

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        shift = torch.rand((), dtype=torch.float64)
        return [sample(index) + shift for index in indices]


class Stream(IterableDataset[Tensor]):
    """The numbers from 0, and numbers drawn for them; data workers share them as PyTorch's documentation has it.

    Its position is kept by its iterator.
    """

    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        return Counting(0 if info is None else info.id, 1 if info is None else info.num_workers, self.length)


class Counting(Iterator[Tensor]):
    def __init__(self, first: int, step: int, length: int) -> None:
        self.next, self.step, self.length = first, step, length

    def __next__(self) -> Tensor:
        if self.next >= self.length:
            raise StopIteration
        self.next += self.step
        return sample(self.next - self.step)

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class Shards(IterableDataset[Tensor]):
    """A stream that deals itself out, with as many samples in a shard as its ``lengths`` say, in turns.

    Its position is kept by the dataset.
    """

    def __init__(self, lengths: Sequence[int] = (8, 8, 8, 8)) -> None:
        self.lengths = list(lengths)
        self.shards = list(range(len(lengths)))
        self.next = 0

    def shard(self, num_shards: int, index: int) -> Shards:
        mine = Shards(self.lengths)
        mine.shards = self.shards[index::num_shards]
        return mine

    def __iter__(self) -> Iterator[Tensor]:
        own = [100 * shard + index for shard in self.shards for index in range(self.lengths[shard])]
        while self.next < len(own):
            self.next += 1
            yield sample(own[self.next - 1])
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class InPairs(Sampler[list[int]]):
    """Gives whole mini-batches, which overlap and grow."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.length).tolist()
        return iter([order[at : at + 1 + at % 3] for at in range(self.length)])


def _weighted(generator: torch.Generator | None = None) -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0 + index % 5 for index in range(23)], 23, generator=generator)


def _batches() -> BatchSampler:
    return BatchSampler(SubsetRandomSampler(range(3, 20)), 2, drop_last=False)


LOADERS: dict[str, Callable[..., DataLoader[Any]]] = {
    "shuffled": lambda **o: DataLoader(Noisy(), 3, shuffle=True, collate_fn=collate, **o),
    "in_order": lambda **o: DataLoader(Noisy(), 2, collate_fn=collate, **o),
    "drop_last": lambda **o: DataLoader(Noisy(), 3, shuffle=True, drop_last=True, collate_fn=collate, **o),
    "single": lambda **o: DataLoader(Noisy(), None, shuffle=True, **o),
    "batch_sampler": lambda **o: DataLoader(Noisy(), batch_sampler=_batches(), collate_fn=collate, **o),
    "own_batch_sampler": lambda **o: DataLoader(Noisy(), batch_sampler=InPairs(11), collate_fn=collate, **o),
    "weighted": lambda **o: DataLoader(Noisy(), 3, sampler=_weighted(), collate_fn=collate, **o),
    "weighted_generator": lambda **o: DataLoader(
        Noisy(), 3, sampler=_weighted(torch.Generator().manual_seed(4)), collate_fn=collate, **o
    ),
    "subset": lambda **o: DataLoader(Subset(Noisy(50), range(9, 31)), 3, shuffle=True, collate_fn=collate, **o),
    "bulk": lambda **o: DataLoader(InBulk(), 3, shuffle=True, collate_fn=collate, **o),
    "subset_of_bulk": lambda **o: DataLoader(
        Subset(InBulk(50), range(9, 31)), 3, shuffle=True, collate_fn=collate, **o
    ),
    "stream": lambda **o: DataLoader(Stream(), 2, collate_fn=collate, **o),
    "uneven_stream": lambda **o: DataLoader(Stream(27), 2, collate_fn=collate, **o),
    "uneven_stream_drop_last": lambda **o: DataLoader(Stream(27), 2, drop_last=True, collate_fn=collate, **o),
    "single_stream": lambda **o: DataLoader(Stream(), None, **o),
    "shards": lambda **o: DataLoader(Shards(), 2, collate_fn=collate, **o),
    "uneven_shards": lambda **o: DataLoader(Shards((8, 5, 9, 3, 2, 6)), 2, collate_fn=collate, **o),
}


def loader_of(
    kind: str, num_workers: int = 0, *, persistent: bool = False, generator_seed: int | None = None, **more: Any
) -> DataLoader[Any]:
    """A loader as a script has it that knows of one process only."""
    generator = None if generator_seed is None else torch.Generator().manual_seed(generator_seed)
    return LOADERS[kind](num_workers=num_workers, persistent_workers=persistent, generator=generator, **more)


def bits(batch: Any) -> float:
    """A hash of every bit of a mini-batch, short enough to be a float."""
    return float(int.from_bytes(hashlib.sha256(pickle.dumps(_plain(batch))).digest()[:6], "little"))


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return repr(value)
