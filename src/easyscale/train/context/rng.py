"""Random numbers of an EST: torch (CPU and device), ``random`` and ``numpy``.

Runs in the worker. ``Stepwise`` sets every generator at the start of a turn from (seed, virtual rank, global step,
pass): the EST has no random state, so any worker can run any of its turns. ``Carried`` is what a DDP rank does: one
stream from the first step to the last, kept with the EST. Outside turns a job-level stream is the same on all workers.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from easyscale.train.context.generators import generators
from easyscale.train.context.philox import Philox


@dataclass(frozen=True, slots=True)
class RngState:
    """The state of every generator of this process."""

    torch_cpu: torch.Tensor
    python: Any
    numpy: Any
    device: torch.Tensor | None


def capture(device: torch.device) -> RngState:
    """The state of every generator as it is now."""
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return RngState(torch.get_rng_state(), random.getstate(), np.random.get_state(), on_device)


def restore(state: RngState, device: torch.device) -> None:
    """Put every generator back to ``state``."""
    torch.set_rng_state(state.torch_cpu)
    random.setstate(state.python)
    np.random.set_state(state.numpy)
    if state.device is not None:
        torch.cuda.set_rng_state(state.device, device)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed as a script does: ``torch.manual_seed(seed)``, ``random.seed(seed)``, ``np.random.seed(seed)``."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


class Seeder:
    """What the random numbers of a job are made from, beside the place at which they are drawn.

    ``torch.manual_seed`` would use 32 bits of a seed: among a few ten thousand (rank, step) pairs two would be the
    same. Here all 19,937 bits of each generator are set.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._prefix = f"easyscale/{seed}/".encode()
        self._device = device

    def material(self, length: int, *key: int | str) -> bytes:
        """``length`` bytes for ``key``, which names the use: other keys give unrelated bytes."""
        return hashlib.shake_128(self._prefix + "/".join(map(str, key)).encode()).digest(length)

    def at(self, *key: int | str) -> Setter:
        """Sets every generator at the places of ``key``."""
        return Setter(self.material(16, *key), self._device)

    def __call__(self, *key: int | str) -> None:
        """Set the generators from ``key``."""
        self.at(*key)(0)


class Setter:
    """Sets every generator of this process from a place, which is up to three numbers."""

    def __init__(self, key: bytes, device: torch.device) -> None:
        self._philox = Philox(key)
        self._device = device

    def __call__(self, a: int, b: int = 0, c: int = 0) -> None:
        on_device = self._device.type == "cuda"
        rows = self._philox.words((0, a, b, c), 3 + on_device)
        for generator, row in zip(generators(), rows, strict=False):
            generator.seed(row)
        if on_device:
            torch.cuda.manual_seed(int(rows[3].view(np.uint64)[0]) >> 1)


class RngPolicy(Protocol):
    """How the generators move between turns. ``begin_pass`` and ``end_pass`` stand around all turns of a pass.

    Attributes:
        ranks: virtual ranks whose streams it has.
    """

    ranks: tuple[int, ...]

    def begin_pass(self) -> None: ...

    def enter(self, virtual_rank: int, global_step: int, pass_index: int) -> None: ...

    def leave(self, virtual_rank: int) -> None: ...

    def end_pass(self, global_step: int, pass_index: int) -> None: ...

    def state_of(self, virtual_rank: int) -> RngState | None:
        """The stream that an EST carries, between its turns; None if it carries none."""

    def put(self, virtual_rank: int, state: RngState | None) -> None:
        """Let an EST go on from ``state``."""


class Stepwise:
    """``rng="stepwise"``: a turn's numbers depend on (seed, virtual rank, global step, pass) alone."""

    def __init__(self, seeder: Seeder) -> None:
        self.ranks: tuple[int, ...] = ()
        self._of_est, self._of_job = seeder.at("est"), seeder.at("job")

    def begin_pass(self) -> None:
        return

    def enter(self, virtual_rank: int, global_step: int, pass_index: int) -> None:
        self._of_est(global_step, virtual_rank, pass_index)

    def leave(self, virtual_rank: int) -> None:
        return

    def end_pass(self, global_step: int, pass_index: int) -> None:
        self._of_job(global_step, pass_index)

    def state_of(self, virtual_rank: int) -> RngState | None:
        return None

    def put(self, virtual_rank: int, state: RngState | None) -> None:
        return


class Carried:
    """``rng="ddp"``: EST r's stream starts as ``torch.manual_seed(seed + r)`` and goes on from turn to turn."""

    def __init__(self, seed: int, ranks: tuple[int, ...], device: torch.device) -> None:
        self.ranks = ranks
        self._device = device
        self._state_by_rank: dict[int, RngState] = {}
        outside = capture(device)
        for rank in ranks:
            seed_all(seed + rank, device)
            self._state_by_rank[rank] = capture(device)
        restore(outside, device)
        self._outside = outside

    def begin_pass(self) -> None:
        self._outside = capture(self._device)

    def enter(self, virtual_rank: int, global_step: int, pass_index: int) -> None:
        restore(self._state_by_rank[virtual_rank], self._device)

    def leave(self, virtual_rank: int) -> None:
        self._state_by_rank[virtual_rank] = capture(self._device)

    def end_pass(self, global_step: int, pass_index: int) -> None:
        restore(self._outside, self._device)

    def state_of(self, virtual_rank: int) -> RngState | None:
        return self._state_by_rank[virtual_rank]

    def put(self, virtual_rank: int, state: RngState | None) -> None:
        assert state is not None
        self._state_by_rank[virtual_rank] = state
