"""Reads the streams of several ESTs in one process, each with random numbers of its own. Runs in data worker processes,
or in the worker.

A stream's generators are set when an epoch begins, and from there go on with the stream; so they are part of its state.
ESTs that deal one stream out among them all read the same stream, so its generators are set alike for all.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch.utils.data._utils.worker as torchs_worker
from torch.utils.data import Dataset, get_worker_info

from easyscale.train.context.rng import RngState, capture, restore
from easyscale.train.data.seeding import CPU, seeder
from easyscale.train.data.share import Share, is_sharded


class Pull(NamedTuple):
    """Asks for the next mini-batch of an EST.

    Attributes:
        use: "data", or "eval" for evaluation.
        owner: the data worker that reads the EST's stream.
        is_first: whether the stream is to be opened, at ``saved`` if that is not None (pickled, since tensors would
            travel through shared memory, with a socket that stays).
    """

    use: str
    loader: int
    epoch: int
    number: int
    virtual_rank: int
    owner: int
    is_first: bool
    saved: bytes | None


class Pulled(NamedTuple):
    """The answer: a mini-batch with the stream's state right after it (if that can be told), or that it is over.

    The state of a data worker is pickled, as in ``Pull``.
    """

    batch: Any
    state: bytes | dict[str, Any] | None
    is_over: bool


class PulledDataset(Dataset[Any]):
    """An iterable dataset as one that takes a ``Pull`` and gives a ``Pulled``.

    Args:
        batch_size: samples of a mini-batch; None gives single samples.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        seed: int,
        num_ests: int,
        *,
        batch_size: int | None,
        drop_last: bool,
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.seed = seed
        self.num_ests = num_ests
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._readers: dict[int, _Reader] = {}

    def __getitems__(self, keys: Sequence[Pull | None]) -> Pulled | None:
        pull = keys[0]
        if pull is None:
            return None
        info = get_worker_info()
        if info is not None and info.id != pull.owner:
            raise RuntimeError(
                f"data worker {info.id} was asked for the stream of virtual rank {pull.virtual_rank}, which data "
                f"worker {pull.owner} reads: this release of torch deals mini-batches out in another order"
            )
        if pull.is_first:
            self._readers = {rank: r for rank, r in self._readers.items() if r.key == (pull.use, pull.epoch)}
            self._readers[pull.virtual_rank] = _Reader(self, pull)
        outside = None if info is not None else capture(CPU)
        try:
            with _alone():
                return self._readers[pull.virtual_rank].read(pull.number)
        finally:
            if outside is not None:
                restore(outside, CPU)


class _Reader:
    """The stream of one EST in one epoch."""

    def __init__(self, owner: PulledDataset, pull: Pull) -> None:
        self.key = (pull.use, pull.epoch)
        self._owner = owner
        self._pull = pull
        self._saved: dict[str, Any] | None = None if pull.saved is None else pickle.loads(pull.saved)
        self._share: Share | None = None
        self._samples: Iterator[Any] = iter(())
        self._rng: RngState | None = None if self._saved is None else self._saved["rng"]
        self._is_over = False

    def read(self, number: int) -> Pulled:
        if self._is_over:
            return Pulled(None, None, True)
        pull, owner = self._pull, self._owner
        seed = seeder(owner.seed)
        stream = ("stream", pull.use, pull.loader, pull.epoch)
        if self._rng is not None:
            restore(self._rng, CPU)
        else:
            seed(*stream, *([pull.virtual_rank] if is_sharded(owner.dataset) else []))
        samples = self._take()
        self._rng = capture(CPU)
        if not samples or (owner.drop_last and len(samples) < (owner.batch_size or 1)):
            self._is_over = True
            return Pulled(None, None, True)
        assert self._share is not None
        state = self._share.state()
        kept = None if state is None else pickle.dumps({"version": number + 1, "rng": self._rng, **state})
        seed(*stream, "collate", number, pull.virtual_rank)
        return Pulled(owner.collate(samples if owner.batch_size is not None else samples[0]), kept, False)

    def _take(self) -> list[Any]:
        pull = self._pull
        try:
            if self._share is None:
                self._share = Share(
                    self._owner.dataset, pull.virtual_rank, self._owner.num_ests, pull.epoch, self._saved
                )
                self._samples = iter(self._share)
            return list(itertools.islice(self._samples, self._owner.batch_size or 1))
        except Exception as error:
            if hasattr(error, "add_note"):
                at = 0 if self._share is None else self._share.position
                error.add_note(
                    f"while reading sample {at} of the stream of {type(self._owner.dataset).__name__} (epoch "
                    f"{pull.epoch}, virtual rank {pull.virtual_rank})"
                )
            raise


@contextmanager
def _alone() -> Iterator[None]:
    """Let ``get_worker_info()`` say that there are no data workers.

    A stream is dealt out to ESTs here, and is read by one process from its first sample to its last: a dataset that
    dealt it out again, to data workers, would lose samples, and other ones with every ``num_workers``.
    """
    worker: Any = torchs_worker
    info, worker._worker_info = worker._worker_info, None
    try:
        yield
    finally:
        worker._worker_info = info
