"""Shows a run: the script's own output unmodified, one status line on a terminal, nothing more elsewhere."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from easyscale.cli.status import StatusLine
from easyscale.core.events import CheckpointEvent, PlanEvent, RescaleEvent, ResumeEvent, StepEvent


class RunConsole:
    """A ``Listener`` that prints.

    Args:
        is_quiet: show the script's output and nothing of our own.
        is_stdout_taken: our result goes to standard output, so the script's goes to standard error.
        is_muted: leave the script's output to the logs.
        has_notices: say what happens to workers; without, whoever runs the job tells it in its own way.
        label: what the status line begins with.
    """

    def __init__(
        self,
        *,
        is_quiet: bool = False,
        is_stdout_taken: bool = False,
        is_muted: bool = False,
        has_notices: bool = True,
        label: str = "",
    ) -> None:
        self._is_stdout_taken = is_stdout_taken
        self._is_muted = is_muted
        self._has_notices = has_notices
        self._is_quiet = is_quiet or is_muted
        self._status = None if is_quiet or not sys.stderr.isatty() else StatusLine(label)
        self._is_at_line_start = True

    def output(self, stream: str, text: str) -> None:
        if self._is_muted or not text:
            return
        self.clear()
        _write(sys.stderr if stream == "stderr" or self._is_stdout_taken else sys.stdout, text)
        self._is_at_line_start = text.endswith("\n")

    def step(self, event: StepEvent, total_steps: int | None) -> None:
        if self._status is not None:
            self._status.step(event, total_steps)
            self.tick()

    def rescale(self, event: RescaleEvent) -> None:
        if not self._is_quiet:
            pause = event.seconds.get("pause", 0.0)
            self.notice(
                f"global step {event.global_step}: {event.before} became {event.placement} ({event.reason}, pause "
                f"{1000 * pause:.0f} ms)"
            )

    def planned(self, event: PlanEvent) -> None:
        if not self._is_quiet and event.decision != "stay":
            self.notice(f"global step {event.global_step}: the plan is {event.placement} ({event.reason})")

    def checkpoint(self, event: CheckpointEvent | ResumeEvent) -> None:
        if isinstance(event, ResumeEvent):
            for note in event.notes:
                self.notice(note)
            if not self._is_quiet:
                self.notice(f"goes on from {event.path}, after global step {event.global_step}")
        elif event.reason is not None:
            self.notice(event.reason)

    def notice(self, sentence: str) -> None:
        if not self._has_notices:
            return
        self.clear()
        print(f"easyscale: {sentence}", file=sys.stderr, flush=True)

    def tick(self) -> None:
        """Draw the status line again, but never into a line that the script has begun."""
        if self._status is not None and self._is_at_line_start:
            self._status.draw()

    def clear(self) -> None:
        if self._status is not None:
            self._status.clear()


def _write(target: TextIO, text: str) -> None:
    """The bytes that the script printed, whatever the encoding of our own streams.

    Raises:
        BrokenPipeError: nobody reads any more.
    """
    try:
        if hasattr(target, "buffer"):
            target.flush()
            target.buffer.write(text.encode("utf-8", "surrogateescape"))
        else:
            target.write(text)
        target.flush()
    except BrokenPipeError:
        # Otherwise Python tries once more at exit, and complains.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, target.fileno())
        os.close(nowhere)
        raise
