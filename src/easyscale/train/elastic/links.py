"""Channels to the workers of the generations, of which one is in use and one may be being opened. In the worker."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
import torch.distributed as dist

from easyscale.core.orders import Form
from easyscale.train.elastic.meeting import Meeting
from easyscale.train.reduce.channel import Channel, join_group


class Links:
    """Opens channels, and leaves them.

    Args:
        current: the channel of the first generation.
        generation: its number.

    Attributes:
        bytes_sent: bytes of gradients that went over channels which were left.
    """

    def __init__(self, device: torch.device, threads: int, current: Channel | None, generation: int) -> None:
        self._device = device
        self._threads = threads
        self._lock = threading.Lock()
        self._current = current
        self._opening: list[Channel] = []
        self._newest = generation
        self.bytes_sent = 0

    def open(self, form: Form, rank: int, size: int, purpose: str = "") -> Channel | None:
        """A channel to the members of ``form``; None if there is only this one.

        Args:
            purpose: "" for what the generation works with; another word for a channel beside it, which ends when the
                generation begins.

        Raises:
            PeerLostError: they do not come, or another generation was ordered.
        """
        if size == 1:
            return None
        path = form.store_path + purpose

        def is_left() -> bool:
            return self._newest > form.generation

        def connect() -> object:
            if self._device.type == "cuda":
                store: dist.Store = dist.FileStore(path, size)
            else:
                store = Meeting(Path(path), is_left)
            return join_group(store, rank, size, self._device, is_local=True)

        channel = Channel(connect, rank, size, self._device, self._threads, is_elastic=True)
        with self._lock:
            self._opening.append(channel)
        if is_left():
            channel.abandon("another generation forms")
        channel.open()
        return channel

    def keep(self, channel: Channel | None) -> None:
        """The generation of ``channel`` begins."""
        with self._lock:
            old, self._current = self._current, channel
            beside = [opened for opened in self._opening if opened is not channel]
            self._opening = []
        for opened in beside:
            opened.leave()
        if old is not None:
            self.bytes_sent += old.gradient_bytes
            old.leave()

    def drop(self) -> None:
        """The generation whose channel was opened last does not come about."""
        with self._lock:
            channels, self._opening = self._opening, []
        for channel in channels:
            channel.abandon("another generation forms")

    def abandon(self, generation: int) -> None:
        """``generation`` was ordered because a worker was lost: nobody waits for an earlier one. From any thread."""
        with self._lock:
            self._newest = max(self._newest, generation)
            channels = [*self._opening, *([] if self._current is None else [self._current])]
        for channel in channels:
            channel.abandon("a worker was lost")

    def close(self) -> None:
        """Leave the channel in use."""
        with self._lock:
            current, self._current = self._current, None
        if current is not None:
            self.bytes_sent += current.gradient_bytes
            current.close()
