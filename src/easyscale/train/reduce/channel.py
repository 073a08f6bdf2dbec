"""The process group of a job's workers and the one thread that uses it.

Runs in the worker. All collectives go through one thread, in the order of ``submit``: so that every worker issues them
in the same order, and so that they run while backward computes. The group is not ``torch.distributed``'s default
group, whose rank and size would be those of workers, which a training script must never compute with.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from easyscale.core.errors import PeerLostError

TIMEOUT = timedelta(minutes=30)
_LOOPBACK = "127.0.0.1"


def join_group(store: dist.Store, rank: int, size: int, device: torch.device, *, is_local: bool) -> Any:
    """Meet the other workers at ``store``.

    Args:
        is_local: all workers are on this machine, so nothing needs to listen beyond its loopback interface.
    """
    if device.type == "cuda":
        return dist.ProcessGroupNCCL(store, rank, size, dist.ProcessGroupNCCL.Options())
    gloo: Any = dist.ProcessGroupGloo
    if not is_local:
        return gloo(store, rank, size, TIMEOUT)
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=_LOOPBACK)]
    options._timeout = TIMEOUT
    options._threads = 2
    return gloo(store, rank, size, options)


class Job:
    """Work handed to the channel's thread; ``wait`` returns what it returned or raises what it raised."""

    __slots__ = ("_call", "_done", "_error", "_lock", "_result")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            result, error = self._call(), None
        except BaseException as raised:  # noqa: BLE001  (raised again where somebody waits)
            result, error = None, raised
        self.end(result, error)

    def end(self, result: Any, error: BaseException | None) -> None:
        """Let those who wait go on; the first end counts."""
        with self._lock:
            if not self._done.is_set():
                self._result, self._error = result, error
                self._done.set()

    def wait(self) -> Any:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result


class Channel:
    """The workers' process group, used by one thread.

    Args:
        connect: meets the others and gives the group; called in the channel's thread.
        is_elastic: a broken group is no error of the script: it raises ``PeerLostError``.

    Attributes:
        gradient_bytes: bytes of gradients that this worker has sent.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        rank: int,
        size: int,
        device: torch.device,
        threads: int,
        *,
        is_elastic: bool = False,
    ) -> None:
        self.group: Any = None
        self.rank = rank
        self.size = size
        self.device = device
        self.gradient_bytes = 0
        self._connect = connect
        self._is_elastic = is_elastic
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._open: set[Job] = set()
        self._lock = threading.Lock()
        self._broken: str | None = None
        self._threads = threads
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = threading.Thread(target=self._serve, name="easyscale-channel", daemon=True)
        self._thread.start()

    def open(self) -> None:
        """Meet the others."""

        def connect() -> None:
            self.group = self._connect()

        self.call(connect)

    def _serve(self) -> None:
        torch.set_num_threads(self._threads)  # a new thread starts with another number, and it changes bits
        while (job := self._jobs.get()) is not None:
            if self._stream is None:
                job.run()
            else:
                with torch.cuda.stream(self._stream):
                    job.run()
            self._open.discard(job)
        self.group = None  # here, since leaving a group takes a while

    def submit(self, call: Callable[[], Any]) -> Job:
        """Run ``call`` in the channel's thread, after all that was submitted before."""
        guarded = self._guarded(call) if self._is_elastic else call
        if self._stream is None:
            job = Job(guarded)
        else:
            ready: Any = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(self.device))
            job = Job(lambda: self._on_device(guarded, ready))
        with self._lock:
            if self._broken is not None:
                job.end(None, PeerLostError(self._broken))
                return job
            self._open.add(job)
        self._jobs.put(job)
        return job

    def _guarded(self, call: Callable[[], Any]) -> Callable[[], Any]:
        def guarded() -> Any:
            try:
                return call()
            except (RuntimeError, OSError) as error:
                raise PeerLostError(f"a connection between workers broke ({error})") from error

        return guarded

    def _on_device(self, call: Callable[[], Any], ready: Any) -> Any:
        assert self._stream is not None
        self._stream.wait_event(ready)
        result = call()
        self._stream.synchronize()
        return result

    def call(self, call: Callable[[], Any]) -> Any:
        """``submit`` and wait."""
        return self.submit(call).wait()

    def broadcast(self, tensors: list[torch.Tensor], root: int) -> None:
        """Fill ``tensors`` with those of worker ``root``, one message for each dtype; waits.

        They are filled here and not in the channel's thread, which may be left to itself when a worker is lost.
        """
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        flats = self.call(lambda: [self._broadcast_flat(same, root) for same in by_dtype.values()])
        if self.rank == root:
            return
        with torch.no_grad():
            for flat, same in zip(flats, by_dtype.values(), strict=True):
                parts = flat.split([tensor.numel() for tensor in same])
                for tensor, part in zip(same, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))

    def _broadcast_flat(self, tensors: list[torch.Tensor], root: int) -> torch.Tensor:
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        options = dist.BroadcastOptions()
        options.rootRank = root
        self.group.broadcast([flat], options).wait()
        return flat

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Hand ``tensor`` to one worker; called in the channel's thread."""
        self.group.send([tensor], to, 0).wait()

    def receive(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """Fill ``tensor`` with what ``source`` sends; called in the channel's thread."""
        self.group.recv([tensor], source, 0).wait()
        return tensor

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add up ``tensor`` over workers, in place. For integers: the order of the sum is the transport's."""
        self.group.allreduce([tensor]).wait()
        return tensor

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """What every worker gave, by worker."""
        sizes = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        sizes[self.rank] = len(data)
        lengths = [int(size) for size in self.sum(sizes).tolist()]
        table = torch.zeros(self.size, max(lengths), dtype=torch.uint8, device=self.device)
        table[self.rank, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.sum(table)
        return [row[:length].numpy().tobytes() for row, length in zip(table.cpu(), lengths, strict=True)]

    def close(self) -> None:
        """End the thread and leave the group; what was submitted is done first."""
        self._jobs.put(None)
        self._thread.join()

    def leave(self) -> None:
        """The same without waiting."""
        self._jobs.put(None)

    def abandon(self, reason: str) -> None:
        """Wait for nothing of this channel any more; its thread ends when the transport lets it. From any thread."""
        with self._lock:
            self._broken = self._broken or reason
            waiting = list(self._open)
        for job in waiting:
            job.end(None, PeerLostError(reason))
        self._jobs.put(None)
