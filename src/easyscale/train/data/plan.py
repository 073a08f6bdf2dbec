"""Which samples make up which mini-batch of which virtual rank. Runs in the worker; knows nothing of workers.

The order is that of PyTorch's ``DistributedSampler`` with ``num_replicas=num_ests`` and ``rank=virtual_rank``, padding
included. A sampler of the user's own is drawn once for an epoch and dealt out the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from easyscale.core.errors import RefusedError

Indices = Sequence[Any]


@dataclass(frozen=True, slots=True)
class LoaderOrder:
    """How a loader's samples are ordered and cut, read off the user's ``DataLoader``.

    Attributes:
        num_ests: virtual ranks that share the samples.
        seed: root of the permutation.
        is_shuffled: whether the samples are permuted, each epoch anew.
        drop_uneven: drop the samples that do not divide among virtual ranks, instead of repeating the first ones.
        batch_size: samples of a mini-batch of one EST.
        drop_last: whether a mini-batch that ends short is dropped.
        sampler: a sampler of the user's own, or None: shuffled or sequential.
        batch_sampler: a batch sampler of the user's own, whose batches are dealt out whole.
    """

    num_ests: int
    num_samples: int
    seed: int
    is_shuffled: bool
    drop_uneven: bool
    batch_size: int
    drop_last: bool
    sampler: Any = None
    batch_sampler: Any = None

    @classmethod
    def of(cls, loader: DataLoader[Any], num_ests: int, seed: int) -> LoaderOrder:
        """Read the order off a ``DataLoader``."""
        batch_sampler = loader.batch_sampler
        samples = len(loader.dataset)  # type: ignore[arg-type]
        if batch_sampler is None:
            raise RefusedError(
                "the loader has batch_size=None (no automatic batching), which cannot be dealt out to ESTs yet: "
                "give it a batch_size or a batch_sampler"
            )
        if type(batch_sampler) is not BatchSampler:
            return cls(num_ests, samples, seed, False, False, 1, False, batch_sampler=batch_sampler)
        sampler: Any = batch_sampler.sampler
        sizes = (batch_sampler.batch_size, batch_sampler.drop_last)
        if isinstance(sampler, DistributedSampler):
            if type(sampler) is not DistributedSampler:
                raise RefusedError(
                    f"the loader's sampler {type(sampler).__name__} is a DistributedSampler with an order of its "
                    "own, of which it gives one rank's part only: give a plain torch.utils.data.Sampler over all "
                    "samples, which is dealt out to virtual ranks"
                )
            return cls(num_ests, samples, sampler.seed, sampler.shuffle, sampler.drop_last, *sizes)
        if type(sampler) is SequentialSampler and len(sampler) == samples:
            return cls(num_ests, samples, seed, False, False, *sizes)
        if type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == samples:
            own = sampler.generator or loader.generator
            return cls(num_ests, samples, seed if own is None else own.initial_seed(), True, False, *sizes)
        return cls(num_ests, samples, seed, False, False, *sizes, sampler=sampler)

    def epoch(self, epoch: int, seed_draws: Callable[[int], None]) -> EpochPlan:
        """The mini-batches of one epoch.

        Args:
            epoch: number that the permutation depends on, as in ``DistributedSampler.set_epoch``.
            seed_draws: sets the process's generators for the user's own sampler, the same on every worker.
        """
        order = self._order(epoch, seed_draws)
        batch_size = None if self.batch_sampler is not None else self.batch_size
        return EpochPlan(self._even(order), len(order), self.num_ests, batch_size, self.drop_last)

    def _order(self, epoch: int, seed_draws: Callable[[int], None]) -> Indices:
        if self.batch_sampler is not None:
            seed_draws(epoch)
            return [list(batch) for batch in self.batch_sampler]
        if self.sampler is not None:
            seed_draws(epoch)
            return list(self.sampler)
        if not self.is_shuffled:
            return range(self.num_samples)
        generator = torch.Generator()
        generator.manual_seed(self.seed + epoch)
        return torch.randperm(self.num_samples, generator=generator).tolist()

    def num_batches(self) -> int:
        """Mini-batches of each EST in an epoch."""
        if self.batch_sampler is not None:
            return -(-len(self.batch_sampler) // self.num_ests)
        samples = self.num_samples if self.sampler is None else len(self.sampler)
        share = samples // self.num_ests if self.drop_uneven else -(-samples // self.num_ests)
        return share // self.batch_size if self.drop_last else -(-share // self.batch_size)

    def _even(self, order: Indices) -> Indices:
        if not self.drop_uneven:
            return _pad(order, self.num_ests)
        # as DistributedSampler: only when it does not divide is anything dropped
        return order[: len(order) // self.num_ests * self.num_ests]


def _pad(order: Indices, multiple: int) -> Indices:
    """Repeat from the start until the length is a multiple, as ``DistributedSampler`` does."""
    missing = -len(order) % multiple
    if missing == 0 or not order:
        return order
    padded = list(order)
    return padded + (padded * (-(-missing // len(padded))))[:missing]


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The mini-batches of one epoch: virtual rank r has ``order[r::num_ests]``, cut into batches.

    Attributes:
        order: samples (or whole batches, if ``batch_size`` is None), padded to a multiple of ``num_ests``.
        num_unpadded: how many of ``order`` are no repetition.
    """

    order: Indices
    num_unpadded: int
    num_ests: int
    batch_size: int | None
    drop_last: bool

    def __len__(self) -> int:
        share = len(self.order) // self.num_ests
        if self.batch_size is None:
            return share
        return share // self.batch_size if self.drop_last else -(-share // self.batch_size)

    def batch(self, virtual_rank: int, index: int) -> list[Any]:
        """Samples of mini-batch ``index`` of ``virtual_rank``."""
        return self._cut(virtual_rank, index, len(self.order))

    def unpadded_batch(self, virtual_rank: int, index: int) -> list[Any]:
        """The same without repeated samples, possibly empty: evaluation counts each sample once."""
        return self._cut(virtual_rank, index, min(self.num_unpadded, len(self.order)))

    def _cut(self, virtual_rank: int, index: int, limit: int) -> list[Any]:
        if self.batch_size is None:
            position = virtual_rank + index * self.num_ests
            return list(self.order[position]) if position < limit else []
        first = virtual_rank + index * self.batch_size * self.num_ests
        return list(self.order[first : min(first + self.batch_size * self.num_ests, limit) : self.num_ests])
