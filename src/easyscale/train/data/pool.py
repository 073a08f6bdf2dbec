"""The data workers of one loader, shared by all ESTs of this worker (paper, section 3.4). Runs in the worker.

One ``DataLoader`` loads what the ESTs of this worker will ask for, in the order of their turns. How many there are of
them shows neither in the number of processes nor in the memory. With ``persistent_workers=True`` the processes live as
long as the session and begin with the next epoch before this one ends.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from easyscale.core.errors import DataError, UsageError
from easyscale.train.data import deaths
from easyscale.train.data.rebuild import Batches, rebuild


class Pool:
    """Loads mini-batches by key.

    Args:
        base: the user's loader.
        dataset: takes keys and gives whole mini-batches.
        collate: what is left to do to them.
        replacements: how often data workers that ended may be replaced; shared by all pools of the loader.

    Attributes:
        ahead: what the mini-batches that come next belong to, where they were asked for before they were needed.
        followers: what was asked for after what.
    """

    def __init__(self, base: DataLoader[Any], dataset: Any, collate: Any, replacements: Replacements) -> None:
        self._base = base
        self._dataset = dataset
        self._collate = collate
        self._replacements = replacements
        self._source = Batches()
        self._loader: DataLoader[Any] | None = None
        self._batches: Iterator[Any] | None = None
        self._keys: Iterator[Any] = iter(())
        self._asked: deque[Any] = deque()
        self._is_started = False
        self.ahead: Any = None
        self.followers: dict[Any, Any] = {}

    @property
    def is_lasting(self) -> bool:
        """Whether the processes live on from epoch to epoch."""
        return self._base.num_workers > 0 and bool(self._base.persistent_workers)

    def begin(self, keys: Iterable[Any]) -> None:
        """Load these from now on, in their order; what was loaded ahead is thrown away."""
        self._keys = iter(keys)
        self._asked.clear()
        self.ahead = None
        self.followers.clear()
        self._guarded(self._start)

    def _start(self) -> None:
        self._source.batches = self._ask()
        if not self.is_lasting:
            self._end_workers()
        if self._loader is None:
            self._loader = rebuild(
                self._base, self._dataset, self._source, collate=self._collate, generator=torch.Generator()
            )
        if self._is_started or not self._base.num_workers:
            self._batches = iter(self._loader)
            return
        with deaths.starting():
            self._batches = iter(self._loader)
        self._is_started = True

    def _ask(self) -> Iterator[Any]:
        """The keys, remembered until their mini-batch was taken."""
        for key in self._keys:
            self._asked.append(key)
            yield key

    def take(self) -> Any:
        """The next mini-batch.

        Raises:
            DataError: a data worker has ended and is not to be replaced.
        """
        if self._batches is None:
            raise UsageError("the loader's iteration was ended: iterate over the loader again")
        batch = self._guarded(self._next)
        self._asked.popleft()
        return batch

    def _next(self) -> Any:
        assert self._batches is not None
        return next(self._batches)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """``call``, again with new data workers if one has ended."""
        while True:
            try:
                with deaths.noticed():
                    return call()
            except RuntimeError as error:
                if not deaths.is_death(error):
                    raise
                if not self._replacements.use():
                    self.end()
                    raise DataError(deaths.describe(error)) from error
                deaths.warn(error, self._replacements.left)
                self._restart()

    def _restart(self) -> None:
        """Load what was asked for and not taken again, in new processes."""
        self._end_workers()
        self._keys = itertools.chain(list(self._asked), self._keys)
        self._asked.clear()
        self._start()

    def end_epoch(self) -> None:
        """The script has left its loop: without ``persistent_workers`` the processes end."""
        if not self.is_lasting:
            self.end()

    def end(self) -> None:
        """End the data workers."""
        self._asked.clear()
        self.ahead = None
        self._end_workers()

    def _end_workers(self) -> None:
        self._batches = self._loader = None  # the last reference ends them
        if self._is_started:
            self._is_started = False
            deaths.release()


class Replacements:
    """How many more data workers of a loader may be replaced."""

    def __init__(self, allowed: int) -> None:
        self.left = allowed

    def use(self) -> bool:
        """Take one; false if there is none."""
        if self.left == 0:
            return False
        self.left -= 1
        return True
