"""Where the workers of one generation find each other: a folder with a file for each key. Runs in the worker.

``torch.distributed.FileStore`` looks every 10 ms, and cannot be left while it waits for a worker that has died.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

_LOOK_S = 0.001


class Meeting(dist.Store):
    """The store of one generation.

    Args:
        folder: its own; made by whoever comes first.
        is_left: whether to wait no longer.
    """

    def __init__(self, folder: Path, is_left: Callable[[], bool]) -> None:
        super().__init__()
        self._folder = folder
        self._is_left = is_left
        folder.mkdir(exist_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", "_")

    def set(self, key: str, value: Any) -> None:
        partial = self._folder / f".{os.getpid()}.partial"
        partial.write_bytes(value if isinstance(value, bytes) else value.encode())
        partial.replace(self._path(key))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._path(key).read_bytes()

    def check(self, keys: list[str]) -> bool:
        return all(self._path(key).exists() for key in keys)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        while not self.check(keys):
            if self._is_left():
                raise ConnectionError(f"nobody waits for {', '.join(keys)} any more")
            time.sleep(_LOOK_S)  # the system could tell us, but not in the standard library
