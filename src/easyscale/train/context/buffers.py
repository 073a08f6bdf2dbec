"""Buffers (BatchNorm statistics and the like) of one prepared module, as its ESTs see them.

Runs in the worker. As DDP with ``broadcast_buffers=True``: every EST starts a pass from virtual rank 0's buffers of the
pass before, and only rank 0's result is kept. With ``broadcast_buffers=False`` each EST keeps its own. Outside turns
the module holds virtual rank 0's buffers on every worker.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from easyscale.core.errors import UsageError


class ModuleBuffers:
    """Switches the buffers of one module between the turns of this worker's ESTs.

    Args:
        module: the prepared module.
        ranks: virtual ranks of this worker, in the order of their turns.
        is_shared: DDP's ``broadcast_buffers``.
    """

    def __init__(self, module: nn.Module, ranks: tuple[int, ...], *, is_shared: bool) -> None:
        self._module = module
        self._is_shared = is_shared
        # alone means: nothing to switch, the module itself holds the one EST's buffers (or those of rank 0)
        self._is_alone = ranks == (0,) or (is_shared and len(ranks) == 1)
        self._start: list[Tensor] = []
        self._kept: dict[int, list[Tensor]] = {}
        self._places: list[tuple[nn.Module, str]] = []
        self._versions: list[tuple[int, int]] = []
        self._seen: list[tuple[int, int]] = []

    def _live(self) -> list[Tensor]:
        return [owner._buffers[name] for owner, name in self._places]  # type: ignore[misc]

    def begin_pass(self) -> None:
        """Remember what every EST of this pass starts from."""
        self._places = [
            (owner, name)
            for owner in self._module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]
        if self._is_alone or not self._places:
            return
        live = self._live()
        if self._kept and self._versions != _versions(live):
            raise UsageError(
                "buffers of a model prepared with broadcast_buffers=False were changed outside a step, where only "
                "virtual rank 0's are in the model: change them before the first step, or use broadcast_buffers=True"
            )
        self._start = [buffer.clone() for buffer in live]
        self._seen = _versions(live)

    def enter(self, virtual_rank: int, *, is_first: bool) -> None:
        """Give the EST whose turn begins its buffers."""
        if self._is_alone or not self._places:
            return
        if not self._is_shared:
            self._load(self._kept.get(virtual_rank, self._start))
        elif not is_first and self._seen != _versions(self._live()):
            self._load(self._start)
            self._seen = _versions(self._live())

    def leave(self, virtual_rank: int) -> None:
        """Keep what must be kept of the EST whose turn ends."""
        if self._is_alone or not self._places:
            return
        if virtual_rank != 0 and self._is_shared:
            return
        live = self._live()
        if not self._is_shared or self._seen != _versions(live):
            self._kept[virtual_rank] = [buffer.clone() for buffer in live]

    def end_pass(self, broadcast: Callable[[list[Tensor]], None] | None) -> None:
        """Leave virtual rank 0's buffers in the module, on every worker.

        Args:
            broadcast: fills a list of tensors with those of virtual rank 0's worker; None if this is the only worker.
        """
        if not self._places:
            return
        if not self._is_alone:
            self._load(self._kept.get(0, self._start))
        if self._is_shared:
            self._kept.clear()
        if broadcast is not None:
            broadcast(self._live())
        self._versions = _versions(self._live())

    def abort_pass(self) -> None:
        """Back to the start of the pass: its results do not count."""
        if self._start:
            self._load(self._start)

    def _load(self, saved: list[Tensor]) -> None:
        live = self._live()
        if [buffer.shape for buffer in live] != [buffer.shape for buffer in saved]:
            # a buffer that grows has no common storage to switch: give the module the tensors themselves
            for (owner, name), tensor in zip(self._places, saved, strict=True):
                owner._buffers[name] = tensor.clone()
            return
        with torch.no_grad():
            torch._foreach_copy_(live, saved)


def _versions(buffers: list[Tensor]) -> list[tuple[int, int]]:
    """Changes when a buffer is written to or replaced."""
    return [(id(buffer), buffer._version) for buffer in buffers]
