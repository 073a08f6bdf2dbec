"""The same script under plain DistributedDataParallel: the reference of ``easyscale verify --against ddp``.

Runs in the worker, one process for each virtual rank. PyTorch does everything that decides numbers here: DDP averages
gradients and broadcasts buffers, a ``DataLoader`` of the rank's own loads its mini-batches, the process's generators go
on from ``torch.manual_seed(seed + rank)``.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from easyscale.core.errors import UsageError
from easyscale.train.context.rng import RngState, capture, seed_all
from easyscale.train.reduce.channel import TIMEOUT
from easyscale.train.reduce.layout import DdpOptions
from easyscale.train.runtime import NullObserver, Observer


class TransparentDdp(DistributedDataParallel):
    """DDP that lets the script reach its own module's attributes, as it does without the wrapper."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class NoSwitch:
    """One EST in a process: its random stream is the process's."""

    ranks: tuple[int, ...] = ()

    def begin_pass(self) -> None:
        return

    def enter(self, virtual_rank: int, global_step: int, pass_index: int) -> None:
        return

    def leave(self, virtual_rank: int) -> None:
        return

    def end_pass(self, global_step: int, pass_index: int) -> None:
        return

    def state_of(self, virtual_rank: int) -> RngState | None:
        return capture(torch.device("cpu"))

    def put(self, virtual_rank: int, state: RngState | None) -> None:
        raise UsageError("plain DDP, the reference, starts at the beginning")


class PlainTurns:
    """The one EST of a DDP rank always has its turn; DDP itself averages in ``backward``."""

    def __init__(self, virtual_rank: int, num_ests: int, seed: int, store: dist.Store, device: torch.device) -> None:
        self.ranks: tuple[int, ...] = (virtual_rank,)
        self.rank: int | None = None
        self.is_drop_in = False
        self.must_repeat = False
        self.is_last = True
        self.most_gradient_copies = 1
        self.has_gradients = True
        self._wrapped: list[TransparentDdp] = []
        self.is_synced = True
        self.observer: Observer = NullObserver()
        self.rng = NoSwitch()
        self._seed = seed
        self._device = device
        self._has_module = False
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=virtual_rank, world_size=num_ests, timeout=TIMEOUT)

    def add_module(self, module: nn.Module, options: DdpOptions) -> nn.Module:
        with warnings.catch_warnings():
            # newer releases of torch call it forward_sync_buffers
            warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
            wrapped = TransparentDdp(module, **dataclasses.asdict(options))
        if not self._has_module:
            # the models are built alike on every rank; from here on each rank draws from a stream of its own
            seed_all(self._seed + self.ranks[0], self._device)
            self._has_module = True
        self._wrapped.append(wrapped)
        return wrapped

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """What ``with model.no_sync():`` does around all mini-batches of a turn but the last."""
        for module in self._wrapped:
            module.require_backward_grad_sync = is_last

    def begin_pass(self, global_step: int, pass_index: int, *, is_drop_in: bool) -> None:
        self.is_drop_in = is_drop_in

    def begin_turn(self, virtual_rank: int, fetch: Callable[[], Any], *, draws_from_est: bool) -> Any:
        self.rank = virtual_rank
        self.observer.turn(virtual_rank)
        return fetch()

    def end_turn(self) -> None:
        self.rank = None
        self.observer.turn(None)

    def finish(self) -> None:
        return

    def skip(self, virtual_rank: int, fetch: Callable[[], Any], *, draws_from_est: bool) -> None:
        fetch()

    def abort(self) -> None:
        self.rank = None

    def close(self) -> None:
        dist.destroy_process_group()
