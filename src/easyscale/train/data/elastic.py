"""Makes a user's ``DataLoader`` elastic, or refuses it. Runs in the worker."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from easyscale.core.errors import RefusedError
from easyscale.core.job import JobSpec
from easyscale.train.data.loader import ElasticLoader, LoaderHost
from easyscale.train.data.plan import LoaderOrder
from easyscale.train.data.pulling import PulledDataset
from easyscale.train.data.seeding import SeededDataset
from easyscale.train.data.share import can_save


def elastic(
    loader: DataLoader[Any], spec: JobSpec, number: int, host: LoaderHost, replacements: int, *, may_move: bool
) -> ElasticLoader:
    """Make a user's ``DataLoader`` elastic.

    Args:
        number: of the loader in the job.
        replacements: how many data workers that ended may be replaced.
        may_move: whether ESTs may come to other workers, or to a checkpoint, while the job runs.

    Raises:
        RefusedError: the loader's mini-batches cannot be dealt out to virtual ranks, or not go on elsewhere.
    """
    order = LoaderOrder.of(loader, spec.num_ests, spec.seed)
    name = type(loader.dataset).__name__
    if order.is_stream and may_move and not can_save(loader.dataset):
        raise RefusedError(
            f"the iterable dataset {name} cannot save its position, but the job may rescale or write checkpoints: give "
            "it state_dict() and load_state_dict() (torchdata's protocol), or run it on a fixed number of workers"
        )
    if order.is_stream and spec.rng == "ddp" and loader.num_workers and loader.persistent_workers:
        raise RefusedError(
            f'with rng="ddp" the iterable dataset {name} is copied for each epoch, which persistent data workers would '
            'not see: use persistent_workers=False, or rng="stepwise"'
        )
    if order.is_stream and may_move and spec.rng == "ddp" and loader.num_workers:
        raise RefusedError(
            f'with rng="ddp" the position of the iterable dataset {name} cannot be kept in {loader.num_workers} data '
            'workers, but the job may rescale or write checkpoints: use num_workers=0, or rng="stepwise"'
        )
    dataset = _by_key(loader, order, spec.seed)
    return ElasticLoader(loader, order, number, spec, host, dataset, replacements, may_move=may_move)


def _by_key(base: DataLoader[Any], order: LoaderOrder, seed: int) -> SeededDataset | PulledDataset:
    """The user's dataset as one that gives whole mini-batches by key."""
    if not order.is_stream:
        return SeededDataset(base.dataset, base.collate_fn, seed, is_batched=order.is_batched)
    size = order.batch_size if order.is_batched else None
    return PulledDataset(
        base.dataset, base.collate_fn, seed, order.num_ests, batch_size=size, drop_last=order.drop_last
    )
