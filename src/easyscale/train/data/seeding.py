"""Loads mini-batches so that their random numbers depend on their place in the job alone.

Runs in data worker processes, and in the worker where there are none. A sample's generators are set from (seed, loader,
epoch, place of the sample in the epoch's order), ``collate_fn``'s from (seed, loader, epoch, step, virtual rank):
neither the number of data workers nor the placement nor the batch size shows in a sample.

Setting a generator takes longer than loading a small sample. So after a few mini-batches only those generators are set
that the dataset was seen to draw from; that it draws from no other is checked after every mini-batch, and one that did
is loaded again with that generator set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, Subset, get_worker_info

from easyscale.core.errors import UsageError
from easyscale.train.context.rng import Seeder
from easyscale.train.data.generators import Generator, device_mark, generators

CPU = torch.device("cpu")
_PROBED = 8


class Place(NamedTuple):
    """Which mini-batch it is: the first entry of what a data worker is sent, before the samples.

    Attributes:
        use: "data", or "eval" for evaluation.
        loader: number of the loader in the job.
        first: place of the first sample in the epoch's order; the next is ``stride`` further.
    """

    use: str
    loader: int
    epoch: int
    step: int
    virtual_rank: int
    first: int
    stride: int


@functools.lru_cache(maxsize=8)
def seeder(seed: int) -> Seeder:
    """The seeder for data: CPU generators alone, also in data worker processes."""
    return Seeder(seed, CPU)


class SeededDataset(Dataset[Any]):
    """The user's dataset with its ``collate_fn``: ``__getitems__`` gives a whole mini-batch.

    Its attributes are the dataset's own, also for a ``worker_init_fn`` that sets them.

    Args:
        is_batched: whether samples are put together by ``collate_fn``; else it is given the only one.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], seed: int, *, is_batched: bool) -> None:
        vars(self).update(_dataset=dataset, _loading=Loading(seed), _collate=collate, _is_batched=is_batched)

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # not set yet: unpickling or copying
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __getitems__(self, keys: Sequence[Any]) -> Any:
        loading: Loading = self._loading
        return loading.load(keys[0], keys[1:], self._dataset, self._collate, is_batched=self._is_batched)


def as_loaded(batch: Any) -> Any:
    """The ``collate_fn`` of a loader over a ``SeededDataset``, which has done it all."""
    return batch


class Loading:
    """Loads mini-batches in one process, and learns which generators they draw from."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._used: list[Generator] | None = None
        self._seen: set[int] = set()
        self._batches = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_used": None, "_seen": set(), "_batches": 0}  # another process learns for itself

    def load(self, place: Place, indices: Sequence[Any], dataset: Any, collate: Any, *, is_batched: bool) -> Any:
        """The mini-batch; where this is the worker itself, its generators are as they were."""
        used = list(generators()) if self._used is None else self._used
        before = [] if get_worker_info() is not None else [(g, g.capture()) for g in generators()]
        others = [g for g in generators() if g not in used]
        marks = [g.mark() for g in others]
        on_device = device_mark()
        moved = others
        try:
            batch = self._load_seeded(used, place, indices, dataset, collate, is_batched)
            moved = [g for g, mark in zip(others, marks, strict=True) if g.mark() != mark]
        finally:
            for generator, state in before:
                if generator in used or generator in moved:
                    generator.restore(state)
        if on_device != device_mark():
            raise UsageError(
                f"the dataset {type(dataset).__name__} draws random numbers on the GPU, which would depend on the "
                "worker that loads it: draw them on the CPU, or in the loop"
            )
        if not moved:
            self._learn()
            return batch
        self._used = [*used, *moved]
        return self.load(place, indices, dataset, collate, is_batched=is_batched)

    def _learn(self) -> None:
        self._batches += 1
        if self._batches == _PROBED and self._used is None:
            self._used = [g for number, g in enumerate(generators()) if number in self._seen]

    def _load_seeded(
        self, used: list[Generator], place: Place, indices: Sequence[Any], dataset: Any, collate: Any, is_batched: bool
    ) -> Any:
        loader = (place.use, place.loader, place.epoch)
        whole = _whole(dataset) if is_batched else None
        if whole is not None:
            self._seed_all(used, *loader, "batch", place.step, place.virtual_rank)
            samples: Any = whole(indices)
            self._note(used)
        else:
            samples = []
            for number, index in enumerate(indices):
                at = place.first + number * place.stride
                self._seed_all(used, *loader, at)
                try:
                    samples.append(dataset[index])
                except Exception as error:
                    _say_which(error, dataset, index, place)
                    raise
                self._note(used)
        self._seed_all(used, *loader, "collate", place.step, place.virtual_rank)
        batch = collate(samples if is_batched else samples[0])
        self._note(used)
        return batch

    def _seed_all(self, used: list[Generator], *key: int | str) -> None:
        if not used:
            return
        material = seeder(self._seed).material(sum(generator.material for generator in used), *key)
        first = 0
        for generator in used:
            generator.seed(material[first : first + generator.material])
            first += generator.material
        if self._used is None:
            self._marks = [generator.mark() for generator in used]

    def _note(self, used: list[Generator]) -> None:
        """While learning: which generators have moved since they were set."""
        if self._used is None:
            self._seen.update(i for i, g in enumerate(used) if g.mark() != self._marks[i])


def _whole(dataset: Any) -> Any:
    """How the dataset loads several samples at once, if it does; a subset of one that does not only seems to."""
    inner = dataset
    while type(inner) is Subset:
        inner = inner.dataset
    return dataset.__getitems__ if callable(getattr(inner, "__getitems__", None)) else None


def _say_which(error: Exception, dataset: Any, index: Any, place: Place) -> None:
    """Add to an exception of the dataset which sample it was: its type and text stay the user's."""
    text = (
        f"while loading sample {index!r} of {type(dataset).__name__} "
        f"(epoch {place.epoch}, step {place.step}, virtual rank {place.virtual_rank})"
    )
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:  # Python 3.10
        error.args = (*error.args, text)
