"""Which samples make up which mini-batch of which virtual rank. Runs in the worker; knows nothing of workers.

The order is that of PyTorch's ``DistributedSampler`` with ``num_replicas=num_ests`` and ``rank=virtual_rank``, padding
included. A sampler of the user's own is drawn once for an epoch and dealt out the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from easyscale.core.errors import RefusedError, UsageError
from easyscale.train.data.permutation import PermutationSampler

Order = Any
"""Samples, or whole mini-batches, with ``len`` and slices: a range, a list, an array or a ``Permutation``."""


@dataclass(frozen=True, slots=True)
class LoaderOrder:
    """How a loader's samples are ordered and cut, read off the user's ``DataLoader``.

    Attributes:
        num_ests: virtual ranks that share the samples.
        seed: root of the permutation.
        is_shuffled: whether the samples are permuted, each epoch anew.
        drop_uneven: drop the samples that do not divide among virtual ranks, instead of repeating the first ones.
        batch_size: samples of a mini-batch of one EST; None where the sampler gives whole mini-batches.
        drop_last: whether a mini-batch that ends short is dropped.
        sampler: a sampler of the user's own, or None: shuffled or sequential.
        is_batched: whether a mini-batch is a list of samples; else (``batch_size=None``) it is a single one.
        is_stream: whether the dataset is an iterable one, which has an order of its own. ``num_samples`` is -1 where
            it does not tell.
        data_length: length of the dataset, which a ``DistributedSampler`` may have been given another one for.
    """

    num_ests: int
    num_samples: int
    seed: int
    is_shuffled: bool = False
    drop_uneven: bool = False
    batch_size: int | None = 1
    drop_last: bool = False
    sampler: Any = None
    is_batched: bool = True
    is_stream: bool = False
    data_length: int = -1

    @classmethod
    def of(cls, loader: DataLoader[Any], num_ests: int, seed: int) -> LoaderOrder:
        """Read the order off a ``DataLoader``."""
        if isinstance(loader.dataset, IterableDataset):
            samples = len(loader.dataset) if isinstance(loader.dataset, Sized) else -1
            is_batched = loader.batch_size is not None
            sizes: dict[str, Any] = {"batch_size": loader.batch_size or 1, "is_batched": is_batched}
            return cls(num_ests, samples, seed, drop_last=loader.drop_last, is_stream=True, **sizes)
        batch_sampler: Any = loader.batch_sampler
        _check_ends(loader.sampler if batch_sampler is None else batch_sampler)
        # without a length it has a sampler of the user's own, which knows
        data: Any = loader.dataset
        samples = len(data) if isinstance(data, Sized) else -1
        if batch_sampler is None:
            sizes = {"batch_size": 1, "is_batched": False, "data_length": samples}
        elif not _is_torchs(batch_sampler, BatchSampler):
            return cls(num_ests, samples, seed, batch_size=None, sampler=batch_sampler, data_length=samples)
        else:
            sizes = {"batch_size": batch_sampler.batch_size, "drop_last": batch_sampler.drop_last}
            sizes["data_length"] = samples
        sampler: Any = loader.sampler if batch_sampler is None else batch_sampler.sampler
        if isinstance(sampler, DistributedSampler):
            if type(sampler) is not DistributedSampler:
                raise RefusedError(
                    f"the loader's sampler {type(sampler).__name__} is a DistributedSampler with an order of its "
                    "own, of which it gives one rank's part only: give a plain torch.utils.data.Sampler over all "
                    "samples, which is dealt out to virtual ranks"
                )
            length = len(sampler.dataset)  # type: ignore[arg-type]
            return cls(num_ests, length, sampler.seed, sampler.shuffle, sampler.drop_last, **sizes)
        if _is_torchs(sampler, SequentialSampler) and len(sampler) == samples:
            return cls(num_ests, samples, seed, **sizes)
        if _is_torchs(sampler, RandomSampler) and not sampler.replacement and len(sampler) == samples:
            # torchdata's always has a generator, with a seed drawn at random where the user gave none
            own = (sampler.generator if type(sampler) is RandomSampler else None) or loader.generator
            return cls(num_ests, samples, seed if own is None else own.initial_seed(), is_shuffled=True, **sizes)
        own_seed = sampler.seed if type(sampler) is PermutationSampler else seed
        return cls(num_ests, samples, own_seed, sampler=sampler, **sizes)

    def facts(self) -> dict[str, Any]:
        """What mini-batches depend on, in words; two loaders with the same facts have the same order."""
        return {
            "num_ests": self.num_ests,
            "length": self.num_samples,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "shuffle": self.is_shuffled,
            "drop_last": [self.drop_last, self.drop_uneven],
            "sampler": type(self.sampler).__name__,
        }

    def check_unchanged(self, dataset: Any) -> None:
        """An iteration begins: the dataset must be as long as it was.

        Raises:
            UsageError: it is not.
        """
        if not self.is_stream and isinstance(dataset, Sized) and len(dataset) != self.data_length:
            raise UsageError(
                f"the dataset {type(dataset).__name__} had {self.data_length} samples when its loader was prepared and "
                f"has {len(dataset)} now: prepare a new loader for it"
            )

    @property
    def num_samples_of_rank(self) -> int:
        """How many samples a DDP rank's sampler gives in an epoch."""
        return self._even(self.num_samples if self.sampler is None else len(self.sampler)) // self.num_ests

    @property
    def is_known(self) -> bool:
        """Whether any epoch's order can be told without asking an object of the user's."""
        return self.sampler is None or type(self.sampler) is PermutationSampler

    def epoch(self, epoch: int, seed_draws: Callable[[int], None]) -> EpochPlan:
        """The mini-batches of one epoch.

        Args:
            epoch: number that the permutation depends on, as in ``DistributedSampler.set_epoch``.
            seed_draws: sets the process's generators for the user's own sampler, the same on every worker.
        """
        order = self._order(epoch, seed_draws)
        return EpochPlan(order, self._even(len(order)), self.num_ests, self.batch_size, self.drop_last)

    def _order(self, epoch: int, seed_draws: Callable[[int], None]) -> Order:
        if type(self.sampler) is PermutationSampler:
            return self.sampler.permutation(epoch)
        if self.sampler is not None:
            seed_draws(epoch)
            return [list(batch) for batch in self.sampler] if self.batch_size is None else list(self.sampler)
        if not self.is_shuffled:
            return range(self.num_samples)
        generator = torch.Generator()
        generator.manual_seed(self.seed + epoch)
        return torch.randperm(self.num_samples, generator=generator).numpy()  # of which slices are cheaper

    def num_batches(self) -> int | None:
        """Mini-batches of each EST in an epoch; None where a stream does not tell."""
        if self.is_stream:
            share = self.num_samples // self.num_ests  # of the virtual rank that has least
            return None if share < 0 else _batches_in(share, self.batch_size, drop_last=self.drop_last)
        places = self._even(self.num_samples if self.sampler is None else len(self.sampler))
        return _batches_in(places // self.num_ests, self.batch_size, drop_last=self.drop_last)

    def _even(self, samples: int) -> int:
        """How many places there are for this many samples: a multiple of ESTs."""
        if self.drop_uneven:
            return samples // self.num_ests * self.num_ests
        return -(-samples // self.num_ests) * self.num_ests


def _check_ends(sampler: Any) -> None:
    if not callable(getattr(sampler, "__len__", None)):
        raise RefusedError(
            f"the sampler {type(sampler).__name__} has no length, so it may never end, but an epoch's samples are "
            "dealt out to ESTs from its start: give it __len__ and a fixed number of samples in an epoch"
        )


def _is_torchs(obj: Any, kind: type[Any]) -> bool:
    """Whether it is PyTorch's class itself, or torchdata's resumable form of it, and no subclass of the user's."""
    theirs = type(obj)  # torchdata's random sampler has PyTorch's name, but not its class
    return theirs is kind or (theirs.__module__.startswith("torchdata.") and theirs.__name__ == kind.__name__)


def _batches_in(share: int, batch_size: int | None, *, drop_last: bool) -> int:
    if batch_size is None:
        return share
    return share // batch_size if drop_last else -(-share // batch_size)


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The mini-batches of one epoch: virtual rank r has places ``r, r + num_ests, ...``, cut into batches.

    Attributes:
        order: samples (or whole batches, if ``batch_size`` is None) by place.
        num_places: a multiple of ``num_ests``; past the end of ``order`` it begins again, as ``DistributedSampler``
            repeats samples.
    """

    order: Order
    num_places: int
    num_ests: int
    batch_size: int | None
    drop_last: bool

    def __len__(self) -> int:
        return _batches_in(self.num_places // self.num_ests, self.batch_size, drop_last=self.drop_last)

    def digest(self) -> str:
        """A hash of the order, to see whether a sampler gives it again."""
        return hashlib.sha256(repr(_listed(self.order)).encode()).hexdigest()

    def first_place(self, virtual_rank: int, index: int) -> int:
        """Place of the first sample of a mini-batch; the others follow at a distance of ``num_ests``."""
        return virtual_rank + index * (self.batch_size or 1) * self.num_ests

    def batch(self, virtual_rank: int, index: int) -> list[Any]:
        """Samples of mini-batch ``index`` of ``virtual_rank``."""
        return self._cut(virtual_rank, index, self.num_places)

    def unpadded_batch(self, virtual_rank: int, index: int) -> list[Any]:
        """The same without repeated samples, possibly empty: evaluation counts each sample once."""
        return self._cut(virtual_rank, index, min(self.num_places, len(self.order)))

    def _cut(self, virtual_rank: int, index: int, limit: int) -> list[Any]:
        first, samples = self.first_place(virtual_rank, index), len(self.order)
        if self.batch_size is None:
            return list(self.order[first % samples]) if first < limit else []
        places = range(first, min(first + self.batch_size * self.num_ests, limit), self.num_ests)
        if not places or places[-1] < samples:
            return _listed(self.order[places.start : places.stop : places.step])
        return [_listed(self.order[at : at + 1])[0] for at in (place % samples for place in places)]


def _listed(samples: Any) -> list[Any]:
    return samples.tolist() if isinstance(samples, np.ndarray) else list(samples)
