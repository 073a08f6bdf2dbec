"""The elastic form of a user's ``DataLoader``: one stream of mini-batches for all ESTs of a worker.

Runs in the worker. With ``rng="stepwise"`` one ``DataLoader`` (so one pool of data workers) serves all local ESTs, in
the order of their turns, and the generators are set for every mini-batch from (seed, loader, epoch, step, virtual
rank): neither the number of data workers nor the placement shows in the values. With ``rng="ddp"`` each EST has the
very ``DataLoader`` that a DDP rank would have, driven in the EST's own random stream.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from easyscale.core.errors import RefusedError, UsageError
from easyscale.train.context.rng import RngPolicy, Seeder, capture, restore
from easyscale.train.data.plan import EpochPlan, LoaderOrder

_CPU = torch.device("cpu")


class LoaderHost(Protocol):
    """What a loader asks of the session that prepared it, which runs the loops."""

    @property
    def epoch_in_use(self) -> int | None:
        """The epoch of ``session.epochs``, or None where the script does not use it."""

    def iterate(self, loader: ElasticLoader) -> Iterator[Any]:
        """The drop-in form: mini-batches of the local ESTs, one after another."""


class ElasticLoader:
    """What ``prepare`` returns for a ``DataLoader``; its attributes are those of the loader it was made from.

    ``len`` is the number of global steps in an epoch, as the length of a DDP rank's loader.
    """

    def __init__(self, base: DataLoader[Any], order: LoaderOrder, number: int, seed: int, host: LoaderHost) -> None:
        self.base = base
        self.order = order
        self.number = number
        self.seed = seed
        self._host = host
        self._own_epoch: int | None = None
        self._sampler_epoch = getattr(base.sampler, "epoch", None)
        self._iterations = 0
        self._loader_by_rank: dict[int, tuple[_Batches, DataLoader[Any]]] = {}

    def __len__(self) -> int:
        return self.order.num_batches()

    def __iter__(self) -> Iterator[Any]:
        return self._host.iterate(self)

    def __getattr__(self, name: str) -> Any:
        if name == "base":  # not set yet: unpickling or copying
            raise AttributeError(name)
        return getattr(self.base, name)

    @property
    def sampler(self) -> ElasticLoader:
        """Takes ``set_epoch``, as a ``DistributedSampler`` does."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of the next iterations, for scripts that do not use ``session.epochs``."""
        self._own_epoch = epoch

    def of_rank(self, virtual_rank: int, batches: list[Any]) -> DataLoader[Any]:
        """The loader of a DDP rank, made once, so that persistent data workers go on from epoch to epoch as there."""
        if virtual_rank not in self._loader_by_rank:
            generator = self.base.generator
            if generator is not None:  # every DDP rank has one of its own
                generator = torch.Generator()
                generator.set_state(self.base.generator.get_state())
            source, is_persistent = _Batches(()), self.base.persistent_workers
            loader = _rebuild(self.base, self.base.dataset, source, generator, is_persistent=is_persistent)
            self._loader_by_rank[virtual_rank] = (source, loader)
        source, loader = self._loader_by_rank[virtual_rank]
        source.batches = batches
        return loader

    def close(self) -> None:
        """End data workers that would go on to the next epoch."""
        self._loader_by_rank.clear()

    def next_epoch(self) -> int:
        """The epoch number of the iteration that starts now: the one set, else the session's, else a count."""
        count = self._iterations
        self._iterations += 1
        theirs = getattr(self.base.sampler, "epoch", None)
        if theirs != self._sampler_epoch:  # the script calls set_epoch of a DistributedSampler of its own
            self._own_epoch = self._sampler_epoch = theirs
        if self._own_epoch is not None:
            return self._own_epoch
        return count if self._host.epoch_in_use is None else self._host.epoch_in_use

    def plan(self, epoch: int) -> EpochPlan:
        """The mini-batches of ``epoch``; the process's generators are left as they were."""
        before = capture(_CPU)
        try:
            return self.order.epoch(epoch, lambda e: seeder(self.seed)("sampler", self.number, e))
        finally:
            restore(before, _CPU)


def elastic(loader: DataLoader[Any], num_ests: int, number: int, seed: int, host: LoaderHost) -> ElasticLoader:
    """Make a user's ``DataLoader`` elastic.

    Raises:
        RefusedError: the loader's order cannot be dealt out to virtual ranks.
    """
    if isinstance(loader.dataset, IterableDataset):
        raise RefusedError(
            f"the loader's dataset {type(loader.dataset).__name__} is an IterableDataset, whose samples cannot be "
            "dealt out to ESTs by index in this version: give a map-style dataset (with __len__ and __getitem__)"
        )
    return ElasticLoader(loader, LoaderOrder.of(loader, num_ests, seed), number, seed, host)


@functools.lru_cache(maxsize=8)
def seeder(seed: int) -> Seeder:
    """The seeder for data: CPU generators alone, also in data worker processes."""
    return Seeder(seed, _CPU)


