"""Buffers (BatchNorm statistics and the like) of one prepared module, as its ESTs see them.

Runs in the worker. As DDP with ``broadcast_buffers=True``: every EST starts a pass from virtual rank 0's buffers of the
pass before, and only rank 0's result is kept. With ``broadcast_buffers=False`` each EST keeps its own. Outside turns
the module holds virtual rank 0's buffers on every worker.

Buffers are always copied, never by their version counters: writing through ``.data`` does not count there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from easyscale.core.errors import UsageError

Snapshot = list[dict[str, Tensor | None]]
"""Copies of the buffers of every part of a module, in the order of ``module.modules()``."""


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
        self.move(ranks, may_repeat=False)
        self._parts: list[nn.Module] = []
        self._start: Snapshot = []
        self._kept: dict[int, Snapshot] = {}
        self._kept_before: dict[int, Snapshot] = {}
        self._versions: list[tuple[int, int]] = []

    def move(self, ranks: tuple[int, ...], *, may_repeat: bool) -> None:
        """This worker runs these ESTs from now on.

        Args:
            may_repeat: a pass may have to be done again after it has changed buffers.
        """
        self._is_root = 0 in ranks  # all others are given what they hold
        # alone means: nothing to switch, the module itself holds the one EST's buffers (or those of rank 0)
        is_one = ranks == (0,) or (self._is_shared and len(ranks) == 1)
        self._is_alone = is_one and not may_repeat

    def begin_pass(self) -> None:
        """Remember what every EST of this pass starts from."""
        self._parts = list(self._module.modules())
        self._kept_before = dict(self._kept)
        if self._is_alone:
            return
        if self._kept and self._versions != self._seen():
            raise UsageError(
                "buffers of a model prepared with broadcast_buffers=False were changed outside a step, where only "
                "virtual rank 0's are in the model: change them before the first step, or use broadcast_buffers=True"
            )
        self._start = self._copy()

    def enter(self, virtual_rank: int, *, is_first: bool) -> None:
        """Give the EST whose turn begins its buffers."""
        if self._is_alone:
            return
        if not self._is_shared:
            self._load(self._kept.get(virtual_rank, self._start))
        elif not is_first:
            self._load(self._start)

    def leave(self, virtual_rank: int) -> None:
        """Keep what must be kept of the EST whose turn ends."""
        if not self._is_alone and (virtual_rank == 0 or not self._is_shared):
            self._kept[virtual_rank] = self._copy()

    def end_pass(self, broadcast: Callable[[list[Tensor]], None] | None) -> None:
        """Leave virtual rank 0's buffers in the module, on every worker.

        Args:
            broadcast: fills a list of tensors with those of virtual rank 0's worker; None if this is the only worker.
        """
        if not self._is_alone and self._is_root:
            self._load(self._kept[0])
        if self._is_shared:
            self._kept.clear()
        live = self._live()
        if broadcast is not None and live:
            broadcast(live)
        self._versions = self._seen()

    @property
    def is_own(self) -> bool:
        """Whether each EST keeps buffers of its own."""
        return not self._is_shared and any(True for _ in self._module.buffers())

    def own_of(self, virtual_rank: int) -> Snapshot:
        """What an EST keeps, between passes."""
        if virtual_rank in self._kept:
            return self._kept[virtual_rank]
        self._parts = list(self._module.modules())
        return self._copy()

    def put_own(self, virtual_rank: int, kept: Snapshot) -> None:
        """Let an EST go on with ``kept``."""
        self._parts = list(self._module.modules())
        self._kept[virtual_rank] = kept
        self._versions = self._seen()

    def abort_pass(self) -> None:
        """Back to the start of the pass: its results do not count."""
        self._kept = self._kept_before
        if not self._is_alone:
            self._load(self._start)
        self._versions = self._seen()

    def _live(self) -> list[Tensor]:
        return [buffer for part in self._parts for buffer in part._buffers.values() if buffer is not None]

    def _seen(self) -> list[tuple[int, int]]:
        return [(id(buffer), buffer._version) for buffer in self._live()]

    def _copy(self) -> Snapshot:
        return [
            {name: None if buffer is None else buffer.clone() for name, buffer in part._buffers.items()}
            for part in self._parts
        ]

    def _load(self, saved: Snapshot) -> None:
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for part, own in zip(self._parts, saved, strict=True):
            live = part._buffers
            if not own and not live:
                continue
            if not _fits(live, own):
                # registered, replaced or grown in a turn: nothing to copy into, so the part gets tensors of its own
                live.clear()
                live.update({name: None if buffer is None else buffer.clone() for name, buffer in own.items()})
                continue
            targets += [buffer for buffer in live.values() if buffer is not None]
            sources += [own[name] for name, buffer in live.items() if buffer is not None]  # type: ignore[misc]
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)


def _fits(live: dict[str, Tensor | None], saved: dict[str, Tensor | None]) -> bool:
    """Whether what was saved can be copied into what is there."""
    if live.keys() != saved.keys():
        return False
    return all(
        (a is None and b is None) or (a is not None and b is not None and a.shape == b.shape and a.dtype == b.dtype)
        for a, b in ((live[name], saved[name]) for name in saved)
    )
