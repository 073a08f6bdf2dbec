"""A user's ``DataLoader`` over other mini-batches, with everything else as the user said. Runs in the worker."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from easyscale.train.data.forking import sure_context


class Batches(Sampler[Any]):
    """A sampler over what it is given, also over an iterator; it may be given something else before an epoch."""

    def __init__(self, batches: Any = ()) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def rebuild(
    base: DataLoader[Any],
    dataset: Any,
    batches: Batches | None,
    *,
    collate: Callable[[Any], Any] | None = None,
    generator: torch.Generator | None = None,
    is_batched: bool = True,
    num_workers: int | None = None,
    persistent_workers: bool | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
) -> DataLoader[Any]:
    """``base`` over other mini-batches.

    Args:
        batches: None leaves order and size of mini-batches to an iterable dataset.
        is_batched: whether ``batches`` gives lists of samples; else single ones.
        generator: as in ``DataLoader``: None draws the seed of data workers from the process's generator.
    """
    workers = base.num_workers if num_workers is None else num_workers
    options: dict[str, Any] = {}
    if workers:
        options = {
            "prefetch_factor": base.prefetch_factor,
            "timeout": base.timeout,
            "persistent_workers": base.persistent_workers if persistent_workers is None else persistent_workers,
            "worker_init_fn": worker_init_fn or base.worker_init_fn,
            "multiprocessing_context": sure_context(base.multiprocessing_context),
        }
    if batches is None:
        options.update(batch_size=base.batch_size, drop_last=base.drop_last)
    else:
        options.update({"batch_sampler": batches} if is_batched else {"sampler": batches, "batch_size": None})
    with warnings.catch_warnings():
        # what DataLoader says about the number of workers it has said already, when the user made `base`
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        return DataLoader(
            dataset,
            num_workers=workers,
            collate_fn=collate or base.collate_fn,
            pin_memory=base.pin_memory,
            generator=generator,
            **options,
        )


def end_workers(batches: Iterator[Any] | None) -> None:
    """End the data workers behind an iterator of a ``DataLoader``.

    Its last reference ends them too, but an exception's traceback may hold one for long, and the garbage collector
    takes their queues away before they are told, so that each is waited for in vain.
    """
    shut_down = getattr(batches, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()
