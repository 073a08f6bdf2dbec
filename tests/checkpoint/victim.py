"""A process of its own that dies while it saves, at each point in turn. Run by test_kill.py, never imported.

Usage: python victim.py FOLDER. Each point gets a folder of that name and a child of its own, which saves step 1, then
dies by SIGKILL while it saves step 2.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.checkpoint.states import job_state

from easyscale.train.checkpoint.store import CheckpointStore
from easyscale.train.checkpoint.write import POINTS

SIZE = 300_000  # so that half of it is more than one write


def die(folder: Path, fatal: str, *, is_async: bool) -> None:
    armed = False

    def hook(point: str) -> None:
        if armed and point == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    store = CheckpointStore(folder, keep=1, hook=hook)
    store.save(job_state(1, SIZE))
    armed = True
    if is_async:
        store.save_async(job_state(2, SIZE))
        store.wait()
    else:
        store.save(job_state(2, SIZE))


def main() -> None:
    for is_async in (False, True):
        for point in POINTS:
            folder = Path(sys.argv[1]) / f"{point}-{'async' if is_async else 'sync'}"
            child = os.fork()
            if child == 0:
                die(folder, point, is_async=is_async)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status), point
            assert os.WTERMSIG(status) == signal.SIGKILL, point


if __name__ == "__main__":
    main()
