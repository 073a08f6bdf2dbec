"""EasyScale scripts, written as a user would write them, and the code around them that watches every step.

Runs in the members of a fleet. Most scripts train a recipe, in the two-loop form or the drop-in form; the others are
what only one form can say, or what needs a line of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, WeightedRandomSampler

import easyscale
from consistency import loading, odd
from consistency.recipes import (
    RECIPES,
    SEED,
    Data,
    Images,
    Points,
    Recipe,
    discriminator,
    generator,
    scalars,
)
from easyscale.core.placement import Placement
from easyscale.train import runtime
from easyscale.train.session import current_session

Options = Mapping[str, Any]


@dataclass
class Watcher(runtime.NullObserver):
    """Notes every tensor's hash after every global step, and what was logged in it."""

    steps: list[dict[str, str]] = field(default_factory=list)
    scalars: list[dict[int, dict[str, float]]] = field(default_factory=list)

    def step(self, record: runtime.StepRecord) -> None:
        assert record.global_step == len(self.steps)
        self.steps.append(record.fingerprint())
        self.scalars.append({rank: dict(values) for rank, values in record.scalars.items()})


def run(
    worker_rank: int,
    placement: str,
    store_path: str,
    case: str,
    form: str,
    epochs: int,
    overrides: Mapping[str, Any],
    options: Options,
    may_move: bool = False,
) -> dict[str, Any]:
    """Be one worker of a job that runs ``case``.

    Returns:
        ``steps`` and ``scalars`` of ``Watcher``, what the script ``returned``, ``bytes_sent``.
    """
    placed = Placement.parse(placement)
    watcher = Watcher()
    before, threads = surroundings(), set(threading.enumerate())
    runtime.install(
        runtime.WorkerContext(
            worker_rank=worker_rank,
            num_workers=placed.num_workers,
            placement=placed,
            store_path=store_path,
            overrides=overrides,
            is_num_ests_explicit=True,
            may_move=may_move,
            observer=watcher,
        )
    )
    try:
        returned = script_of(case, form)(epochs, options)
        session = current_session()
        session.finish()
        bytes_sent = session.bytes_sent
    finally:
        if current_session() is not None:
            current_session().close()
        runtime.install(None)
    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=2.0)  # those of a loader's queues end by themselves, but not at once
    assert_unchanged(before, surroundings())
    assert not multiprocessing.active_children(), "the session left data workers"
    return {"steps": watcher.steps, "scalars": watcher.scalars, "returned": returned, "bytes_sent": bytes_sent}


def script_of(case: str, form: str) -> Callable[[int, Options], Any]:
    """The script of a case in a form."""
    special = {"two_loop": TWO_LOOP, "drop_in": DROP_IN}[form].get(case)
    if special is not None:
        return special
    return lambda epochs, options: {"two_loop": two_loop, "drop_in": drop_in}[form](RECIPES[case], epochs, options)


def two_loop(recipe: Recipe, epochs: int, options: Options) -> None:
    """The form that says what is true: inner body for each EST, outer body for each global step."""
    session = easyscale.session(seed=SEED)
    model, optimizer, loader, lr_scheduler = _prepared(session, recipe, options)
    for _ in session.epochs(epochs):
        for step in session.steps(loader):
            for batch in step:
                loss = recipe.loss(model, batch, session.virtual_rank, session.global_step)
                loss.backward()
                session.log(loss=loss)
            if recipe.max_norm:
                nn.utils.clip_grad_norm_(model.parameters(), recipe.max_norm)
            optimizer.step()
            if (session.global_step + 1) % recipe.zero_every == 0:
                optimizer.zero_grad(set_to_none=recipe.set_to_none)
            if lr_scheduler:
                lr_scheduler.step()


def drop_in(recipe: Recipe, epochs: int, options: Options) -> None:
    """An existing loop, unchanged but for ``prepare``."""
    session = easyscale.session(seed=SEED)
    model, optimizer, loader, lr_scheduler = _prepared(session, recipe, options)
    for _ in session.epochs(epochs):
        for batch in loader:
            if session.global_step % recipe.zero_every == 0:
                optimizer.zero_grad(set_to_none=recipe.set_to_none)
            loss = recipe.loss(model, batch, session.virtual_rank, session.global_step)
            loss.backward()
            session.log(loss=loss)
            if recipe.max_norm:
                nn.utils.clip_grad_norm_(model.parameters(), recipe.max_norm)
            optimizer.step()
            if lr_scheduler:
                lr_scheduler.step()


