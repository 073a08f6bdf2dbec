"""When which process finished which global step, and what that says about a pause. Imports neither torch nor EasyScale.

Training scripts of the rescale bench append a line to a file of their own for each step they finish; the bench reads
along. Times are seconds of ``time.time()``, which all processes of a machine share.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_LOOK_S = 0.02


class Stamper:
    """The writing side, in a training script."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def stamp(self, global_step: int) -> None:
        """This process has finished ``global_step`` just now."""
        os.write(self._fd, f"{global_step} {time.time()}\n".encode())


class Tail:
    """Reads a file that grows, whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> Iterator[str]:
        """What has come since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        yield from whole.decode().splitlines()


class Stamps:
    """The reading side.

    Attributes:
        by_pid: for each process, (global step, when it was finished), in order.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[int, Tail] = {}
        self.by_pid: dict[int, list[tuple[int, float]]] = {}

    def read(self) -> None:
        """Take in what has come since the last call."""
        for path in self._folder.iterdir():
            tail = self._tails.setdefault(int(path.name), Tail(path))
            for line in tail.lines():
                step, when = line.split()
                self.by_pid.setdefault(int(path.name), []).append((int(step), float(when)))

    @property
    def last_step(self) -> int:
        """The highest step that any process has finished; -1 before the first."""
        return max((stamps[-1][0] for stamps in self.by_pid.values()), default=-1)

    def finished_at(self, global_step: int) -> float:
        """When the last of those that did ``global_step`` had finished it (the first time)."""
        first = [dict(reversed(stamps)) for stamps in self.by_pid.values()]
        return max(stamps[global_step] for stamps in first if global_step in stamps)

    def steps_s(self, first: int, last: int) -> list[float]:
        """How long each step from ``first`` to ``last`` took."""
        ends = [self.finished_at(step) for step in range(first - 1, last + 1)]
        return [after - before for before, after in zip(ends, ends[1:], strict=False)]

    def usual_step_s(self, first: int, last: int) -> float:
        """The median step from ``first`` to ``last``."""
        return statistics.median(self.steps_s(first, last))

    def repeated(self) -> int:
        """Steps that a process finished more than once."""
        return sum(len(stamps) - len({step for step, _ in stamps}) for stamps in self.by_pid.values())


def is_alive(pid: int) -> bool:
    """Whether a process runs (and is no zombie)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = 300.0) -> None:
    """Look again and again, seldom enough not to disturb what is measured.

    Raises:
        TimeoutError: it does not come.
    """
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience_s:.0f} s for {what}")
        time.sleep(_LOOK_S)
