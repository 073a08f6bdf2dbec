"""How far the script has come, counted in calls of the session, and how a script that joins later gets there.

Runs in the worker. A joiner runs the script from its first line. Until it has come to where the job is, loops that are
over for the others are empty for it and sums are those that the others got.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from easyscale.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class ScriptPosition:
    """A place between two global steps of the script.

    Attributes:
        epoch_loops: loops over ``session.epochs`` that are over.
        epoch: the epoch that runs; None outside of such a loop.
        loops: loops over loaders that are over, in this epoch or since the last loop over epochs.
        sums: results of ``session.sum`` that the script has had in this epoch.
        outer_sums: those that it has had outside of all epochs.
        number: mini-batches of each EST consumed in the training loop that runs; None outside of one.
    """

    epoch_loops: int = 0
    epoch: int | None = None
    loops: int = 0
    sums: int = 0
    outer_sums: int = 0
    number: int | None = None

    @property
    def of_loop(self) -> tuple[int, int | None, int]:
        return (self.epoch_loops, self.epoch, self.loops)


@dataclass(slots=True)
class Journal:
    """Results of ``session.sum`` that a joiner needs: those outside of epochs, and those of the epoch that runs."""

    outer: list[Any] = field(default_factory=list)
    inner: list[Any] = field(default_factory=list)


class Track:
    """Where this worker's script is.

    Attributes:
        here: its position.
        journal: sums so far.
        depth: loops over loaders that run, one inside of another.
    """

    def __init__(self) -> None:
        self.here = ScriptPosition()
        self.journal = Journal()
        self.depth = 0
        self._target: ScriptPosition | None = None
        self._on_arrival: Callable[[], None] = lambda: None

    @property
    def is_behind(self) -> bool:
        """Whether the job is farther than this script."""
        return self._target is not None

    def follow(self, target: ScriptPosition, journal: Journal, on_arrival: Callable[[], None]) -> None:
        """The job is at ``target``: come there, and call ``on_arrival``."""
        self._target, self.journal, self._on_arrival = target, journal, on_arrival

    def position(self, number: int | None) -> ScriptPosition:
        """Where this worker is, ``number`` mini-batches into the training loop that runs."""
        return dataclasses.replace(self.here, number=number)

    def begin_epochs(self) -> int | None:
        """A loop over epochs begins: its first epoch, or None if it is over already."""
        target = self._target
        if target is None or self._is_here():
            return 0
        if self.here.epoch_loops < target.epoch_loops:
            self.end_epochs()
            return None
        if target.epoch is None:
            raise self._astray()
        return target.epoch

    def begin_epoch(self, epoch: int) -> None:
        if self._target is not None and epoch != self._target.epoch:
            raise self._astray()
        if self._target is None:
            self.journal.inner.clear()
        self.here = dataclasses.replace(self.here, epoch=epoch, loops=0, sums=0)

    def end_epochs(self) -> None:
        self.here = dataclasses.replace(self.here, epoch_loops=self.here.epoch_loops + 1, epoch=None, loops=0, sums=0)

    def begin_loop(self, *, is_training: bool) -> int | None:
        """A loop over a loader begins: at which mini-batch, or None if it is over already."""
        target, start = self._target, 0
        if target is not None and not self._is_here():
            if target.number is None or not is_training or self.here.of_loop != target.of_loop:
                self._count_loop()
                return None
            start = target.number
            self._arrive()
        self.depth += 1
        return start

    def end_loop(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self._count_loop()

    def replayed_sum(self) -> tuple[Any] | None:
        """What a sum was that the others had before this script came to it, as the one item of a tuple."""
        if self._target is None or self._is_here():
            return None
        is_inner = self.here.epoch is not None
        known, done = (self.journal.inner, self.here.sums) if is_inner else (self.journal.outer, self.here.outer_sums)
        if done >= len(known):
            raise self._astray()
        self._count_sum()
        return (known[done],)

    def note_sum(self, result: Any) -> None:
        """A sum of the whole job; inside of a loop no joiner will ask for it again."""
        if self.depth:
            return
        (self.journal.outer if self.here.epoch is None else self.journal.inner).append(result)
        self._count_sum()

    def check_arrived(self) -> None:
        """The script is at its end.

        Raises:
            UsageError: the job was never found.
        """
        if self._target is not None:
            raise self._astray()

    def _count_loop(self) -> None:
        self.here = dataclasses.replace(self.here, loops=self.here.loops + 1)

    def _count_sum(self) -> None:
        name = "outer_sums" if self.here.epoch is None else "sums"
        self.here = dataclasses.replace(self.here, **{name: getattr(self.here, name) + 1})

    def _is_here(self) -> bool:
        if self.here != self._target:
            return False
        self._arrive()
        return True

    def _arrive(self) -> None:
        self._target = None
        self._on_arrival()

    def _astray(self) -> UsageError:
        return UsageError(
            f"this worker joined the job at {self._target}, but its script came to {self.here} and did not find it: "
            "the script must make the same loops and sums in every process, whatever was computed before (no file that "
            "an earlier epoch wrote, no clock may decide which)"
        )
