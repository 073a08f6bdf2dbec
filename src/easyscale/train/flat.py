"""The drop-in form: one flat loop over the mini-batches of the local ESTs, one after another. Runs in the worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from easyscale.core.errors import UsageError
from easyscale.train.ddp import PlainTurns
from easyscale.train.optim import StepCalls
from easyscale.train.process.faults import reach
from easyscale.train.source import Feed, Source
from easyscale.train.turns import Turns

if TYPE_CHECKING:
    from easyscale.train.prepared import Prepared


class FlatHost(Protocol):
    """Counts the steps of the loop (``Loops``)."""

    turns: Turns | PlainTurns
    prepared: Prepared
    calls: StepCalls

    @property
    def global_step(self) -> int: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_in_step(self) -> bool: ...

    def open(self, source: Source) -> Feed | None: ...

    def close_feed(self, feed: Feed) -> None: ...

    def begin_step(self) -> float: ...

    def end_step(self, started: float, number: int | None) -> None: ...

    def leave_complete(self, started: float) -> None: ...

    def leave_broken(self, sentence: str) -> None: ...

    def abort_step(self) -> None: ...


def flat(host: FlatHost, source: Source) -> Iterator[Any]:
    """Mini-batches of the local ESTs; updates act in the last one's turn."""
    if host.is_in_step:
        raise UsageError(
            "a second prepared loader is iterated over while a global step runs over the first: go through both in "
            "the two-loop form, `for a, b in zip(session.steps(first), session.steps(second)): for x in a: ...`"
        )
    feed = host.open(source)
    if feed is None:
        return
    loop = _Loop(host, feed)
    try:
        first = feed.stream.progress.number
        while numbers := feed.upcoming(first):
            loop.started = host.begin_step()
            yield from loop.take_turns(numbers)
            while host.turns.must_repeat:  # a worker was lost: the step's mini-batches once more
                feed.settle_within(numbers)
                yield from loop.take_turns(numbers)
            feed.settle(numbers.stop)
            first = numbers.stop
            host.end_step(loop.started, first)
            feed.settle(first)
        feed.meet(first)
    except GeneratorExit:
        loop.leave()
        raise
    except BaseException:
        loop.fail()
        raise
    finally:
        host.close_feed(feed)


class _Loop:
    def __init__(self, host: FlatHost, feed: Feed) -> None:
        self._host = host
        self._feed = feed
        self._is_begun = False
        self.started = 0.0

    def take_turns(self, numbers: range) -> Iterator[Any]:
        """One pass over a step."""
        host, stream = self._host, self._feed.stream
        turns, calls = host.turns, host.calls
        turns.begin_pass(host.global_step, 0, is_drop_in=True)
        calls.begin_step()
        for rank in turns.ranks:
            self._is_begun = rank != turns.ranks[0]
            fetch = lambda r=rank: stream.fetch(r, numbers.start)  # noqa: E731
            settings = host.prepared.settings()
            yield turns.begin_turn(rank, fetch, draws_from_est=stream.draws_from_est)
            reach("step.in_turn")
            if not turns.must_repeat:
                calls.end_turn(rank)
            if not turns.is_last:
                self._check_settings(rank, settings)
            turns.end_turn()
            if turns.must_repeat:
                return

    def _check_settings(self, rank: int, before: list[Any]) -> None:
        if before != self._host.prepared.settings():
            raise UsageError(
                f"an optimizer's settings (its learning rate, say) were changed in the turn of virtual rank {rank}, "
                f"while other ESTs of global step {self._host.global_step} have not run, so they would change once for "
                f"each mini-batch: give the LR scheduler to session.prepare, or change them where "
                f"session.sync_gradients is true"
            )

    def fail(self) -> None:
        """An error came from loading, or from what runs a step."""
        host = self._host
        if self._is_begun or host.calls.has_any:
            host.leave_broken(
                f"loading a mini-batch of global step {host.global_step} failed, and the script went on, but other "
                "ESTs have had theirs: let the error end the run, or let the dataset give another sample"
            )
        host.abort_step()

    def leave(self) -> None:
        """The script left the loop: the step counts if its update was made."""
        host, turns = self._host, self._host.turns
        if host.is_closed or turns.rank is None:
            return
        if turns.is_synced and host.calls.has_any and not turns.must_repeat:
            turns.end_turn()
            host.leave_complete(self.started)
            return
        if self._is_begun or host.calls.has_any:
            host.leave_broken(
                f"the loop was left in the turn of virtual rank {turns.rank}, in the middle of global step "
                f"{host.global_step}: other ESTs of it have not run. Leave it where session.sync_gradients is true, "
                "or before the first mini-batch of a step is used"
            )
        turns.abort()
