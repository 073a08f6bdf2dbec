"""Plain PyTorch DistributedDataParallel programs, one real gloo process for each rank: what EasyScale must equal.

Runs in the members of a fleet in which ``easyscale`` is never imported, which every run asserts.
"""

import hashlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from consistency.recipes import RECIPES, SEED, Data, Recipe, discriminator, generator

Steps = list[dict[str, str]]


def train(
    rank: int, size: int, store_path: str, program: str, epochs: int, options: Mapping[str, Any], hook: str | None
) -> dict[str, Any]:
    """Train ``program`` as rank ``rank`` of ``size``.

    Returns:
        ``steps``: rank 0's tensors (name -> hash) after every step; ``losses``: this rank's own.
    """
    assert not [name for name in sys.modules if name.split(".")[0] == "easyscale"]
    return run(rank, size, store_path, program, epochs, options, hook)


def run(
    rank: int, size: int, store_path: str, program: str, epochs: int, options: Mapping[str, Any], hook: str | None
) -> dict[str, Any]:
    """The same, whatever else this process has loaded."""
    with _group(rank, size, store_path):
        steps, losses = PROGRAMS.get(program, plain)(RECIPES.get(program), epochs, Wrapper(options, hook))
    return {"steps": steps, "losses": losses}


class Wrapper:
    """Wraps modules as a user of DDP does; afterwards each rank draws random numbers of its own."""

    def __init__(self, options: Mapping[str, Any], hook: str | None) -> None:
        self._options = options
        self._hook = hook

    def __call__(self, *modules: nn.Module, **more: Any) -> list[DistributedDataParallel]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames broadcast_buffers
            wrapped = [DistributedDataParallel(module, **{**more, **self._options}) for module in modules]
        for module in wrapped:
            if self._hook is not None:
                module.register_comm_hook(None, HOOKS[self._hook])
        seed_everything(SEED + dist.get_rank())
        return wrapped


def plain(recipe: Recipe, epochs: int, wrap: Wrapper) -> tuple[Steps, list[float]]:
    """An ordinary DDP script."""
    seed_everything(SEED)
    module = recipe.model()
    (model,) = wrap(module, **recipe.options)
    optimizer = recipe.optimizer(model)
    lr_scheduler = recipe.lr_scheduler(optimizer) if recipe.lr_scheduler else None
    loader = rank_loader(recipe.data)
    steps, losses = [], []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            loss = recipe.loss(model, batch, dist.get_rank(), len(steps))
            loss.backward()
            if recipe.max_norm:
                nn.utils.clip_grad_norm_(model.parameters(), recipe.max_norm)
            optimizer.step()
            if (len(steps) + 1) % recipe.zero_every == 0:
                optimizer.zero_grad(set_to_none=recipe.set_to_none)
            if lr_scheduler:
                lr_scheduler.step()
            losses.append(loss.item())
            steps.append(fingerprint([module], [optimizer]))
    return steps, losses


def gan(_: None, epochs: int, wrap: Wrapper) -> tuple[Steps, list[float]]:
    """Two updates in a step, the second one through the model that the first has updated."""
    seed_everything(SEED)
    g, d = generator(), discriminator()
    ddp_g, ddp_d = wrap(g, d)
    optimizer_g = torch.optim.Adam(ddp_g.parameters(), lr=0.02)
    optimizer_d = torch.optim.Adam(ddp_d.parameters(), lr=0.01)
    loader = rank_loader(RECIPES["scalars"].data)
    steps, losses = [], []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for real, _ in loader:
            with torch.no_grad():
                fake = ddp_g(torch.randn(len(real), 3))
            score = ddp_d(torch.cat([real, fake]))
            truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
            F.binary_cross_entropy_with_logits(score, truth).backward()
            optimizer_d.step()
            optimizer_d.zero_grad()

            score = ddp_d(ddp_g(torch.randn(len(real), 3)))
            loss = F.binary_cross_entropy_with_logits(score, torch.ones(len(real), 1))
            loss.backward()
            optimizer_g.step()
            optimizer_g.zero_grad()
            optimizer_d.zero_grad()
            losses.append(loss.item())
            steps.append(fingerprint([g, d], [optimizer_g, optimizer_d]))
    return steps, losses


def uneven_gan(_: None, epochs: int, wrap: Wrapper) -> tuple[Steps, list[float]]:
    """The discriminator is updated once or twice in a step, the generator not in every step."""
    seed_everything(SEED)
    g, d = generator(), discriminator()
    ddp_g, ddp_d = wrap(g, d)
    optimizer_g = torch.optim.Adam(ddp_g.parameters(), lr=0.02)
    optimizer_d = torch.optim.Adam(ddp_d.parameters(), lr=0.01)
    loader = rank_loader(RECIPES["scalars"].data)
    steps: Steps = []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for real, _ in loader:
            for _ in range(1 + len(steps) % 2):
                with torch.no_grad():
                    fake = ddp_g(torch.randn(len(real), 3))
                both = ddp_d(torch.cat([fake, real]))
                (both[: len(real)] - both[len(real) :]).mean().backward()
                optimizer_d.step()
                optimizer_d.zero_grad()
            if len(steps) % 3:
                (-ddp_d(ddp_g(torch.randn(len(real), 3))).mean()).backward()
                optimizer_g.step()
                optimizer_g.zero_grad()
                optimizer_d.zero_grad()
            steps.append(fingerprint([g, d], [optimizer_g, optimizer_d]))
    return steps, [0.0] * len(steps)


