"""A shuffle that needs no array: the place of a sample is computed. Runs anywhere.

``DistributedSampler`` (and so EasyScale by default) draws a permutation of all samples, which for 100 million takes
seconds at every start and 0.8 GB. This one is a keyed bijection, so that a run resumes in the middle of an epoch at
once. It is a Feistel network over a rectangle of about the wanted size (Black and Rogaway, "Ciphers with arbitrary
finite domains", 2002): what falls outside the range is sent through again until it falls inside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence, Sized
from math import isqrt
from typing import overload

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

_ROUNDS = 8
_CHUNK = 4096
_Numbers = NDArray[np.uint64]


class Permutation(Sequence[int]):
    """A permutation of ``range(length)`` as a sequence; entries are computed when asked for.

    Args:
        length: how many numbers it permutes.
        seed: other seeds give unrelated permutations.
    """

    def __init__(self, length: int, seed: int) -> None:
        self._length = length
        self._rows = np.uint64(max(1, isqrt(max(0, length - 1)) + 1))  # the least square that holds all
        self._columns = np.uint64(max(1, -(-length // int(self._rows))))
        digest = hashlib.shake_128(f"permutation/{seed}".encode()).digest(8 * _ROUNDS)
        self._keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            places = np.arange(*index.indices(self._length), dtype=np.int64).astype(np.uint64)
            found: list[int] = self._permute(places).tolist()
            return found
        return int(self._permute(np.array([range(self._length)[index]], dtype=np.uint64))[0])

    def __iter__(self) -> Iterator[int]:
        for first in range(0, self._length, _CHUNK):
            yield from self[first : first + _CHUNK]

    def _permute(self, places: _Numbers) -> _Numbers:
        numbers = self._once(places)
        while (outside := numbers >= np.uint64(self._length)).any():
            numbers[outside] = self._once(numbers[outside])
        return numbers

    def _once(self, numbers: _Numbers) -> _Numbers:
        """The network once: a bijection of ``range(rows * columns)``."""
        row, column = numbers // self._columns, numbers % self._columns
        for number, key in enumerate(self._keys):
            if number % 2 == 0:
                row = (row + _mix(column, key)) % self._rows
            else:
                column = (column + _mix(row, key)) % self._columns
        return row * self._columns + column


def _mix(numbers: _Numbers, key: np.uint64) -> _Numbers:
    """Scramble with the finalizer of SplitMix64 (Steele, Lea, Flood, 2014); the upper 32 bits, so that sums fit."""
    mixed = numbers + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(32)


class PermutationSampler(Sampler[int]):
    """Shuffles a dataset of any size without an array: give it to a ``DataLoader`` in the place of ``shuffle=True``.

    Each epoch has a permutation of its own: prepared, the loader chooses it; in plain PyTorch ``set_epoch`` does.

    Args:
        dataset: anything with a length.
        seed: root of the permutations.
    """

    def __init__(self, dataset: Sized, seed: int = 0) -> None:
        self.length = len(dataset)
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(self.permutation(self.epoch))

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of the next iterations."""
        self.epoch = epoch

    def permutation(self, epoch: int) -> Permutation:
        """The order of the samples in ``epoch``."""
        return Permutation(self.length, self.seed * 2**32 + epoch)


__all__ = ["Permutation", "PermutationSampler"]
