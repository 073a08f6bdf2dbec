"""Reads the streams of several ESTs in one process, each with random numbers of its own. Runs in data worker processes,
or in the worker.

A stream's generators are set when an epoch begins, and from there go on with the stream; so they are part of its state.
A dataset that deals itself out gives each EST a stream. Any other has one stream, which a process reads once and deals
out to its ESTs; so its generators are set alike everywhere.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
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
        opens: with the first of an iteration that a data worker is sent: the states of all ESTs whose streams it reads
            from now on, None at the epoch's begin (pickled, since tensors would travel through shared memory, with a
            socket that stays).
        is_told: whether the dataset is told the epoch.
    """

    use: str
    loader: int
    epoch: int
    number: int
    virtual_rank: int
    owner: int
    opens: bytes | None
    is_told: bool


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
        self._stream_by_rank: dict[int, _Stream] = {}

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
        with _alone():
            if pull.opens is not None:
                self._open(pull, {r: s and pickle.loads(s) for r, s in pickle.loads(pull.opens).items()})
            stream = self._stream_by_rank[pull.virtual_rank]
            pulled = stream.read(pull.virtual_rank, pull.number)
        if pulled.is_over and info is None:
            stream.warn_of_changes()
        return pulled

    def _open(self, pull: Pull, states: dict[int, Any]) -> None:
        if is_sharded(self.dataset):
            self._stream_by_rank = {rank: _Stream(self, pull, {rank: state}) for rank, state in states.items()}
        else:
            self._stream_by_rank = dict.fromkeys(states, _Stream(self, pull, states))


class _Stream:
    """A stream of samples in one epoch: that of one EST, or one that is dealt out to all in turns.

    A process reads it once, however many of its ESTs have a share in it; what others have is thrown away.

    Args:
        pull: what opens it.
        states: those of the ESTs that read it here. It goes on at the first of their positions.
    """

    def __init__(self, owner: PulledDataset, pull: Pull, states: dict[int, Any]) -> None:
        self._owner = owner
        self._pull = pull
        self._size = owner.batch_size or 1
        self._is_dealt = not is_sharded(owner.dataset)
        self._every = owner.num_ests if self._is_dealt else 1
        self._position_by_rank = {rank: 0 if state is None else state["position"] for rank, state in states.items()}
        self._waiting_by_rank: dict[int, deque[tuple[Any, Any]]] = {rank: deque() for rank in states}
        self._first = min(states, key=lambda rank: self._position_by_rank[rank])
        self._saved = states[self._first]
        self._lane = ("stream", pull.use, pull.loader, pull.epoch)
        self._share: Share | None = None
        self._samples: Iterator[Any] = iter(())
        self._rng: RngState | None = None
        self._error: Exception | None = None
        self._is_over = False

    def read(self, virtual_rank: int, number: int) -> Pulled:
        owner, size, waiting = self._owner, self._size, self._waiting_by_rank[virtual_rank]
        self._fill(virtual_rank)
        entries = [waiting.popleft() for _ in range(min(size, len(waiting)))]
        if len(entries) < (size if owner.drop_last else 1):
            waiting.clear()
            return Pulled(None, None, True)
        samples, state = [sample for sample, _ in entries], entries[-1][1]
        if len(entries) < size:
            state = self._state()
        kept = None if state is None else pickle.dumps({"version": number + 1, **state})
        seeder(owner.seed)(*self._lane, "collate", number, virtual_rank)
        return Pulled(owner.collate(samples if owner.batch_size is not None else samples[0]), kept, False)

    def _fill(self, virtual_rank: int) -> None:
        """Read until the EST's next mini-batch is there, or the stream is over."""
        if self._error is not None:
            raise self._error  # else it would look as if the stream were over
        waiting = self._waiting_by_rank[virtual_rank]
        if len(waiting) >= self._size or self._is_over:
            return
        try:
            if self._share is None:
                self._share = self._opened()
                self._samples = iter(self._share)
            if self._rng is not None:
                restore(self._rng, CPU)
            while len(waiting) < self._size and not self._is_over:
                self._advance(self._share)
        except Exception as error:
            self._error = error
            if hasattr(error, "add_note"):
                at = 0 if self._share is None else self._share.position
                error.add_note(
                    f"while reading sample {at} of the stream of {type(self._owner.dataset).__name__} (epoch "
                    f"{self._pull.epoch}, virtual rank {virtual_rank})"
                )
            raise

    def _opened(self) -> Share:
        owner, pull = self._owner, self._pull
        # also where it goes on: what it draws when it is opened is the same everywhere
        seeder(owner.seed)(*self._lane, *([] if self._is_dealt else [self._first]))
        self._rng = None if self._saved is None else self._saved["rng"]
        share = Share(
            owner.dataset,
            0 if self._is_dealt else self._first,
            1 if self._is_dealt else owner.num_ests,
            pull.epoch if pull.is_told else None,
            self._saved,
        )
        share.begin()
        return share

    def _advance(self, share: Share) -> None:
        sample = next(self._samples, _END)
        if sample is _END:
            self._is_over = True
            return
        at = share.position - 1
        rank = at % self._every if self._is_dealt else self._first
        if at < self._position_by_rank.get(rank, share.position):
            return  # others have it, or have had it
        is_full = (at // self._every + 1) % self._size == 0
        if is_full:
            self._rng = capture(CPU)
        self._waiting_by_rank[rank].append((sample, self._state() if is_full else None))

    def _state(self) -> dict[str, Any] | None:
        assert self._share is not None
        state = self._share.state()
        return None if state is None else {"rng": self._rng, **state}

    def warn_of_changes(self) -> None:
        """Say so if the dataset has changed itself, which the next epoch will not see."""
        if self._share is not None:
            self._share.warn_of_changes()


_END = object()


@contextmanager
def _alone() -> Iterator[None]:
    """Let ``get_worker_info()`` say that there are no data workers; the worker itself is left as it was.

    A stream is dealt out to ESTs here, and is read by one process from its first sample to its last: a dataset that
    dealt it out again, to data workers, would lose samples, and other ones with every ``num_workers``.
    """
    worker: Any = torchs_worker
    info = worker._worker_info
    outside = (capture(CPU), torch.get_num_threads()) if info is None else None
    worker._worker_info = None
    if outside is not None:
        torch.set_num_threads(1)  # as in data workers
    try:
        yield
    finally:
        worker._worker_info = info
        if outside is not None:
            restore(outside[0], CPU)
            torch.set_num_threads(outside[1])
