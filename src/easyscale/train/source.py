"""The mini-batches of one loop over global steps, whichever ESTs this worker runs. Runs in the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from easyscale.core.errors import JobFailedError, UsageError
from easyscale.train.context.rng import RngPolicy
from easyscale.train.data.loader import ElasticLoader
from easyscale.train.data.streams import Stream
from easyscale.train.ddp import PlainTurns
from easyscale.train.elastic.contexts import Contexts
from easyscale.train.elastic.mover import Mover
from easyscale.train.elastic.standing import RepeatError
from easyscale.train.step import Counter
from easyscale.train.turns import Turns


@dataclass(frozen=True, slots=True)
class LoaderSource:
    """A prepared loader.

    Attributes:
        per_turn: mini-batches of each EST in a step.
        rng: switches to an EST's random stream where ESTs carry theirs; else None.
        agree: the least of what all workers say.
    """

    loader: ElasticLoader
    per_turn: int
    rng: RngPolicy | None
    agree: Callable[[int], int]

    def open(self, ranks: tuple[int, ...], start: int, *, is_checked: bool) -> Stream:
        """Begin where the loader's own position says, which is ``start``.

        Args:
            is_checked: whether other workers are asked if they iterate over the same loader.
        """
        if is_checked:
            self.loader.check_alike(self.agree)
        return self.loader.open(ranks, self.per_turn, self.rng, self.agree)

    def move(self, stream: Stream, ranks: tuple[int, ...], number: int, contexts: Contexts) -> Stream:
        """The same mini-batches for other ESTs, from ``number`` on."""
        by_rank = contexts.of_streams(self.loader)
        return self.loader.move(stream, ranks, number, self.per_turn, self.rng, self.agree, by_rank)

    def is_told(self, contexts: Contexts) -> bool:
        """Whether all workers tell each other what their ESTs carry when a stream was opened."""
        return contexts.is_needed or self.loader.order.is_stream

    def position(self, contexts: Contexts) -> dict[str, Any] | None:
        """Where the loader stands before a loop, if ESTs carry something that opening a stream changes."""
        if not self.is_told(contexts) or self.loader.is_running:
            return None
        try:
            return contexts.position_of(self.loader)
        except UsageError:  # it cannot be kept, which matters only if a worker is lost right now
            return None

    def load(self, position: dict[str, Any] | None, contexts: Contexts) -> None:
        """Go back to ``position``."""
        if position is not None:
            self.loader.load_state_dict(position)
        elif self.is_told(contexts):
            raise JobFailedError("a worker was lost while a loader whose position cannot be kept began an epoch")

    def close(self, stream: Stream) -> None:
        self.loader.close_stream(stream)

    def count(self) -> int:
        """Global steps."""
        return -(-len(self.loader) // self.per_turn)


@dataclass(frozen=True, slots=True)
class CountedSource:
    """A number of steps without a loader."""

    steps: int
    per_turn: int

    def open(self, ranks: tuple[int, ...], start: int, *, is_checked: bool) -> Stream:
        return Counter(self.steps * self.per_turn, start)

    def move(self, stream: Stream, ranks: tuple[int, ...], number: int, contexts: Contexts) -> Stream:
        return Counter(self.steps * self.per_turn, number)

    def is_told(self, contexts: Contexts) -> bool:
        return contexts.is_needed

    def position(self, contexts: Contexts) -> dict[str, Any] | None:
        return None

    def load(self, position: dict[str, Any] | None, contexts: Contexts) -> None:
        return

    def close(self, stream: Stream) -> None:
        return

    def count(self) -> int:
        """Global steps."""
        return self.steps


Source = LoaderSource | CountedSource


class Feed:
    """The stream of one loop, for whichever ESTs this worker runs.

    Args:
        start: its first mini-batch.
        is_joining: the other workers are in the middle of the loop.

    Attributes:
        stream: what it is now.
    """

    def __init__(
        self, source: Source, turns: Turns | PlainTurns, mover: Mover | None, start: int, *, is_joining: bool
    ) -> None:
        self._source = source
        self._turns = turns
        self._mover = mover
        self.stream = self._open(start, is_joining)
        self._generation = 0 if mover is None else mover.generation

    def _open(self, start: int, is_joining: bool) -> Stream:
        mover = self._mover
        if mover is None:
            return self._source.open(self._turns.ranks, start, is_checked=True)
        while True:
            before = self._source.position(mover.contexts)
            stream = None
            try:
                # a worker may be lost in between, and one operation at a time can be repeated
                stream = self._source.open(self._turns.ranks, start, is_checked=False)
                self._note(stream)
                if not is_joining:
                    if mover.has_moved and self._source.is_told(mover.contexts):
                        raise RepeatError  # what was agreed on counts, but a lost worker's ESTs opened no stream
                    mover.tell_contexts()
                return stream
            except RepeatError:  # a worker was lost while all opened their streams
                if stream is not None:
                    self._close(stream)
                self._source.load(before, mover.contexts)
                mover.settle()

    def _note(self, stream: Stream) -> None:
        """ESTs carry positions in streams that run."""
        if self._mover is not None and isinstance(self._source, LoaderSource):
            self._mover.contexts.running.append((self._source.loader, stream))

    def _close(self, stream: Stream) -> None:
        self._source.close(stream)
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        if self._mover is not None:
            running = self._mover.contexts.running
            running[:] = [one for one in running if one[1] is not stream]

    def settle(self, number: int) -> bool:
        """If this worker's ESTs are others now: give their mini-batches, from ``number`` on. Whether they are."""
        mover = self._mover
        if mover is None:
            return False
        mover.settle()
        if self._generation == mover.generation:
            return False
        self._generation = mover.generation
        old = self.stream
        self.stream = self._source.move(old, self._turns.ranks, number, mover.contexts)
        self._forget(old)
        self._note(self.stream)
        return True

    def settle_within(self, numbers: range) -> None:
        """The same inside a step, to whose mini-batches ``upcoming`` had come."""
        if self.settle(numbers.start):
            self.stream.go_on_within(numbers)

    def meet(self, number: int) -> None:
        """The loop has come to its end, after ``number`` mini-batches, on all workers."""
        if self._mover is not None:
            self._mover.meet()
            self.settle(number)

    def upcoming(self, first: int) -> range:
        """Numbers of the mini-batches of the next global step, none at the end."""
        while True:
            try:
                return self.stream.upcoming(first, self._source.per_turn)
            except RepeatError:
                self.settle(first)

    def steps_from(self, first: int) -> int | None:
        """Global steps from mini-batch ``first`` on, if it is known."""
        length = self.stream.length
        return None if length is None else -(-(length - first) // self._source.per_turn)

    def close(self) -> None:
        """The loop is over."""
        self._close(self.stream)
