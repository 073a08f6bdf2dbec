"""The status line: step, epoch, mean of what the script logs, speed, time to go. Drawn on a terminal only."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from easyscale.core.events import StepEvent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_REDRAW_S = 0.1
_SPEED_WINDOW = 200
_MAX_SCALARS = 3


class StatusLine:
    """One line that is cleared before anything else is printed and drawn again after."""

    def __init__(self, label: str) -> None:
        from rich.console import Console

        self._console: Console = Console(stderr=True)
        self._label = label
        self._event: StepEvent | None = None
        self._total: int | None = None
        self._step_times: deque[float] = deque(maxlen=_SPEED_WINDOW)
        self._began = time.monotonic()
        self._drawn_at = 0.0
        self._is_drawn = False

    def step(self, event: StepEvent, total_steps: int | None) -> None:
        self._event, self._total = event, total_steps
        self._step_times.append(time.monotonic())

    def draw(self) -> None:
        now = time.monotonic()
        if self._console.is_dumb_terminal or now - self._drawn_at < _REDRAW_S:
            return
        self._drawn_at = now
        width = max(20, self._console.width - 1)
        with self._console.capture() as captured:
            self._console.print(self._content(now), no_wrap=True, overflow="crop", width=width)
        self._to_terminal("\r\x1b[2K" + captured.get().split("\n", 1)[0].rstrip())
        self._is_drawn = True

    def clear(self) -> None:
        if self._is_drawn:
            self._to_terminal("\r\x1b[2K")
        self._is_drawn = False
        self._drawn_at = 0.0

    def _to_terminal(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def _content(self, now: float) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 2))
        cells: list[Text | ProgressBar] = [Text(self._label, "bold")] if self._label else []
        if self._event is None:
            cells.append(Text(f"starting  {duration(now - self._began)}"))
        else:
            done = self._event.global_step + 1
            total = f"/{self._total}" if self._total else ""
            cells.append(Text(f"step {done}{total}  epoch {self._event.epoch}"))
            if self._total:
                cells.append(ProgressBar(total=self._total, completed=done, width=12))
            cells.extend(Text(f"{name} {value:.4g}", "cyan") for name, value in mean_scalars(self._event))
            cells.append(Text(self._pace(now)))
        line.add_row(*cells)
        return line

    def _pace(self, now: float) -> str:
        speed = self._steps_per_s()
        if speed is None or self._event is None:
            return duration(now - self._began)
        if not self._total:
            return f"{speed:.3g} steps/s  {duration(now - self._began)}"
        return f"{speed:.3g} steps/s  {duration((self._total - self._event.global_step - 1) / speed)} to go"

    def _steps_per_s(self) -> float | None:
        times = self._step_times
        if len(times) < 2 or times[-1] <= times[0]:
            return None
        return (len(times) - 1) / (times[-1] - times[0])


def mean_scalars(event: StepEvent) -> list[tuple[str, float]]:
    """The mean over ESTs of the first few names that the script logs."""
    names = list(dict.fromkeys(name for values in event.log.values() for name in values))[:_MAX_SCALARS]
    return [(name, _mean([values[name] for values in event.log.values() if name in values])) for name in names]


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan


def duration(seconds: float) -> str:
    """As a clock shows it: 1:05, 2:03:04."""
    minutes, seconds = divmod(int(max(0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