class SeededDataset(Dataset[Any]):
    """A dataset whose random numbers depend on the mini-batch alone: the first of the keys says which one it is.

    Its attributes are the dataset's own, also for a ``worker_init_fn`` that sets them.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        vars(self).update(_dataset=dataset, _seed=seed)

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # not set yet: unpickling or copying
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __getitems__(self, keys: Sequence[Any]) -> Any:
        batch_key, *indices = keys
        seeder(self._seed)(*batch_key)
        batched = getattr(self._dataset, "__getitems__", None)
        return batched(indices) if batched else [self._dataset[index] for index in indices]


class Stream(Protocol):
    """Mini-batches of this worker's ESTs, step by step."""

    @property
    def draws_from_est(self) -> bool:
        """Whether a mini-batch must be fetched inside the EST's own random stream."""

    def fetch(self, virtual_rank: int, step: int) -> Any:
        """Mini-batch ``step`` of ``virtual_rank``; asked for in the order of turns."""

    def refetch(self, virtual_rank: int, step: int) -> Any:
        """The same mini-batch again, for another pass over the step."""

    def close(self) -> None:
        """End the data workers."""


class SharedStream:
    """``rng="stepwise"``: one loader, so one pool of data workers, for all ESTs of this worker."""

    draws_from_est = False

    def __init__(self, loader: ElasticLoader, epoch: int, ranks: tuple[int, ...], *, per_turn: int = 1) -> None:
        self.plan = loader.plan(epoch)
        self._loader = loader
        self._epoch = epoch
        steps = len(self.plan)
        turns = (
            (rank, step)
            for first in range(0, steps, per_turn)
            for rank in ranks
            for step in range(first, min(first + per_turn, steps))
        )
        keys = (self._keys(rank, step) for rank, step in turns)
        self._batches: Iterator[Any] | None = iter(_rebuild(loader.base, self._dataset(), keys, torch.Generator()))

    def _dataset(self) -> SeededDataset:
        return SeededDataset(self._loader.base.dataset, self._loader.seed)

    def _keys(self, virtual_rank: int, step: int) -> list[Any]:
        key = ("data", self._loader.number, self._epoch, step, virtual_rank)
        return [key, *self.plan.batch(virtual_rank, step)]

    def fetch(self, virtual_rank: int, step: int) -> Any:
        if self._batches is None:
            raise UsageError("the loader's iteration was ended: iterate over the loader again")
        return next(self._batches)

    def refetch(self, virtual_rank: int, step: int) -> Any:
        keys = self._keys(virtual_rank, step)
        return next(iter(_rebuild(self._loader.base, self._dataset(), [keys], torch.Generator(), in_process=True)))

    def close(self) -> None:
        self._batches = None


class RankStreams:
    """``rng="ddp"``: each EST has the loader of a DDP rank, and it draws from the EST's stream as there."""

    draws_from_est = True

    def __init__(self, loader: ElasticLoader, epoch: int, ranks: tuple[int, ...], rng: RngPolicy) -> None:
        self.plan = loader.plan(epoch)
        self._batches: dict[int, Iterator[Any]] = {}
        self._kept: dict[tuple[int, int], Any] = {}
        rng.begin_pass()
        for rank in ranks:
            batches = [self.plan.batch(rank, step) for step in range(len(self.plan))]
            rng.enter(rank, 0, 0)
            self._batches[rank] = iter(loader.of_rank(rank, batches))
            rng.leave(rank)
        rng.end_pass(0, 0)

    def fetch(self, virtual_rank: int, step: int) -> Any:
        # kept for another pass over the step: fetching again would draw from the EST's stream again
        self._kept = {key: batch for key, batch in self._kept.items() if key[1] >= step}
        self._kept[virtual_rank, step] = next(self._batches[virtual_rank])
        return self._kept[virtual_rank, step]

    def refetch(self, virtual_rank: int, step: int) -> Any:
        return self._kept[virtual_rank, step]

    def close(self) -> None:
        self._batches.clear()
        self._kept.clear()


def evaluation_batches(loader: ElasticLoader, epoch: int, ranks: tuple[int, ...]) -> Iterator[tuple[int, Any]]:
    """Mini-batches for evaluation with the virtual rank they belong to: each sample once over all workers."""
    plan = loader.plan(epoch)
    turns = [(rank, step) for step in range(len(plan)) for rank in ranks if plan.unpadded_batch(rank, step)]
    keys = [[("eval", loader.number, epoch, step, rank), *plan.unpadded_batch(rank, step)] for rank, step in turns]
    dataset = SeededDataset(loader.base.dataset, loader.seed)
    batches = iter(_rebuild(loader.base, dataset, keys, torch.Generator()))
    for rank, _ in turns:
        before = capture(_CPU)
        try:
            batch = next(batches)
        finally:
            restore(before, _CPU)
        yield rank, batch


class _Batches(Sampler[Any]):
    """A batch sampler over what it is given, also over an iterator."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def _rebuild(
    base: DataLoader[Any],
    dataset: Any,
    batches: Any,
    generator: torch.Generator | None,
    *,
    in_process: bool = False,
    is_persistent: bool = False,
) -> DataLoader[Any]:
    """``base`` over other batches, with everything else as the user said."""
    workers = 0 if in_process else base.num_workers
    options: dict[str, Any] = {}
    if workers:
        options = {
            "prefetch_factor": base.prefetch_factor,
            "timeout": base.timeout,
            "persistent_workers": is_persistent,
            "worker_init_fn": base.worker_init_fn,
            "multiprocessing_context": base.multiprocessing_context,
        }
    with warnings.catch_warnings():
        # what DataLoader says about the number of workers it has said already, when the user made `base`
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        return DataLoader(
            dataset,
            batch_sampler=batches if isinstance(batches, _Batches) else _Batches(batches),
            num_workers=workers,
            collate_fn=base.collate_fn,
            pin_memory=base.pin_memory,
            generator=generator,
            **options,
        )