def _prepared(session: Any, recipe: Recipe, options: Options) -> tuple[Any, Any, Any, Any]:
    model = recipe.model()
    optimizer = recipe.optimizer(model)
    objects = [model, optimizer, loader_of(recipe.data)]
    if recipe.lr_scheduler:
        objects.append(recipe.lr_scheduler(optimizer))
    own = {name: value for name, value in recipe.options.items() if name != "find_unused_parameters"}
    return (*session.prepare(*objects, **{**own, **options}), None)[:4]


def loader_of(data: Data) -> DataLoader[Any]:
    """The loader of a script that knows of one process only."""
    return DataLoader(
        data.dataset(),
        batch_size=data.batch_size,
        shuffle=data.shuffle,
        drop_last=data.drop_last,
        num_workers=data.num_workers,
        persistent_workers=data.persistent_workers,
        generator=None if data.generator_seed is None else torch.Generator().manual_seed(data.generator_seed),
    )


def gan(epochs: int, options: Options) -> None:
    """Two updates in a step, the second one through the model that the first has updated."""
    session = easyscale.session(seed=SEED)
    g, d = generator(), discriminator()
    optimizer_g = torch.optim.Adam(g.parameters(), lr=0.02)
    optimizer_d = torch.optim.Adam(d.parameters(), lr=0.01)
    loader = loader_of(RECIPES["scalars"].data)
    g, d, optimizer_g, optimizer_d, loader = session.prepare(g, d, optimizer_g, optimizer_d, loader, **options)
    for _ in session.epochs(epochs):
        for step in session.steps(loader):
            for real, _ in step:
                with torch.no_grad():
                    fake = g(torch.randn(len(real), 3))
                score = d(torch.cat([real, fake]))
                truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
                F.binary_cross_entropy_with_logits(score, truth).backward()
            optimizer_d.step()
            optimizer_d.zero_grad()
            for real, _ in step:
                score = d(g(torch.randn(len(real), 3)))
                loss = F.binary_cross_entropy_with_logits(score, torch.ones(len(real), 1))
                loss.backward()
                session.log(loss=loss)
            optimizer_g.step()
            optimizer_g.zero_grad()
            optimizer_d.zero_grad()


def uneven_gan(epochs: int, options: Options) -> None:
    """The discriminator is updated once or twice in a step, the generator not in every step."""
    session = easyscale.session(seed=SEED)
    g, d = generator(), discriminator()
    optimizer_g = torch.optim.Adam(g.parameters(), lr=0.02)
    optimizer_d = torch.optim.Adam(d.parameters(), lr=0.01)
    loader = loader_of(RECIPES["scalars"].data)
    g, d, optimizer_g, optimizer_d, loader = session.prepare(g, d, optimizer_g, optimizer_d, loader, **options)
    for _ in session.epochs(epochs):
        for step in session.steps(loader):
            for _ in range(1 + session.global_step % 2):
                for real, _ in step:
                    with torch.no_grad():
                        fake = g(torch.randn(len(real), 3))
                    both = d(torch.cat([fake, real]))
                    (both[: len(real)] - both[len(real) :]).mean().backward()
                optimizer_d.step()
                optimizer_d.zero_grad()
            if session.global_step % 3:
                for real, _ in step:
                    (-d(g(torch.randn(len(real), 3))).mean()).backward()
                optimizer_g.step()
                optimizer_g.zero_grad()
                optimizer_d.zero_grad()


def lazy(epochs: int, options: Options) -> None:
    """Some ESTs run no backward in some steps, and in some steps none does."""
    session = easyscale.session(seed=SEED)
    model, optimizer, loader, _ = _prepared(session, RECIPES["scalars"], options)
    for _ in session.epochs(epochs):
        for step in session.steps(loader):
            for x, y in step:
                loss = F.mse_loss(model(x), y)
                if session.global_step % 3 and (session.virtual_rank + session.global_step) % 2:
                    loss.backward()
                session.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


def gan_drop_in(epochs: int, options: Options) -> None:
    """What the drop-in form must refuse: an update, then a backward through it, in one mini-batch's turn."""
    session = easyscale.session(seed=SEED)
    g, d = generator(), discriminator()
    optimizer_g = torch.optim.Adam(g.parameters(), lr=0.02)
    optimizer_d = torch.optim.Adam(d.parameters(), lr=0.01)
    loader = loader_of(RECIPES["scalars"].data)
    g, d, optimizer_g, optimizer_d, loader = session.prepare(g, d, optimizer_g, optimizer_d, loader, **options)
    for real, _ in loader:
        score = d(torch.cat([real, g(torch.randn(len(real), 3)).detach()]))
        truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        optimizer_d.zero_grad()
        F.binary_cross_entropy_with_logits(score, truth).backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        score = d(g(torch.randn(len(real), 3)))
        F.binary_cross_entropy_with_logits(score, torch.ones(len(real), 1)).backward()
        optimizer_g.step()


