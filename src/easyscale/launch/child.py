"""First lines of a worker process. The only place where launching meets training: by name, inside the new process."""

from __future__ import annotations

import importlib
import signal
from multiprocessing.connection import Connection

WORKER_MODULE = "easyscale.train.worker"
PRELOAD = ["torch", "torch._dynamo", WORKER_MODULE, "easyscale.train.opening"]
"""Imported once, before workers are forked. Every torch optimizer imports ``torch._dynamo``, which takes a while."""

STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""What asks a launcher to stop; the forkserver is started with them blocked, and so are its children."""


def main(config_json: str, connection: Connection) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    importlib.import_module(WORKER_MODULE).main(config_json, connection)
