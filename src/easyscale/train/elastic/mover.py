"""Takes a session from one place in its job to another, and a joiner's to where the job is. Runs in the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from easyscale.train.checkpoint.state import JobState
from easyscale.train.elastic.contexts import Contexts
from easyscale.train.elastic.member import Member
from easyscale.train.elastic.standing import RepeatError
from easyscale.train.elastic.state import StateKeeper
from easyscale.train.elastic.track import Track
from easyscale.train.prepared import Prepared
from easyscale.train.process.faults import reach
from easyscale.train.reduce.channel import Channel
from easyscale.train.totals import job_least
from easyscale.train.turns import Turns

Result = TypeVar("Result")


class Mover:
    """What follows in a session when its worker's place in the job changes.

    Args:
        member: has the place.
        turns: runs the ESTs of it.
        keeper: takes and puts the job's state.
        track: where the script is.
        prepared: the objects of the job.
        contexts: what ESTs carry.
        on_place: told the virtual ranks of this worker.
    """

    def __init__(
        self,
        member: Member,
        turns: Turns,
        keeper: StateKeeper,
        track: Track,
        prepared: Prepared,
        contexts: Contexts,
        on_place: Callable[[tuple[int, ...]], None],
    ) -> None:
        self.contexts = contexts
        self._member = member
        self._turns = turns
        self._keeper = keeper
        self._track = track
        self._prepared = prepared
        self._on_place = on_place
        self.saver = member.saver
        member.places = keeper.places
        self.generation = -1 if member.is_behind else member.seat.generation

    @property
    def num_ests(self) -> int:
        return self._member.seat.placement.num_ests

    @property
    def has_moved(self) -> bool:
        """Whether this worker's place is a new one that the session has not followed to yet (``settle``)."""
        return self._member.seat.generation != self.generation

    @property
    def channel(self) -> Channel | None:
        """To the other workers of the generation."""
        return self._member.channel

    def come_in(self) -> int | None:
        """The script has come to a loop: a joiner waits until it is let in. The job's global step if it just was."""
        if not self._member.arrive():
            return None
        state = self._member.received
        assert state is not None
        self._member.received = None
        self._member.left = state.meta["left"]
        position, journal = self._keeper.position(state)
        self._track.follow(position, journal, lambda: self._arrive(state, position.number))
        return state.global_step

    def _arrive(self, state: JobState, number: int | None) -> None:
        reach("joiner.arrived")
        self._keeper.apply(state)
        self._member.is_behind = False
        self.settle()
        self.border(state.global_step, number)  # where the others may wait for more orders

    def settle(self) -> None:
        """Run the ESTs that this worker has in the present generation."""
        seat = self._member.seat
        if seat.generation == self.generation:
            return
        self.generation = seat.generation
        self._turns.move(seat.placement, seat.rank, seat.channel)
        self.contexts.give()
        self.contexts.resume(self._prepared.loaders)
        self._on_place(self._turns.ranks)

    def border(self, global_step: int, number: int | None, *, is_last: bool = False) -> None:
        """Between two global steps, ``number`` mini-batches into the training loop that runs.

        Args:
            is_last: no other step will follow.
        """
        if self.channel is None:
            self.contexts.look()
        self._member.check = self.contexts.check
        self._member.capture = lambda: self._keeper.capture(global_step, self._member.left, number)
        self._member.border(global_step)
        self.settle()
        if self.saver is not None:
            is_writer = self._member.seat.rank == 0
            self.saver.border(global_step, self._member.capture, is_writer=is_writer, is_last=is_last)

    def repair(self) -> None:
        """Where no joiner could find the job: only replace what broke."""
        self._member.repair()
        self.settle()

    def tell_contexts(self) -> None:
        """Streams were opened: ESTs may have drawn random numbers for that.

        Raises:
            RepeatError: a worker was lost before everyone knew.
        """
        if self.contexts.is_needed:
            self.complete(self.contexts.tell)
            self.contexts.adopt()

    def complete(self, work: Callable[[Channel | None], Result]) -> Result:
        """Do collective work; everyone has its result when this returns.

        Raises:
            RepeatError: a worker was lost before everyone had it.
        """
        return self._member.complete(lambda: work(self.channel))

    def meet(self) -> None:
        """A training loop is over: nobody goes on before all have done its last step. ``settle`` belongs after it.

        What follows (the end of the script, say) is then done by the worker that hosts virtual rank 0 now, even if the
        one that hosted it was lost after its last pass.
        """
        while True:
            try:
                self.complete(lambda channel: job_least(0, channel))
                return
            except RepeatError:
                continue

    def close(self) -> None:
        """The script has ended."""
        if self.saver is not None:
            self.saver.close()
