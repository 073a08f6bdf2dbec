"""Process host of the test fleet: imports torch once, forks the members, reaps them.

Runs as a program of its own (``python nursery.py FD ...``), so a member holds nothing that the test process has
imported: what is not asked for by name is not loaded. A member ends when its connection does, that is also when the
test process is killed.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy  # noqa: F401  (imported before the fork, as all that every member would import at its first step)
import torch
import torch._dynamo


def main(fds: list[int]) -> None:
    """Fork one member for each file descriptor and wait until all have ended."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for index, fd in enumerate(fds):
        if os.fork() == 0:
            for other in fds[:index] + fds[index + 1 :]:
                os.close(other)
            _serve(Connection(fd))
            os._exit(0)
    for fd in fds:
        os.close(fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for _ in fds:
        os.wait()
    os._exit(0)  # taking the interpreter down in order takes seconds with torch in it


def _serve(connection: Connection) -> None:
    """Do what is asked until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    connection.send(os.getpid())
    while True:
        try:
            target, arguments = connection.recv()
        except EOFError:
            return
        connection.send(_answer(target, arguments))


def _answer(target: str, arguments: dict[str, Any]) -> tuple[str, Any]:
    module_name, _, function_name = target.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        return "value", function(**arguments)
    except BaseException as error:  # noqa: BLE001  (it is told to whoever asked)
        return "error", (type(error).__name__, str(error), traceback.format_exc())


if __name__ == "__main__":
    main([int(fd) for fd in sys.argv[1:]])