def two_losses(_: None, epochs: int, wrap: Wrapper) -> tuple[Steps, list[float]]:
    """Two backward passes for one mini-batch; the gradients travel after the second one."""
    recipe = RECIPES["scalars"]
    seed_everything(SEED)
    module = recipe.model()
    (model,) = wrap(module)
    optimizer = recipe.optimizer(model)
    loader = rank_loader(recipe.data)
    steps, losses = [], []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            with model.no_sync():
                F.mse_loss(model(x), y).backward()
            loss = model(-x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            steps.append(fingerprint([module], [optimizer]))
    return steps, losses


def accumulated(_: None, epochs: int, wrap: Wrapper) -> tuple[Steps, list[float]]:
    """Two mini-batches for each update, as DDP's ``no_sync`` does it; an odd one at the end is an update alone."""
    recipe = RECIPES["cnn"]
    seed_everything(SEED)
    module = recipe.model()
    (model,) = wrap(module)
    optimizer = recipe.optimizer(model)
    loader = rank_loader(recipe.data)
    steps, losses = [], []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):
            is_last = index % 2 == 1 or index == len(loader) - 1
            with nullcontext() if is_last else model.no_sync():
                loss = F.cross_entropy(model(x), y) / 2
                loss.backward()
            losses.append(loss.item())
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
                steps.append(fingerprint([module], [optimizer]))
    return steps, losses


PROGRAMS: dict[str, Callable[..., tuple[Steps, list[float]]]] = {
    "gan": gan,
    "uneven_gan": uneven_gan,
    "two_losses": two_losses,
    "accumulated": accumulated,
}


def rank_loader(data: Data) -> DataLoader[Any]:
    """This rank's share of the data, as every DDP tutorial has it."""
    dataset = data.dataset()
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, shuffle=data.shuffle, seed=SEED)
    return DataLoader(
        dataset,
        data.batch_size,
        sampler=sampler,
        drop_last=data.drop_last,
        num_workers=data.num_workers,
        persistent_workers=data.persistent_workers,
        generator=None if data.generator_seed is None else torch.Generator().manual_seed(data.generator_seed),
    )


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def _group(rank: int, size: int, store_path: str) -> Iterator[None]:
    store = dist.FileStore(store_path, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    try:
        yield
    finally:
        dist.destroy_process_group()


def tree_sum(parts: list[Tensor]) -> Tensor:
    """Add in the order of a binary tree that splits at the largest power of two below its length."""
    if len(parts) == 1:
        return parts[0]
    middle = 1
    while 2 * middle < len(parts):
        middle *= 2
    return tree_sum(parts[:middle]) + tree_sum(parts[middle:])


def own_tree_hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """A communication hook that adds in tree order, written without a look at the product's."""
    mine = bucket.buffer()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(tree_sum(parts) * (1.0 / dist.get_world_size()))
    return future


HOOKS = {"tree": own_tree_hook}


def fingerprint(modules: list[nn.Module], optimizers: list[torch.optim.Optimizer]) -> dict[str, str]:
    """Hash of every parameter and buffer, and of all that the optimizers hold, under the names of a session's own."""
    hashes = {}
    for index, module in enumerate(modules):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            hashes[f"module{index}.{name}"] = bit_hash(tensor)
    for index, optimizer in enumerate(optimizers):
        saved = optimizer.state_dict()
        for key, entries in saved["state"].items():
            hashes.update((f"optimizer{index}.state.{key}.{name}", bit_hash(value)) for name, value in entries.items())
        for number, group in enumerate(saved["param_groups"]):
            hashes.update(
                (f"optimizer{index}.group.{number}.{name}", bit_hash(value))
                for name, value in _single_values(group)
                if not name.startswith("params")
            )
    return hashes


def _single_values(group: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in group.items():
        if isinstance(value, tuple | list):
            yield from ((f"{name}.{position}", item) for position, item in enumerate(value))
        else:
            yield name, value


def bit_hash(value: Any) -> str:
    """SHA-256 over dtype, shape and raw bytes of a tensor; of anything else over its ``repr``."""
    if not isinstance(value, Tensor):
        return hashlib.sha256(repr(value).encode()).hexdigest()
    content = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{value.dtype}|{tuple(value.shape)}|".encode() + content).hexdigest()
