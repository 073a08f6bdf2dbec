"""The data workers of one loader, shared by all ESTs of this worker (paper, section 3.4). Runs in the worker.

One ``DataLoader`` loads what the ESTs of this worker will ask for, in the order of their turns. How many there are of
them shows neither in the number of processes nor in the memory. With ``persistent_workers=True`` the processes live as
long as the session and begin with the next epoch before this one ends.
"""

from __future__ import annotations

import atexit
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from easyscale.core.errors import DataError, UsageError
from easyscale.train.data import deaths
from easyscale.train.data.pulling import PulledDataset
from easyscale.train.data.rebuild import Batches, end_workers, rebuild


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


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """A script that ends in the middle of a loop leaves pools to the end of the interpreter, when little works."""
    for pool in list(_pools):
        pool.end()


class Pool:
    """Loads mini-batches by key.

    Args:
        base: the user's loader.
        dataset: takes keys and gives whole mini-batches.
        collate: what is left to do to them.
        seed: of the data workers' own generators, which show in no mini-batch that we set generators for.
        replacements: how often data workers that ended may be replaced; shared by all pools of the loader.

    Attributes:
        ahead: what the mini-batches that come next belong to, where they were asked for before they were needed.
        followers: what was asked for after what.
    """

    def __init__(
        self, base: DataLoader[Any], dataset: Any, collate: Any, seed: int, replacements: Replacements
    ) -> None:
        self._base = base
        self._dataset = dataset
        self._collate = collate
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)
        self._replacements = replacements
        self._source = Batches()
        self._loader: DataLoader[Any] | None = None
        self._batches: Iterator[Any] | None = None
        self._keys: Iterator[Any] = iter(())
        self._asked: deque[Any] = deque()
        self._again: Callable[[], Iterator[Any]] | None = None
        self._has_workers = False
        self._processes: list[Any] = []
        self._must_start = True
        self._is_over = True
        self.ahead: Any = None
        self.followers: dict[Any, Any] = {}
        _pools.add(self)

    @property
    def is_lasting(self) -> bool:
        """Whether the processes live on from epoch to epoch."""
        return self._base.num_workers > 0 and bool(self._base.persistent_workers)

    def begin(self, keys: Iterable[Any], again: Callable[[], Iterator[Any]] | None = None) -> None:
        """Load these from now on, in their order; what was loaded ahead is thrown away.

        Args:
            again: what new data workers load; None has them load what was asked for and not taken, and then the rest.
        """
        self._keys = iter(keys)
        self._again = again
        self._asked.clear()
        self.ahead = None
        self.followers.clear()
        self._must_start = True
        self._is_over = False
        if not self.is_lasting:
            self._end_workers()
        self._guarded(load=False)

    def take(self) -> Any:
        """The next mini-batch.

        Raises:
            DataError: a data worker has ended and is not to be replaced.
        """
        if self._is_over:
            raise UsageError("the loader's iteration was ended: iterate over the loader again")
        batch = self._guarded(load=True)
        self._asked.popleft()
        return batch

    def _guarded(self, *, load: bool) -> Any:
        """Start if need be, and load; with new data workers if one has ended."""
        while True:
            try:
                with deaths.noticed(lambda: deaths.raise_if_dead(self._processes)):
                    return self._go(load=load)
            except deaths.WorkerEndedError as error:
                self._replace(error)
            except (RuntimeError, OSError, EOFError) as error:
                try:
                    deaths.explain(error, self._processes)
                except deaths.WorkerEndedError as death:
                    self._replace(death)
                    continue
                raise

    def _go(self, *, load: bool) -> Any:
        if self._must_start:
            self._start()
            self._must_start = False
        assert self._batches is not None
        return next(self._batches) if load else None

    def _start(self) -> None:
        self._source.batches = self._ask()
        if self._loader is None:
            self._loader = rebuild(
                self._base,
                self._dataset,
                self._source,
                collate=self._collate,
                generator=self._generator,
                worker_init_fn=Init(self._base.worker_init_fn, is_alone=isinstance(self._dataset, PulledDataset)),
            )
        if self._has_workers or not self._base.num_workers:
            self._batches = iter(self._loader)
            return
        self._has_workers = True
        with deaths.starting():
            self._batches = iter(self._loader)
        # PyTorch tells of its data workers only in an attribute that is not public
        self._processes = list(getattr(self._batches, "_workers", ()))

    def _ask(self) -> Iterator[Any]:
        """The keys, remembered until their mini-batch was taken."""
        for key in self._keys:
            self._asked.append(key)
            yield key

    def _replace(self, error: deaths.WorkerEndedError) -> None:
        """Load what was asked for and not taken again, in new processes."""
        if not self._replacements.use():
            self.end()
            raise DataError(deaths.describe(error)) from error
        keys = itertools.chain(list(self._asked), self._keys) if self._again is None else self._again()
        deaths.warn(error, self._replacements.left)
        self._end_workers()
        self._keys = keys
        self._asked.clear()

    def end_epoch(self) -> None:
        """The script has left its loop: without ``persistent_workers`` the processes end."""
        if not self.is_lasting:
            self.end()

    def end(self) -> None:
        """End the data workers."""
        self._asked.clear()
        self.ahead = None
        self._is_over = True
        self._end_workers()

    def _end_workers(self) -> None:
        end_workers(self._batches)
        self._batches = self._loader = None
        self._processes = []
        self._must_start = True
        if self._has_workers:
            self._has_workers = False
            deaths.release()


class Init:
    """The user's ``worker_init_fn``, for which, and from then on, the dataset is the user's own.

    Args:
        is_alone: tell it of one data worker only, so that it deals out no stream that is dealt out to ESTs.
    """

    def __init__(self, users: Any, *, is_alone: bool = False) -> None:
        self._users = users
        self._is_alone = is_alone

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        ours: Any = info.dataset
        object.__setattr__(info, "dataset", ours.dataset)  # it refuses the ordinary way
        if self._users is None:
            return
        if not self._is_alone:
            self._users(worker)
            return
        them = {"id": info.id, "num_workers": info.num_workers}
        for name, value in {"id": 0, "num_workers": 1}.items():
            object.__setattr__(info, name, value)
        self._users(0)
        for name, value in them.items():
            object.__setattr__(info, name, value)
