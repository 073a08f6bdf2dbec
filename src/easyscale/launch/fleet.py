"""All worker processes of a run: started, waited for, and none of them left at the end. Runs in the launcher."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from easyscale.core.errors import JobFailedError
from easyscale.core.messages import WorkerConfig
from easyscale.core.orders import Order
from easyscale.launch.signals import StopSignals
from easyscale.launch.worker_process import WorkerProcess

VANISH_S = 2.0
"""How long what was killed may take to be gone."""
_OWN_PAUSE_S = 2.0
"""A launcher that was stopped itself for so long knows nothing of its workers."""


class Fleet:
    """The workers of one run."""

    def __init__(self) -> None:
        self.workers: list[WorkerProcess] = []
        self._looked_at = time.monotonic()

    def start(self, configs: Iterable[WorkerConfig]) -> None:
        """Start a worker for each; those that started are there even when one does not.

        Raises:
            JobFailedError: a process cannot be started.
        """
        for config in configs:
            try:
                self.workers.append(WorkerProcess(config))
            except (OSError, EOFError) as error:
                raise JobFailedError(f"worker {config.worker_rank} could not be started ({error})") from error

    def find(self, worker: int) -> WorkerProcess:
        """The worker of this number."""
        return self.workers[worker]

    @property
    def open_workers(self) -> list[WorkerProcess]:
        """Those from which something may still come."""
        return [worker for worker in self.workers if worker.is_open]

    def wait(self, signals: StopSignals, others: Sequence[Any], timeout_s: float) -> list[WorkerProcess]:
        """Workers that have a message or have ended; returns at once when a signal has come, or something of others."""
        workers = self.open_workers
        sources: list[Any] = [signals, *others, *(w.connection for w in workers), *(w.sentinel for w in workers)]
        ready: list[Any] = wait(sources, timeout_s)
        if signals in ready:
            signals.drain()
        return [worker for worker in workers if worker.connection in ready or worker.sentinel in ready]

    def order(self, order: Order) -> None:
        """Give the same order to all."""
        for worker in self.open_workers:
            worker.send(order)

    def terminate(self) -> None:
        """Ask all to end."""
        for worker in self.workers:
            worker.terminate()

    def kill(self) -> None:
        """End all, and all that they started."""
        for worker in self.workers:
            worker.kill()

    def kill_silent(self, now: float, timeout_s: float) -> None:
        """A process that says nothing for so long is stopped or hangs: it is lost, as if it had died."""
        paused, self._looked_at = now - self._looked_at > _OWN_PAUSE_S, now
        for worker in self.open_workers:
            if paused:
                worker.heard_at = now
            elif worker.has_started_script and now - worker.heard_at > timeout_s:
                worker.kill()

    def remove(self) -> None:
        """Nothing of any worker is left: neither the process nor what it started."""
        self.kill()
        deadline = time.monotonic() + VANISH_S
        for worker in self.workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            worker.kill_leftovers()
            while not worker.is_group_gone() and time.monotonic() < deadline:
                # The system has no event for the end of a process group; what was killed is gone within a moment.
                time.sleep(0.005)
            worker.release()


@contextmanager
def rendezvous_store() -> Iterator[str]:
    """A file name in a folder of its own, through which the workers find each other; no port is used.

    Raises:
        JobFailedError: there is no place for temporary files.
    """
    try:
        folder = tempfile.mkdtemp(prefix="easyscale-")
    except OSError as error:
        raise JobFailedError(f"no temporary folder can be made ({error}): set TMPDIR to one that can") from error
    try:
        yield str(Path(folder) / "store")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