def two_losses(epochs: int, options: Options) -> None:
    """Two backward passes for one mini-batch."""
    session = easyscale.session(seed=SEED)
    model, optimizer, loader, _ = _prepared(session, RECIPES["scalars"], options)
    for _ in session.epochs(epochs):
        for step in session.steps(loader):
            for x, y in step:
                F.mse_loss(model(x), y).backward()
                loss = model(-x).square().mean()
                loss.backward()
                session.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


def accumulated(epochs: int, options: Options) -> None:
    """Two mini-batches of each EST for each update."""
    session = easyscale.session(seed=SEED)
    recipe = RECIPES["cnn"]
    model, optimizer, loader = session.prepare(*_model_and_optimizer(recipe), loader_of(recipe.data), **options)
    for _ in session.epochs(epochs):
        for step in session.steps(loader, accumulate=2):
            for x, y in step:
                loss = F.cross_entropy(model(x), y) / 2
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def _model_and_optimizer(recipe: Recipe) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = recipe.model()
    return model, recipe.optimizer(model)


def weighted(epochs: int, options: Options) -> None:
    """A sampler that draws random numbers of its own."""
    session = easyscale.session(seed=SEED)
    images = Images()
    sampler = WeightedRandomSampler([1.0 + index % 5 for index in range(len(images))], len(images))
    model, optimizer = _model_and_optimizer(RECIPES["cnn"])
    loader = DataLoader(images, batch_size=3, sampler=sampler)
    model, optimizer, loader = session.prepare(model, optimizer, loader, **options)
    for _ in session.epochs(epochs):
        for step in session.steps(loader):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                session.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


def draws(epochs: int, options: Options) -> list[float]:
    """Steps without a loader: every number comes from an EST's generators, or from the job's between the steps."""
    session = easyscale.session(seed=SEED)
    model, optimizer = session.prepare(*_model_and_optimizer(RECIPES["scalars"]), **options)
    outside = []
    for step in session.steps(3 * epochs):
        for _ in step:
            x = torch.randn(4, 6) + random.gauss(0, 1) + float(np.random.standard_normal())
            loss = model(x).square().mean()
            loss.backward()
            session.log(torch=torch.rand(()), numpy=np.random.random(), python=random.random())
        outside += [torch.rand(()).item(), float(np.random.random()), random.random()]
        optimizer.step()
        optimizer.zero_grad()
    return outside


def evaluated(epochs: int, options: Options) -> list[float]:
    """Evaluates between epochs, drawing random numbers there too; the training must not notice."""
    session = easyscale.session(seed=SEED)
    recipe = RECIPES["cnn"]
    held_out = DataLoader(Images(13, augment=True), batch_size=4)
    model, optimizer, loader, held_out = session.prepare(
        *_model_and_optimizer(recipe), loader_of(recipe.data), held_out, **options
    )
    results = []
    for _ in session.epochs(epochs):
        loss_by_rank = {}
        for step in session.steps(loader):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                loss_by_rank[session.virtual_rank] = loss.item()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        correct = seen = 0
        with torch.no_grad():
            for x, y in held_out:
                correct += int((model(x).argmax(1) == y).sum())
                seen += len(y)
        model.train()
        results += [session.sum(loss_by_rank), session.sum(correct), session.sum(seen), torch.rand(()).item()]
    return results


def mixed_precision(epochs: int, options: Options) -> list[float]:
    """autocast and a GradScaler whose first steps overflow, so that it skips them."""
    session = easyscale.session(seed=SEED)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=2.0**-40, growth_interval=3)
    model, optimizer = _model_and_optimizer(RECIPES["transformer"])
    loader = loader_of(RECIPES["transformer"].data)
    model, optimizer, loader, scaler = session.prepare(model, optimizer, loader, scaler, **options)
    scales = []
    for _ in session.epochs(epochs):
        for step in session.steps(loader):
            for x, y in step:
                with torch.autocast("cpu", torch.bfloat16):
                    loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
                scaler.scale(loss).backward()
                session.log(loss=loss)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
    return scales


