"""Loads mini-batches so that their random numbers depend on their place in the job alone.

Runs in data worker processes, and in the worker where there are none. A sample's generators are set from (seed, loader,
epoch, place of the sample in the epoch's order), ``collate_fn``'s from (seed, loader, epoch, step, virtual rank):
neither the number of data workers nor the placement nor the batch size shows in a sample.

Setting a generator takes longer than loading a small sample. So after its first mini-batch a process sets only those
generators that the dataset was seen to draw from; that it draws from no other is checked after every mini-batch, and
one that did is loaded again with that generator set. A generator's words do not depend on which others are set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, Subset, get_worker_info

from easyscale.core.errors import UsageError
from easyscale.train.context.rng import Seeder
from easyscale.train.data.generators import Generator, Words, device_mark, generators
from easyscale.train.data.words import BATCH, COLLATE, SAMPLE, Source, source

CPU = torch.device("cpu")
_TOGETHER = 64  # samples whose words are made at once


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
        self._forget()

    def _forget(self) -> None:
        self._is_learning = True
        self._used: list[Generator] = list(generators())
        self._others: list[Generator] = []
        self._seen: set[int] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {"_seed": self._seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._seed = state["_seed"]
        self._forget()  # another process learns for itself

    def load(self, place: Place, indices: Sequence[Any], dataset: Any, collate: Any, *, is_batched: bool) -> Any:
        """The mini-batch; where this is the worker itself, its generators are as they were."""
        used, others = self._used, self._others
        before = [] if get_worker_info() is not None else [(g, g.capture()) for g in generators()]
        marks = [g.mark() for g in others]
        on_device = device_mark()
        moved = others
        try:
            batch = self._load_seeded(place, indices, dataset, collate, is_batched)
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
        if self._is_learning:
            self._is_learning = False
            self._use([g for g in used if g.lane in self._seen])
        if not moved:
            return batch
        self._use([*used, *moved])
        return self.load(place, indices, dataset, collate, is_batched=is_batched)

    def _use(self, used: list[Generator]) -> None:
        self._used = [g for g in generators() if g in used]  # in the order of their lanes
        self._others = [g for g in generators() if g not in used]

    def _load_seeded(self, place: Place, indices: Sequence[Any], dataset: Any, collate: Any, is_batched: bool) -> Any:
        words = source(seeder(self._seed), place.use, place.loader, place.epoch)
        whole = _whole(dataset) if is_batched else None
        if whole is None:
            samples: Any = self._samples(words, place, indices, dataset)
        else:
            self._set(row[0] for row in self._rows(words, BATCH, place, place.step, 1))
            samples = whole(indices)
            self._note()
        self._set(row[0] for row in self._rows(words, COLLATE, place, place.step, 1))
        batch = collate(samples if is_batched else samples[0])
        self._note()
        return batch

    def _samples(self, words: Source, place: Place, indices: Sequence[Any], dataset: Any) -> list[Any]:
        samples: list[Any] = []
        try:
            if not self._used:
                for index in indices:
                    samples.append(dataset[index])
                return samples
            for begin in range(0, len(indices), _TOGETHER):
                some = indices[begin : begin + _TOGETHER]
                first = place.first // place.stride + begin
                for index, *rows in zip(some, *self._rows(words, SAMPLE, place, first, len(some)), strict=True):
                    self._set(rows)
                    samples.append(dataset[index])
                    self._note()
        except Exception as error:
            _say_which(error, dataset, indices[len(samples)], place)
            raise
        return samples

    def _rows(self, words: Source, kind: int, place: Place, first: int, count: int) -> list[Words]:
        return [words.words(generator, kind, place.virtual_rank, first, count) for generator in self._used]

    def _set(self, rows: Iterable[Words]) -> None:
        for generator, row in zip(self._used, rows, strict=True):
            generator.seed(row)
        if self._is_learning:
            self._marks = self._mark()

    def _mark(self) -> list[Any]:
        return [g.mark() for g in self._used]

    def _note(self) -> None:
        """While learning: which generators have moved since they were set."""
        if self._is_learning:
            self._seen.update(g.lane for g, mark in zip(self._used, self._marks, strict=True) if g.mark() != mark)


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
