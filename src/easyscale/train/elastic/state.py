"""The state of a job at the border between two global steps: taken from one process, put into another. In the worker.

Joiners and checkpoints use the same. Nothing in it depends on the placement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from easyscale.core.errors import RefusedError
from easyscale.core.job import JobSpec
from easyscale.train.checkpoint.state import JobFacts, JobState, device_kind
from easyscale.train.context.rng import RngState, capture, restore
from easyscale.train.elastic.contexts import Contexts, plain, rich
from easyscale.train.elastic.track import Journal, ScriptPosition, Track
from easyscale.train.prepared import Prepared
from easyscale.train.turns import Turns

VERSION = 1


class StateKeeper:
    """Knows everything that makes up the state of a session.

    Args:
        registered: what the script registered, by name.
    """

    def __init__(
        self,
        spec: JobSpec,
        device: torch.device,
        prepared: Prepared,
        registered: Mapping[str, Any],
        turns: Turns,
        track: Track,
        contexts: Contexts,
    ) -> None:
        self._spec = spec
        self._device = device
        self._prepared = prepared
        self._registered = registered
        self._turns = turns
        self._track = track
        self._contexts = contexts
        self._pending: dict[str, Any] = {}

    def capture(self, global_step: int, left: int, number: int | None) -> JobState:
        """The state now; tensors are not copied.

        Raises:
            RefusedError: something in it cannot be handed over.
        """
        prepared, layouts = self._prepared, self._turns.sync.layouts()
        tensors: dict[str, Tensor] = {}
        for index, module in enumerate(prepared.modules):
            tensors.update(_tensors_of(index, module))
        meta = {
            "version": VERSION,
            "left": left,
            "position": dataclasses.asdict(self._track.position(number)),
            "journal": dataclasses.asdict(self._track.journal),
            "signature": prepared.signature,
            "modules": [_about(module) for module in prepared.modules],
            "optimizers": [self._of_optimizer(optimizer) for optimizer in prepared.optimizers],
            "stateful": [item.state_dict() for item in prepared.stateful],
            "loaders": [plain(self._contexts.position_of(loader)) for loader in prepared.loaders],
            "registered": {name: _state_of(item) for name, item in self._registered.items()},
            "generators": _as_tuple(capture(self._device)),
            "contexts": self._contexts.state(),
            "layouts": layouts,
            "has_gradients": self._turns.sync.has_gradients,
        }
        return JobState(JobFacts.of(self._spec, device_kind(self._device), layouts), global_step, tensors, meta)

    def places(self) -> dict[str, Tensor]:
        """Memory of this process that a joiner's state may be received into: it is not used before."""
        places: dict[str, Tensor] = {}
        for index, module in enumerate(self._prepared.modules):
            places.update(_values_of(index, module))
        return places

    def position(self, state: JobState) -> tuple[ScriptPosition, Journal]:
        """Where the job of ``state`` is."""
        return ScriptPosition(**state.meta["position"]), Journal(**state.meta["journal"])

    def apply(self, state: JobState) -> None:
        """Be where the job of ``state`` is.

        Raises:
            RefusedError: it is the state of another script.
        """
        prepared, meta = self._prepared, state.meta
        _check_signature(prepared.signature, meta["signature"])
        for index, (module, about) in enumerate(zip(prepared.modules, meta["modules"], strict=True)):
            _put(index, module, about, state.tensors)
        for optimizer, saved in zip(prepared.optimizers, meta["optimizers"], strict=True):
            self._put_optimizer(optimizer, saved)
        for item, saved in zip(prepared.stateful, meta["stateful"], strict=True):
            item.load_state_dict(saved)
        for loader, saved in zip(prepared.loaders, meta["loaders"], strict=True):
            loader.load_state_dict(rich(saved))
        self._pending = dict(meta["registered"])
        for name, item in self._registered.items():
            self.give(name, item)
        self._contexts.load(meta["contexts"])
        self._turns.sync.set_layouts(meta["layouts"])
        self._turns.sync.has_gradients = meta["has_gradients"]
        restore(RngState(*meta["generators"]), self._device)

    def give(self, name: str, item: Any) -> None:
        """Put what was registered under ``name`` elsewhere into ``item``."""
        if name not in self._pending:
            return
        saved = self._pending.pop(name)
        if isinstance(item, dict):
            item.clear()
            item.update(saved)
        else:
            item.load_state_dict(saved)

    def _params(self) -> dict[str, nn.Parameter]:
        return {
            f"{index}.{name}": param
            for index, module in enumerate(self._prepared.modules)
            for name, param in module.named_parameters()
        }

    def _of_optimizer(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        name_by_id = {id(param): name for name, param in self._params().items()}
        groups = [
            {**group, "params": [name_by_id[id(param)] for param in group["params"]]}
            for group in optimizer.param_groups
        ]
        state = {name_by_id[id(param)]: dict(own) for param, own in optimizer.state.items()}
        on_device = {
            name: [key for key, value in own.items() if isinstance(value, Tensor) and value.device.type != "cpu"]
            for name, own in state.items()
        }
        return {"groups": groups, "state": state, "on_device": on_device}

    def _put_optimizer(self, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
        """Not by ``load_state_dict``, which casts state to its parameter's dtype."""
        params = self._params()
        groups = [{**group, "params": [params[name] for name in group["params"]]} for group in saved["groups"]]
        for own, theirs in zip(optimizer.param_groups, groups, strict=False):
            own.update(theirs)
        for theirs in groups[len(optimizer.param_groups) :]:
            optimizer.param_groups.append(theirs)
        optimizer.state.clear()
        for name, own in saved["state"].items():
            moved = saved["on_device"][name]
            optimizer.state[params[name]] = {
                key: value.to(params[name].device) if key in moved else value for key, value in own.items()
            }
        optimizer._opt_called = True  # type: ignore[attr-defined]  # LR schedulers warn of a first step without it


def _values_of(index: int, module: nn.Module) -> dict[str, Tensor]:
    tensors = {f"module{index}.{name}": param.detach() for name, param in module.named_parameters()}
    tensors.update({f"module{index}.{name}": buffer.detach() for name, buffer in module.named_buffers()})
    return tensors


def _tensors_of(index: int, module: nn.Module) -> dict[str, Tensor]:
    tensors = _values_of(index, module)
    grads = {f"grad{index}.{name}": param.grad for name, param in module.named_parameters()}
    tensors.update({name: grad.detach() for name, grad in grads.items() if grad is not None})
    return tensors


def _about(module: nn.Module) -> dict[str, Any]:
    """What of a module is no tensor."""
    return {
        "training": [name for name, part in module.named_modules() if part.training],
        "trained": [name for name, param in module.named_parameters() if param.requires_grad],
        "empty": [f"{prefix}:{name}" for prefix, name, buffer in _buffers(module) if buffer is None],
        "buffers": [f"{prefix}:{name}" for prefix, name, buffer in _buffers(module) if buffer is not None],
    }


def _buffers(module: nn.Module) -> list[tuple[str, str, Tensor | None]]:
    return [(prefix, name, buffer) for prefix, part in module.named_modules() for name, buffer in part._buffers.items()]


@torch.no_grad()
def _put(index: int, module: nn.Module, about: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    for name, param in module.named_parameters():
        _fill(param, tensors[f"module{index}.{name}"])
        param.requires_grad_(name in about["trained"])
        grad = tensors.get(f"grad{index}.{name}")
        param.grad = None if grad is None else torch.empty_like(param).copy_(grad)
    parts = dict(module.named_modules())
    for prefix, part in parts.items():
        part.training = prefix in about["training"]
    done: set[int] = set()
    for place in about["buffers"]:
        prefix, _, name = place.rpartition(":")
        value = tensors.get(f"module{index}.{prefix}{'.' if prefix else ''}{name}")
        live = parts[prefix]._buffers.get(name)
        if value is None or (live is not None and id(live) in done):
            continue  # the same tensor under another name
        if live is not None and live.shape == value.shape and live.dtype == value.dtype:
            _fill(live, value)
            done.add(id(live))
        else:
            parts[prefix]._buffers[name] = value.clone()
    for place in about["empty"]:
        prefix, _, name = place.rpartition(":")
        parts[prefix]._buffers[name] = None


def _fill(live: Tensor, value: Tensor) -> None:
    if live.data_ptr() != value.data_ptr():  # else it was received there
        live.copy_(value)


def _state_of(item: Any) -> Any:
    return dict(item) if isinstance(item, dict) else item.state_dict()


def _as_tuple(state: RngState) -> tuple[Any, ...]:
    return (state.torch_cpu, state.python, state.numpy, state.device)


def _check_signature(mine: str, theirs: str) -> None:
    ours, others = mine.split("\n"), theirs.split("\n")
    for a, b in zip([*ours, *["nothing"] * len(others)], [*others, *["nothing"] * len(ours)], strict=False):
        if a != b:
            raise RefusedError(
                f"a worker that joined prepared other objects ({a!r}) than the job has ({b!r}): build model and "
                "optimizer without looking at session.virtual_rank, files or the clock"
            )
