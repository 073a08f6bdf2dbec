"""One global step, as the script sees it: iterate over it once for each update.

Runs in the worker. The iterator gives each local EST its mini-batch in turn; when it ends, ``.grad`` is the average
over all ESTs of the job. Iterating again gives the same mini-batches, and each EST's random stream goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from easyscale.core.errors import UsageError
from easyscale.train.data.position import Progress
from easyscale.train.data.streams import Stream
from easyscale.train.process.faults import reach


class TurnTaking(Protocol):
    """Runs turns: ``Turns``, or plain DDP where there is one EST in a process."""

    ranks: tuple[int, ...]
    rank: int | None
    must_repeat: bool

    def begin_pass(self, global_step: int, pass_index: int, *, is_drop_in: bool) -> None: ...

    def begin_turn(self, virtual_rank: int, fetch: Any, *, draws_from_est: bool) -> Any: ...

    def begin_micro_batch(self, *, is_last: bool) -> None: ...

    def end_turn(self) -> None: ...

    def skip(self, virtual_rank: int, fetch: Any, *, draws_from_est: bool) -> None: ...

    def abort(self) -> None: ...


class Feed(Protocol):
    """Gives the stream of a loop, whichever ESTs this worker runs (``source.Feed``)."""

    stream: Stream

    def settle(self, number: int) -> bool: ...

    def settle_within(self, numbers: range) -> None: ...


class Counter:
    """The stream of ``session.steps(1000)``: no data, the script makes its own; a mini-batch is the virtual rank."""

    draws_from_est = False

    def __init__(self, batches: int, start: int = 0) -> None:
        self.progress = Progress((0,), start)
        self.length = batches

    def upcoming(self, first: int, most: int) -> range:
        return range(first, min(first + most, self.length))

    def go_on_within(self, numbers: range) -> None:
        return

    def fetch(self, virtual_rank: int, number: int) -> int:
        self.progress.note(0, number)
        return virtual_rank

    def refetch(self, virtual_rank: int, number: int) -> int:
        return virtual_rank

    def state(self, *, is_over: bool) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        return


class Steps:
    """What ``session.steps`` returns: iterate over it for the global steps of an epoch.

    ``len`` is their number, as far as it is known, so that progress bars can be put around it.
    """

    def __init__(self, steps: Callable[[], Iterator[Step]], count: Callable[[], int]) -> None:
        self._steps = steps
        self._count = count

    def __iter__(self) -> Iterator[Step]:
        return self._steps()

    def __len__(self) -> int:
        return self._count()


class Loud(Iterator[Any]):
    """An iterator that, after an error, does not look as if it had come to its end."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self._inner = inner
        self._error: BaseException | None = None

    def __next__(self) -> Any:
        if self._error is not None:
            raise UsageError(
                "the next mini-batch was asked for after loading one had failed: a mini-batch cannot be left out, so "
                "let the error end the run, or let the dataset give another sample in the place of a broken one"
            ) from self._error
        try:
            return next(self._inner)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = error
            raise

    def close(self) -> None:
        """The loop is left."""
        self._inner.close()  # type: ignore[attr-defined]


class Step:
    """A global step. ``for batch in step:`` runs forward and backward of every local EST.

    Args:
        turns: runs the turns.
        feed: where mini-batches come from.
        batches: their numbers in the epoch, for this step (several with gradient accumulation).
        global_step: number of the step in the job, from 0.
    """

    def __init__(self, turns: TurnTaking, feed: Feed, batches: range, global_step: int) -> None:
        self.global_step = global_step
        self._turns = turns
        self._feed = feed
        self._batches = batches
        self._passes = 0
        self._left_in: int | None = None
        self._is_over = False

    def __iter__(self) -> Iterator[Any]:
        if self._is_over:
            raise UsageError(f"global step {self.global_step} is over: iterate over a step inside its own outer body")
        if self._turns.rank is not None:
            raise UsageError(
                f"global step {self.global_step} is already being iterated over: finish the inner loop first"
            )
        return self._run()

    def _run(self) -> Iterator[Any]:
        index, self._passes = self._passes, self._passes + 1
        while True:
            # when another worker was lost, this one has other ESTs: in the next pass, or in this one, done again
            if index == 0:
                self._feed.settle_within(self._batches)
            else:
                self._feed.settle(self._batches.stop)
            yield from self._take_turns(index)
            if not self._turns.must_repeat:
                break
        self._feed.settle(self._batches.stop)
        self._left_in = None
        reach("step.outer_body")

    def _take_turns(self, index: int) -> Iterator[Any]:
        turns, stream = self._turns, self._feed.stream
        fetch = stream.fetch if index == 0 else stream.refetch
        draws = stream.draws_from_est and index == 0
        turns.begin_pass(self.global_step, index, is_drop_in=False)
        for rank in turns.ranks:
            self._left_in = rank
            last = self._batches[-1]
            turns.begin_micro_batch(is_last=self._batches[0] == last)
            yield turns.begin_turn(rank, lambda r=rank: fetch(r, self._batches[0]), draws_from_est=draws)
            for number in self._batches[1:]:
                turns.begin_micro_batch(is_last=number == last)
                yield fetch(rank, number)
            reach("step.in_turn")
            turns.end_turn()
            if turns.must_repeat:
                return

    def end(self) -> None:
        """The outer body is over.

        Raises:
            UsageError: an inner loop was left before all ESTs had run.
        """
        self._is_over = True
        if self._left_in is not None:
            self._turns.abort()
            raise UsageError(
                f"the inner loop over global step {self.global_step} was left in the turn of virtual rank "
                f"{self._left_in}, so other ESTs have not run: let `for batch in step:` run to its end (leave the "
                "outer loop instead)"
            )
        if self._passes == 0:
            stream = self._feed.stream
            for rank in self._turns.ranks:
                for number in self._batches:
                    self._turns.skip(
                        rank,
                        lambda r=rank, n=number: stream.fetch(r, n),
                        draws_from_est=stream.draws_from_est,
                    )

    @property
    def is_complete(self) -> bool:
        """Whether the last pass over this step ran to its end."""
        return self._passes > 0 and self._left_in is None
