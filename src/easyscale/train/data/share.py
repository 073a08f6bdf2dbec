"""One EST's share of an iterable dataset, and its state. Runs in data worker processes, or in the worker.

A dataset that can be sharded (``shard(num_shards, index)``, or one of Hugging Face's) is asked for the EST's shard. Of
any other the EST takes every ``num_ests``-th sample: sample i of the stream goes to virtual rank ``i % num_ests``, as
with ``DistributedSampler``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from easyscale.core.errors import RefusedError


class Share(IterableDataset[Any]):
    """The samples of one EST in one epoch; iterate over it once.

    Args:
        dataset: the user's; every epoch begins with a copy of it.
        saved: what ``state`` gave, to go on from there.
    """

    def __init__(
        self, dataset: Any, virtual_rank: int, num_ests: int, epoch: int, saved: dict[str, Any] | None = None
    ) -> None:
        self._dataset = _sharded(_copied(dataset), virtual_rank, num_ests)
        self._every = 1 if is_sharded(dataset) else num_ests
        self._first = 0 if is_sharded(dataset) else virtual_rank
        self._saved = saved
        self._iterator: Iterator[Any] | None = None
        self.position = 0 if saved is None else saved["position"]
        self._is_over = saved is not None and saved["is_over"]
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        if self._is_over:
            return
        self._begin()
        assert self._iterator is not None
        for sample in self._iterator:
            is_mine = self.position % self._every == self._first
            self.position += 1
            if is_mine:
                yield sample
        self._is_over = True

    def _begin(self) -> None:
        """Open the stream: a state belongs to the iterator if it takes one, else to the dataset before it."""
        state = None if self._saved is None else copy.deepcopy(self._saved["dataset"])
        is_datasets = _is_stateful(self._dataset)
        if state is not None and is_datasets:
            self._dataset.load_state_dict(state)
        self._iterator = iter(self._dataset)
        if state is not None and not is_datasets:
            iterator: Any = self._iterator
            iterator.load_state_dict(state)

    def state(self) -> dict[str, Any] | None:
        """What another share of the same rank needs to go on from here; None if the dataset cannot tell."""
        if self._iterator is None and self._is_over:
            return self._saved
        holder: Any = self._dataset if _is_stateful(self._dataset) else self._iterator
        if not _is_stateful(holder):
            return None
        # a copy: the dataset may go on changing what it gave; at its end it tells where to begin anew
        return {"position": self.position, "dataset": copy.deepcopy(holder.state_dict()), "is_over": self._is_over}


def can_save(dataset: Any) -> bool:
    """Whether an iterable dataset follows the protocol of ``state_dict`` and ``load_state_dict`` (torchdata's)."""
    if _is_stateful(dataset):
        return True
    if inspect.isgeneratorfunction(type(dataset).__iter__):
        return False
    return _is_stateful(iter(_copied(dataset)))


def is_sharded(dataset: Any) -> bool:
    """Whether the dataset deals itself out."""
    return _is_hugging_face(dataset) or callable(getattr(dataset, "shard", None))


def _sharded(dataset: Any, virtual_rank: int, num_ests: int) -> Any:
    if _is_hugging_face(dataset):
        from datasets.distributed import split_dataset_by_node

        return split_dataset_by_node(dataset, rank=virtual_rank, world_size=num_ests)
    if is_sharded(dataset):
        return dataset.shard(num_shards=num_ests, index=virtual_rank)
    return dataset


def _is_hugging_face(dataset: Any) -> bool:
    return type(dataset).__module__.split(".")[0] == "datasets"


def _is_stateful(obj: Any) -> bool:
    return callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))


def _copied(dataset: Any) -> Any:
    try:
        return copy.deepcopy(dataset)
    except Exception as error:
        raise RefusedError(
            f"the iterable dataset {type(dataset).__name__} cannot be copied ({error}), but each EST needs one of its "
            "own: open files and connections in __iter__, not before"
        ) from error
