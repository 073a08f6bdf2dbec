"""Loads mini-batches so that their random numbers depend on their place in the job alone.

Runs in data worker processes, and in the worker where there are none. A sample's generators are set from (seed, loader,
epoch, virtual rank, number of the sample among those of that rank), ``collate_fn``'s from (seed, loader, epoch, step,
virtual rank): neither the number of data workers nor the placement shows in a sample.

Setting a generator takes longer than loading a small sample. So a process sets only those generators that the dataset
was seen to draw from; that it draws from no other is checked after every mini-batch, and one that did is loaded again
with that generator set. A generator's words do not depend on which others are set, and those that are not set stand
still in one state, the same everywhere: a dataset that puts a generator back after drawing is not seen to draw.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, get_worker_info

from easyscale.core.errors import DataError, UsageError
from easyscale.train.context.generators import Generator, device_mark, generators
from easyscale.train.context.philox import WORDS, Words
from easyscale.train.context.rng import Seeder
from easyscale.train.data.own import Own, own_generators
from easyscale.train.data.words import BATCH, COLLATE, SAMPLE, Source, source

CPU = torch.device("cpu")
_STILL = np.frombuffer(hashlib.shake_128(b"easyscale/still").digest(4 * WORDS), dtype="<u4")
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

    Args:
        is_batched: whether samples are put together by ``collate_fn``; else it is given the only one.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], seed: int, *, is_batched: bool) -> None:
        self.dataset = dataset
        self._loading = Loading(seed)
        self._collate = collate
        self._is_batched = is_batched

    def __getitems__(self, keys: Sequence[Any]) -> Any:
        return self._loading.load(keys[0], keys[1:], self.dataset, self._collate, is_batched=self._is_batched)


class _Drawn(Exception):
    """A sample has drawn from a generator that was not set."""


class Loading:
    """Loads mini-batches in one process, and learns which generators they draw from."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._used: list[Generator] = []
        self._own: list[Own] | None = None
        self._others: list[Generator] = []
        self._marks: list[Any] = []
        self._is_still = False
        self._has_looked = False
        generators()  # found here once, for all data workers that are forked from this process

    def __getstate__(self) -> dict[str, Any]:
        return {"_seed": self._seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_seed"])  # type: ignore[misc] # another process learns for itself

    def load(self, place: Place, indices: Sequence[Any], dataset: Any, collate: Any, *, is_batched: bool) -> Any:
        """The mini-batch; where this is the worker itself, it is as it was, and computes as data workers do."""
        if self._own is None:
            self._own = own_generators(len(generators()), dataset, collate)
            self._used = list(self._own)
        load = functools.partial(self._load, place, indices, dataset, collate, is_batched)
        if get_worker_info() is not None:
            return load()
        threads = torch.get_num_threads()
        before = [(g, g.capture()) for g in (*generators(), *self._own)]
        self._is_still = False
        if threads != 1:  # setting it takes longer than all else here
            torch.set_num_threads(1)
        try:
            return load()
        finally:
            if threads != 1:
                torch.set_num_threads(threads)
            for generator, state in before:
                generator.restore(state)

    def _load(self, place: Place, indices: Sequence[Any], dataset: Any, collate: Any, is_batched: bool) -> Any:
        while True:
            if not self._is_still:
                self._hold_still()
            on_device = device_mark()
            batch = None
            try:
                batch = self._load_seeded(place, indices, dataset, collate, is_batched)
            except Exception:
                if not self._moved():
                    raise  # else with other numbers than those of its place
            if on_device != device_mark():
                raise UsageError(
                    f"the dataset {type(dataset).__name__} draws random numbers on the GPU, which would depend on the "
                    "worker that loads it: draw them on the CPU, or in the loop"
                )
            moved = self._moved()
            if not moved:
                return batch
            self._used += moved
            self._is_still = False

    def _hold_still(self) -> None:
        """Put the generators that nobody is seen to draw from into one state, where a data worker keeps them."""
        self._others = [g for g in generators() if g not in self._used]
        for generator in self._others:
            generator.seed(_STILL)
        self._marks = [g.mark() for g in self._others]
        self._is_still = True

    def _moved(self) -> list[Generator]:
        """Those of them that were drawn from."""
        return [g for g, mark in zip(self._others, self._marks, strict=True) if g.mark() != mark]

    def _load_seeded(self, place: Place, indices: Sequence[Any], dataset: Any, collate: Any, is_batched: bool) -> Any:
        words = source(seeder(self._seed), place.use, place.loader, place.epoch)
        whole = _whole(dataset) if is_batched else None
        if whole is None:
            samples: Any = self._samples(words, place, indices, dataset)
        else:
            self._set(row[0] for row in self._rows(words, BATCH, place, place.step, 1))
            samples = whole(indices)
        self._set(row[0] for row in self._rows(words, COLLATE, place, place.step, 1))
        return collate(samples if is_batched else samples[0])

    def _samples(self, words: Source, place: Place, indices: Sequence[Any], dataset: Any) -> list[Any]:
        samples: list[Any] = []
        try:
            if not self._used:
                for index in indices:
                    samples.append(dataset[index])
                    self._look()
                return samples
            for begin in range(0, len(indices), _TOGETHER):
                some = indices[begin : begin + _TOGETHER]
                first = place.first // place.stride + begin
                for index, *rows in zip(some, *self._rows(words, SAMPLE, place, first, len(some)), strict=True):
                    self._set(rows)
                    samples.append(dataset[index])
                    self._look()
        except _Drawn:
            raise
        except Exception as error:
            _say_which(error, dataset, indices[len(samples)], place)
            if isinstance(error, StopIteration):  # it would end a loop in silence
                raise DataError(f"{type(dataset).__name__} raised StopIteration for a sample it has") from error
            raise
        return samples

    def _look(self) -> None:
        """After this process's first sample: if it was loaded with wrong numbers, load no others so."""
        if not self._has_looked:
            self._has_looked = True
            if self._moved():
                raise _Drawn

    def _rows(self, words: Source, kind: int, place: Place, first: int, count: int) -> list[Words]:
        return [words.words(generator, kind, place.virtual_rank, first, count) for generator in self._used]

    def _set(self, rows: Iterable[Words]) -> None:
        for generator, row in zip(self._used, rows, strict=True):
            generator.seed(row)


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
