"""The objects of a job: modules, optimizers, loaders and what moves with them. Runs in the worker."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from easyscale.core.errors import RefusedError, UsageError
from easyscale.train import checks
from easyscale.train.data.elastic import elastic
from easyscale.train.data.loader import ElasticLoader, LoaderHost
from easyscale.train.digest import fingerprint_of, state_of
from easyscale.train.job import Job
from easyscale.train.optim import GateKeeper, Gates
from easyscale.train.reduce.layout import DdpOptions

_GATED: dict[type[Any], tuple[str, ...]] = {
    LRScheduler: ("step",),
    GradScaler: ("step", "update", "unscale_"),
    AveragedModel: ("update_parameters",),
}


class Prepared:
    """What ``session.prepare`` has taken so far.

    Args:
        job: the job as this process runs it.
        keeper: decides when gated methods act.

    Attributes:
        modules: the trained ones, and averaged models, in the order of ``prepare``.
        stateful: LR schedulers and gradient scalers.
    """

    def __init__(self, job: Job, keeper: GateKeeper) -> None:
        self._job = job
        self._gates = Gates(keeper)
        self._trained: list[nn.Module] = []
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.loaders: list[ElasticLoader] = []
        self.stateful: list[Any] = []
        self._signatures: list[str] = []
        self._averaged: set[int] = set()

    @property
    def is_training(self) -> bool:
        """Whether a loop over a loader trains: a module is in training mode and gradients are on.

        Raises:
            UsageError: gradients are off, but all modules are in training mode, so that each worker would write what
                its own part of the samples gives into their buffers.
        """
        if torch.is_grad_enabled():
            return any(module.training for module in self._trained)
        if self._trained and all(module.training and any(True for _ in module.buffers()) for module in self._trained):
            raise UsageError(
                "a prepared loader is iterated over without gradients while the model is in training mode, so its "
                "buffers (BatchNorm statistics) would follow the samples of each worker: call model.eval() to "
                "evaluate, or iterate over a loader that was not prepared, which is the same on every worker"
            )
        return False

    def settings(self) -> list[Any]:
        """Hyperparameters of all optimizers as they are now."""
        return [
            {
                key: float(value) if isinstance(value, torch.Tensor) else value
                for key, value in group.items()
                if key != "params"
            }
            for optimizer in self.optimizers
            for group in optimizer.param_groups
        ]

    def check_known(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that was given parameters which nobody averages.

        Raises:
            RefusedError: a parameter belongs to no prepared module, or came into one later.
        """
        if not all(id(param) in self._averaged for group in optimizer.param_groups for param in group["params"]):
            checks.check_optimizer(optimizer, self._trained)
            raise RefusedError(
                f"{type(optimizer).__name__} holds a parameter that came into a prepared model after "
                "session.prepare, so its gradients are not averaged: build the whole model before session.prepare"
            )

    def add(
        self, objects: tuple[Any, ...], options: DdpOptions, host: LoaderHost, replacements: int
    ) -> tuple[Any, ...]:
        """Check all objects, then take them; what the script works with from now on, in the same order.

        Args:
            host: runs the loops over loaders.
            replacements: how many data workers of a loader may be replaced.

        Raises:
            RefusedError: an object would not give the bits of DDP. Nothing has been taken then.
        """
        averaged = [item for item in objects if isinstance(item, AveragedModel)]
        modules = [item for item in objects if isinstance(item, nn.Module) and not isinstance(item, AveragedModel)]
        optimizers = [item for item in objects if isinstance(item, torch.optim.Optimizer)]
        self._check(objects, modules, optimizers)
        loaders = [item for item in objects if isinstance(item, DataLoader)]
        replaced: dict[int, Any] = {id(loader): self._elastic(loader, host, replacements) for loader in loaders}
        facts = [replaced[id(loader)].facts() for loader in loaders]
        self._start_alike([*modules, *averaged], optimizers, facts)
        for module in modules:
            replaced[id(module)] = self._job.turns.add_module(module, options)
        for item in objects:
            self._gate(item)
        self.stateful += [item for item in objects if isinstance(item, LRScheduler | GradScaler)]
        self._trained += modules
        self._averaged.update(id(param) for module in modules for param in module.parameters())
        self.modules += [*modules, *averaged]
        self.optimizers += optimizers
        return tuple(replaced.get(id(item), item) for item in objects)

    def _check(
        self, objects: tuple[Any, ...], modules: list[nn.Module], optimizers: list[torch.optim.Optimizer]
    ) -> None:
        for item in objects:
            if not isinstance(item, (nn.Module, DataLoader, torch.optim.Optimizer, *_GATED)):
                raise RefusedError(checks.describe_unknown(item))
            if any(item is known for known in [*self.modules, *self.optimizers]):
                raise RefusedError(f"this {type(item).__name__} was prepared before: prepare each object once")
        for module in modules:
            checks.check_module(module, self._job.device)
        checks.check_not_shared([*self._trained, *modules])
        for optimizer in optimizers:
            checks.check_optimizer(optimizer, [*self._trained, *modules])

    def _elastic(self, loader: DataLoader[Any], host: LoaderHost, replacements: int) -> ElasticLoader:
        job, number = self._job, len(self.loaders)
        self.loaders.append(elastic(loader, job.spec, number, host, replacements, may_move=job.may_move))
        return self.loaders[-1]

    def _gate(self, item: Any) -> None:
        if isinstance(item, torch.optim.Optimizer):
            self._gates.add_optimizer(item)
        for kind, methods in _GATED.items():
            if isinstance(item, kind):
                self._gates.add(item, methods)

    def _start_alike(
        self, modules: list[nn.Module], optimizers: list[torch.optim.Optimizer], facts: list[dict[str, Any]]
    ) -> None:
        """All workers go on from virtual rank 0's parameters and buffers, as DDP's constructor has it."""
        member = self._job.member
        channel = self._job.channel if member is None else member.channel
        if channel is None and member is None:
            return
        self._signatures.append(checks.signature(modules, optimizers, facts))
        if not (modules or optimizers) or channel is None or (member is not None and member.is_behind):
            return
        mine = self._signatures[-1].encode()
        checks.check_same_everywhere(channel.call(lambda: channel.gather_bytes(mine)))
        tensors = [tensor for module in modules for tensor in [*module.parameters(), *module.buffers()]]
        root = (self._job.placement if member is None else member.seat.placement).worker_of(0)
        if tensors:
            channel.broadcast(tensors, root)

    @property
    def signature(self) -> str:
        """What every worker of the job must have prepared, as it was then."""
        return "\n".join(self._signatures)

    def state(self) -> dict[str, Any]:
        """Every parameter, buffer and optimizer value by name, as it is now (not copied)."""
        return state_of(self.modules, self.optimizers)

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 (hex) of every entry of ``state``."""
        return fingerprint_of(self.state())

    def close(self) -> None:
        """Give the objects their own methods back, and end data workers."""
        self._gates.close()
        for loader in self.loaders:
            loader.close()