def mixed_precision_drop_in(epochs: int, options: Options) -> list[float]:
    session = easyscale.session(seed=SEED)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=2.0**-40, growth_interval=3)
    model, optimizer = _model_and_optimizer(RECIPES["transformer"])
    loader = loader_of(RECIPES["transformer"].data)
    model, optimizer, loader, scaler = session.prepare(model, optimizer, loader, scaler, **options)
    scales = []
    for _ in session.epochs(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
            scaler.scale(loss).backward()
            session.log(loss=loss)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            if session.sync_gradients:
                scales.append(scaler.get_scale())
    return scales


def averaged_model(epochs: int, options: Options) -> str:
    """An exponential moving average of the model, beside it."""
    session = easyscale.session(seed=SEED)
    model, optimizer = _model_and_optimizer(RECIPES["scalars"])
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loader = loader_of(RECIPES["scalars"].data)
    model, optimizer, loader, ema = session.prepare(model, optimizer, loader, ema, **options)
    for _ in session.epochs(epochs):
        for step in session.steps(loader):
            for x, y in step:
                F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            ema.update_parameters(model)
    return _bits_of(ema)


def averaged_model_drop_in(epochs: int, options: Options) -> str:
    session = easyscale.session(seed=SEED)
    model, optimizer = _model_and_optimizer(RECIPES["scalars"])
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loader = loader_of(RECIPES["scalars"].data)
    model, optimizer, loader, ema = session.prepare(model, optimizer, loader, ema, **options)
    for _ in session.epochs(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            ema.update_parameters(model)
    return _bits_of(ema)


def _bits_of(module: nn.Module) -> str:
    return "".join(tensor.numpy().tobytes().hex() for tensor in module.state_dict().values())


def two_models(epochs: int, options: Options) -> None:
    """Two models and two optimizers that step side by side after one backward."""
    session = easyscale.session(seed=SEED)
    body, head = scalars(), nn.Linear(2, 2)
    optimizers = torch.optim.Adam(body.parameters(), lr=0.01), torch.optim.SGD(head.parameters(), lr=0.1)
    loader = loader_of(Data(Points))
    body, head, adam, sgd, loader = session.prepare(body, head, *optimizers, loader, **options)
    for _ in session.epochs(epochs):
        for step in session.steps(loader):
            for x, y in step:
                loss = F.mse_loss(head(body(x)), y)
                loss.backward()
                session.log(loss=loss)
            for optimizer in (adam, sgd):
                optimizer.step()
                optimizer.zero_grad()


def two_models_drop_in(epochs: int, options: Options) -> None:
    session = easyscale.session(seed=SEED)
    body, head = scalars(), nn.Linear(2, 2)
    optimizers = torch.optim.Adam(body.parameters(), lr=0.01), torch.optim.SGD(head.parameters(), lr=0.1)
    loader = loader_of(Data(Points))
    body, head, adam, sgd, loader = session.prepare(body, head, *optimizers, loader, **options)
    for _ in session.epochs(epochs):
        for x, y in loader:
            adam.zero_grad()
            sgd.zero_grad()
            loss = F.mse_loss(head(body(x)), y)
            loss.backward()
            session.log(loss=loss)
            adam.step()
            sgd.step()


def traffic(epochs: int, options: Options) -> int:
    """A model large enough for padding and flags not to count: its number of parameters is returned."""
    session = easyscale.session(seed=SEED)
    model = nn.Sequential(nn.Linear(6, 400), nn.ReLU(), nn.Linear(400, 250), nn.ReLU(), nn.Linear(250, 2))
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    for step in session.steps(3 * epochs):
        for _ in step:
            model(torch.randn(2, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return sum(param.numel() for param in model.parameters())


TWO_LOOP: dict[str, Callable[[int, Options], Any]] = {
    "gan": gan,
    "uneven_gan": uneven_gan,
    "lazy": lazy,
    "two_losses": two_losses,
    "accumulated": accumulated,
    "weighted": weighted,
    "draws": draws,
    "evaluated": evaluated,
    "mixed_precision": mixed_precision,
    "averaged_model": averaged_model,
    "two_models": two_models,
    "traffic": traffic,
    **odd.SCRIPTS,
    **loading.SCRIPTS,
}
DROP_IN: dict[str, Callable[[int, Options], Any]] = {
    "gan": gan_drop_in,
    "mixed_precision": mixed_precision_drop_in,
    "averaged_model": averaged_model_drop_in,
    "two_models": two_models_drop_in,
    **loading.FLAT,
}


def surroundings() -> dict[str, Any]:
    """What a session may change while it is open."""
    return {
        "random numbers of torch": torch.get_rng_state().numpy().tobytes(),
        "random numbers of python": random.getstate(),
        "random numbers of numpy": [
            part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()
        ],
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "fill uninitialized memory": torch.utils.deterministic.fill_uninitialized_memory,
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "intra-op threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "process group": dist.is_initialized(),
        "environment": dict(os.environ),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "sockets": sorted(_sockets()),
    }


def _sockets() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # the descriptor that lists the folder
            continue
        if target.startswith("socket:"):
            found.append(target)
    return found


def assert_unchanged(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    changed = [name for name in before if before[name] != after[name]]
    assert not changed, f"the session left changed: {changed}"
