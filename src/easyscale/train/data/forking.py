"""Data workers that are sure to begin. Runs in the worker.

A process with several threads forks a copy in which one of them lives on, and what the others held just then stays
held. Python 3.11 itself can be caught: a thread of gloo's that gives back a tensor takes the interpreter's list of
threads for a moment, and a process forked in that moment waits for it for ever, before its first line. It lives and
loads nothing, so nobody would notice. Here each data worker says that it has begun, and is forked again if it does not.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext, ForkContext, ForkProcess
from typing import Any

from easyscale.core.errors import DataError

BEGIN_S = 10.0
"""How long a data worker may take to begin: some milliseconds are usual."""
_TRIES = 5


# What was garbage in the process that forked is not to be collected in the copy: the end of a process group of gloo's
# would wait for its threads, which are not there.
os.register_at_fork(after_in_child=gc.freeze)


class _Process(ForkProcess):
    _said: int

    def start(self) -> None:
        work = {name: vars(self)[name] for name in ("_target", "_args", "_kwargs")}
        for _ in range(_TRIES):
            if self._begins():
                return
            self.kill()
            self.join()
            vars(self).update(work, _popen=None)  # as before it was started
        raise DataError(
            f"a data worker was forked {_TRIES} times, and did not begin within {BEGIN_S:.0f} s: other threads of the "
            'script hold something that it needs. Use num_workers=0, or multiprocessing_context="spawn"'
        )

    def _begins(self) -> bool:
        reader, self._said = os.pipe()
        try:
            super().start()
            os.close(self._said)
            return bool(wait([reader], BEGIN_S))  # also if it has ended, which is noticed elsewhere
        finally:
            os.close(reader)

    def run(self) -> None:
        os.write(self._said, b".")
        os.close(self._said)
        super().run()


class _Context(ForkContext):
    Process = _Process


def sure_context(asked: Any) -> BaseContext | None:
    """What to start data workers with: the script's own choice, but for plain forking."""
    is_forking = asked is None and multiprocessing.get_start_method() == "fork"
    return _Context() if is_forking or type(asked) is ForkContext else asked
