"""What ``session.prepare`` refuses before anything trains, and what it says. Runs in the worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from easyscale.core.errors import RefusedError


def check_module(module: nn.Module, device: torch.device) -> None:
    """Refuse a module whose ESTs would not be equal to DDP's ranks.

    Raises:
        RefusedError: saying which part, and what to do.
    """
    if isinstance(module, DistributedDataParallel | DataParallel):
        raise RefusedError(
            f"the model is already wrapped in {type(module).__name__}: give session.prepare the module inside it "
            f"(model.module), averaging gradients is what EasyScale does"
        )
    for name, part in module.named_modules():
        where = name or "the model itself"
        if isinstance(part, nn.SyncBatchNorm):
            raise RefusedError(
                f"{where} is a SyncBatchNorm, which needs all ESTs at once, but ESTs take turns on a worker: use "
                "BatchNorm (DDP's default), GroupNorm or LayerNorm"
            )
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise RefusedError(f"{where} has sparse=True, and sparse gradients are not supported yet: use sparse=False")
        if any(nn.parameter.is_lazy(param) for param in part._parameters.values() if param is not None):
            raise RefusedError(f"{where} has parameters without a shape yet: run one forward before session.prepare")
    for name, param in module.named_parameters():
        if param.device.type != device.type:
            raise RefusedError(
                f"parameter {name} is on {param.device}, but this worker computes on {device}: call "
                f"model.to(session.device) before session.prepare"
            )
        if param.is_complex() and param.requires_grad:
            raise RefusedError(
                f"parameter {name} is complex, which is not supported yet: hold its two parts as real numbers"
            )


def check_not_shared(modules: Sequence[nn.Module]) -> None:
    """Refuse modules with a parameter in common, whose gradient would be averaged twice.

    Raises:
        RefusedError: naming the parameter.
    """
    owner: dict[int, int] = {}
    for number, module in enumerate(modules):
        for name, param in module.named_parameters():
            if owner.setdefault(id(param), number) != number:
                raise RefusedError(
                    f"parameter {name} belongs to two prepared models: put both into one module "
                    "(torch.nn.ModuleList, say) and prepare that"
                )


def check_optimizer(optimizer: torch.optim.Optimizer, modules: Sequence[nn.Module]) -> None:
    """Refuse an optimizer of parameters that are averaged nowhere.

    Raises:
        RefusedError: some parameter belongs to no prepared module.
    """
    known = {id(param) for module in modules for param in module.parameters()}
    outside = [
        (group_number, number)
        for group_number, group in enumerate(optimizer.param_groups)
        for number, param in enumerate(group["params"])
        if id(param) not in known
    ]
    if outside:
        group_number, number = outside[0]
        raise RefusedError(
            f"{type(optimizer).__name__} holds {len(outside)} parameter(s) of no prepared model (first: number "
            f"{number} of group {group_number}), whose gradients nobody would average: prepare their model in the "
            "same call or before, and build the optimizer from that model's parameters"
        )


def signature(
    modules: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer], loaders: Iterable[Mapping[str, Any]]
) -> str:
    """What must be the same on all workers for them to be one job: names, shapes, dtypes, hyperparameters.

    Args:
        loaders: what the order of their mini-batches depends on.
    """
    lines = []
    for module in modules:
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            lines.append(f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}")
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            settings = {key: str(value) for key, value in sorted(group.items()) if key != "params"}
            lines.append(f"{type(optimizer).__name__} {len(group['params'])} {settings}")
    lines += [f"DataLoader {dict(facts)}" for facts in loaders]
    return "\n".join(lines)


def check_same_everywhere(signature_by_worker: Sequence[bytes]) -> None:
    """Compare workers' signatures.

    Raises:
        RefusedError: naming the first line that differs.
    """
    first = signature_by_worker[0].decode().split("\n")
    for worker, data in enumerate(signature_by_worker):
        lines = data.decode().split("\n")
        if lines == first:
            continue
        pairs = zip([*first, *["nothing"] * len(lines)], [*lines, *["nothing"] * len(first)], strict=False)
        ours, theirs = next(pair for pair in pairs if pair[0] != pair[1])
        raise RefusedError(
            f"workers 0 and {worker} prepared different objects ({ours!r} and {theirs!r}): build model and optimizer "
            f"without looking at session.virtual_rank"
        )


def describe_unknown(item: Any) -> str:
    """What to say of an object that ``prepare`` does not take."""
    return (
        f"session.prepare got {type(item).__name__}: it takes modules, optimizers, DataLoaders, LR schedulers, "
        "GradScalers and AveragedModels. For other state that must survive use session.register(name, object)"
    )
