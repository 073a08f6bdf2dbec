"""One EST's share of an iterable dataset, and its state. Runs in data worker processes, or in the worker.

A dataset that can be sharded (``shard(num_shards, index)``, or one of Hugging Face's) is asked for the EST's shard. Of
any other the EST takes every ``num_ests``-th sample: sample i of the stream goes to virtual rank ``i % num_ests``, as
with ``DistributedSampler``.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from easyscale.core.errors import RefusedError
from easyscale.train.context.rng import capture, restore
from easyscale.train.data.seeding import CPU


class Share(IterableDataset[Any]):
    """The samples of one EST in one epoch; iterate over it once.

    Args:
        dataset: the user's; every epoch begins with a copy of it.
        epoch: what its ``set_epoch`` is told; None leaves that to the script.
        saved: what ``state`` gave, to go on from there.
    """

    def __init__(
        self, dataset: Any, virtual_rank: int, num_ests: int, epoch: int | None, saved: dict[str, Any] | None = None
    ) -> None:
        self.dataset = _sharded(_copied(dataset), virtual_rank, num_ests)
        self._every = 1 if is_sharded(dataset) else num_ests
        self._first = 0 if is_sharded(dataset) else virtual_rank
        self._saved = saved
        self._iterator: Iterator[Any] | None = None
        self.position = 0 if saved is None else saved["position"]
        self._is_over = saved is not None and saved["is_over"]
        set_epoch = getattr(self.dataset, "set_epoch", None)
        if callable(set_epoch) and epoch is not None:
            set_epoch(epoch)
        self._plain = _plain_attributes(self.dataset)
        self._has_buffer = _has_buffer(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        if self._is_over:
            return
        self.begin()
        assert self._iterator is not None
        for sample in self._iterator:
            is_mine = self.position % self._every == self._first
            self.position += 1
            if is_mine:
                yield sample
        self._is_over = True

    def begin(self) -> None:
        """Open the stream: a state belongs to the iterator if it takes one, else to the dataset before it."""
        if self._iterator is not None or self._is_over:
            return
        if self._saved is None:
            self._iterator = iter(self.dataset)
            return
        state = copy.deepcopy(self._saved["dataset"])
        before = capture(CPU)  # what is drawn when a stream is opened was drawn when the epoch began
        if _is_stateful(self.dataset):
            self.dataset.load_state_dict(state)
            self._iterator = iter(self.dataset)
        else:
            iterator: Any = iter(self.dataset)
            iterator.load_state_dict(state)
            self._iterator = iterator
        restore(before, CPU)

    def state(self) -> dict[str, Any] | None:
        """What another share of the same rank needs to go on from here; None if the dataset cannot tell."""
        if self._iterator is None and self._is_over:
            return self._saved
        holder: Any = self.dataset if _is_stateful(self.dataset) else self._iterator
        if not _is_stateful(holder) or self._has_buffer:
            return None
        # a copy: the dataset may go on changing what it gave; at its end it tells where to begin anew
        return {"position": self.position, "dataset": copy.deepcopy(holder.state_dict()), "is_over": self._is_over}

    def warn_of_changes(self) -> None:
        """At its end, say so if the dataset has changed itself, which the next epoch will not see."""
        if _is_stateful(self.dataset):
            return
        now = _plain_attributes(self.dataset)
        names = [name for name in now if name not in self._plain or self._plain[name] != now[name]]
        if names:
            warnings.warn(
                f"the iterable dataset {type(self.dataset).__name__} changed its own {', '.join(sorted(names))} while "
                "it was read: every epoch begins with a copy of the dataset as the script has it, so the next epoch "
                "does not see that. Change it in the script, or in set_epoch",
                RuntimeWarning,
                stacklevel=2,
            )


def can_save(dataset: Any) -> bool:
    """Whether an iterable dataset follows the protocol of ``state_dict`` and ``load_state_dict`` (torchdata's)."""
    if _is_stateful(dataset):
        return not _has_buffer(dataset)
    if inspect.isgeneratorfunction(type(dataset).__iter__):
        return False
    return _is_stateful(iter(_copied(dataset)))


def how_to_save(dataset: Any) -> str:
    """What to do about a dataset that cannot."""
    if _has_buffer(dataset):
        return (
            "its state_dict() leaves out its shuffle buffer, so shuffle the rows beforehand, or only their shards "
            "(buffer_size=1)"
        )
    return "give it state_dict() and load_state_dict() (torchdata's protocol)"


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


def _has_buffer(dataset: Any) -> bool:
    """Whether it is one of Hugging Face's that shuffles samples in a buffer, which their ``state_dict`` leaves out."""
    if not _is_hugging_face(dataset):
        return False
    parts: list[Any] = [getattr(dataset, "_ex_iterable", None)]
    for part in parts:  # which grows
        if type(part).__name__ == "BufferShuffledExamplesIterable" and part.buffer_size > 1:
            return True
        if "ExamplesIterable" in type(part).__name__:
            for inner in vars(part).values():
                parts.extend(inner if isinstance(inner, list | tuple) else [inner])
    return False


def _plain_attributes(dataset: Any) -> dict[str, Any]:
    values = getattr(dataset, "__dict__", {})
    return {name: value for name, value in values.items() if isinstance(value, int | float | str | None)}


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
