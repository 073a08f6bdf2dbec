"""Makes a user's ``DataLoader`` elastic, or refuses it. Runs in the worker."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from easyscale.core.errors import RefusedError
from easyscale.core.job import JobSpec
from easyscale.train.data.loader import ElasticLoader, LoaderHost
from easyscale.train.data.plan import LoaderOrder
from easyscale.train.data.pulling import PulledDataset
from easyscale.train.data.seeding import SeededDataset, seeder
from easyscale.train.data.share import can_save, how_to_save
from easyscale.train.data.supply import Supply


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
    _check_own_ways(loader)
    order = LoaderOrder.of(loader, spec.num_ests, spec.seed)
    name = type(loader.dataset).__name__
    if order.is_stream and may_move and not can_save(loader.dataset):
        raise RefusedError(
            f"the iterable dataset {name} cannot save its position, but the job may rescale or write checkpoints: "
            f"{how_to_save(loader.dataset)}, or run it on a fixed number of workers"
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
    seed = int.from_bytes(seeder(spec.seed).material(7, "pool", number), "little")
    dataset = _by_key(loader, order, spec.seed)
    supply = Supply(loader, dataset, seed, replacements, is_batched=order.is_batched, records=may_move)
    return ElasticLoader(loader, order, number, spec, host, supply)


def _check_own_ways(loader: DataLoader[Any]) -> None:
    for name in ("__iter__", "_get_iterator", "__len__"):
        home = next(cls for cls in type(loader).__mro__ if name in vars(cls)).__module__
        if not home.startswith(("torch.", "torchdata.")):
            raise RefusedError(
                f"{type(loader).__name__} is a DataLoader with its own {name}, which an elastic loader would not use: "
                "give session.prepare a plain DataLoader, and do in collate_fn or in the loop what it does"
            )
    if getattr(loader, "next_iter_state", None) is not None:
        raise RefusedError(
            f"load_state_dict was called on this {type(loader).__name__} before session.prepare: call it on the loader "
            "that session.prepare returns, with the state of a prepared loader"
        )


def _by_key(base: DataLoader[Any], order: LoaderOrder, seed: int) -> SeededDataset | PulledDataset:
    """The user's dataset as one that gives whole mini-batches by key."""
    if not order.is_stream:
        return SeededDataset(base.dataset, base.collate_fn, seed, is_batched=order.is_batched)
    size = order.batch_size if order.is_batched else None
    return PulledDataset(
        base.dataset, base.collate_fn, seed, order.num_ests, batch_size=size, drop_last=order.drop_last
    )
