"""This process's part in the generations of its job: it meets the others, loses them, meets others. In the worker.

Every *operation* of the job (a pass over a step, a sum) is done by all workers in the same order, and no worker leaves
one behind before all have its result. So when a worker is lost, those that remain compare how many operations they have
left behind: either somebody has left this one, and then everyone has its result, or it is done again by all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from easyscale.core.errors import JobFailedError, PeerLostError, RefusedError
from easyscale.core.messages import Formed, Lost, Moved, Ready
from easyscale.core.orders import Form
from easyscale.core.placement import Placement
from easyscale.train.checkpoint.state import JobState
from easyscale.train.elastic import transfer
from easyscale.train.elastic.links import Links
from easyscale.train.elastic.standing import RepeatError, RetiredError, Seat, Standing, counts_for, exchange
from easyscale.train.process.faults import reach
from easyscale.train.reduce.channel import Channel
from easyscale.train.runtime import Enrolment

Result = TypeVar("Result")
_NOTHING: Any = object()


class Member:
    """A worker of a job whose membership may change.

    Args:
        enrolment: who this worker is for the launcher.
        links: makes channels to the workers of a generation.
        seat: where this worker begins; None for a joiner.
        received: the state that the job begins from, if that is not its start.

    Attributes:
        left: operations that this worker has left behind.
        received: the job's state as a joiner was given it, or as it was read from a checkpoint.
        saver: writes checkpoints; None where there are none.
        is_behind: whether this worker's script has not come yet to where the job is.
        capture: gives the job's state at a border.
        places: gives memory that a joiner may receive the job's state into.
        check: refuses a planned change that something in the job cannot follow.
        on_place: to be told the virtual ranks of this worker when they change.
    """

    def __init__(self, enrolment: Enrolment, links: Links, seat: Seat | None, received: JobState | None = None) -> None:
        self._worker = enrolment.worker
        self._mailbox = enrolment.mailbox
        self._tell = enrolment.tell
        self._links = links
        self._seat = seat
        self._stops = set(enrolment.stops)
        self.on_place = enrolment.on_place
        self._tried = -1 if seat is None else seat.generation
        self._is_ready = False
        self._is_agreed = False
        self._global_step = 0
        self.left = 0
        self.is_behind = seat is None or received is not None
        self.received = received
        self.saver = enrolment.saver
        self.capture: Callable[[], JobState] = _no_state
        self.places: Callable[[], dict[str, torch.Tensor]] = dict
        self.check: Callable[[], None] = lambda: None
        self._mailbox.on_form = self._interrupt

    @property
    def seat(self) -> Seat:
        assert self._seat is not None, "a joiner has no place before it was let in"
        return self._seat

    @property
    def is_joiner(self) -> bool:
        """Whether this worker waits to be let in."""
        return self._seat is None

    @property
    def bytes_sent(self) -> int:
        """Bytes of gradients sent so far, in all generations."""
        return self._links.bytes_sent + (0 if self.channel is None else self.channel.gradient_bytes)

    @property
    def channel(self) -> Channel | None:
        return None if self._seat is None else self._seat.channel

    @property
    def is_broken(self) -> bool:
        """Whether the launcher says that a worker was lost."""
        form = self._mailbox.newest(self._tried)
        return form is not None and form.is_urgent

    def _interrupt(self, form: Form) -> None:
        """In the thread that listens: whoever waits for workers of an earlier generation waits in vain."""
        if form.is_urgent:
            self._links.abandon(form.generation)

    # -- operations --------------------------------------------------------------------------------------------

    @property
    def wants_to_move(self) -> bool:
        """Whether this worker has an order to form another generation as soon as all have it."""
        form = self._mailbox.newest(self._tried)
        return form is not None and not form.is_urgent and form.at_step is None

    def agree(self, votes: int) -> None:
        """So many workers have said in this operation that they want to move."""
        self._is_agreed = votes == self.seat.size

    def complete(self, work: Callable[[], Result]) -> Result:
        """Do the collective ``work`` of an operation; everyone has its result when this returns.

        Raises:
            RepeatError: a worker was lost before everyone had it; the seat is a new one.
        """
        result: Result = _NOTHING
        try:
            result = work()
            reach("operation.before_barrier")
            self._barrier()
        except PeerLostError as error:
            if not self._recover(Standing(self.left, True, result is not _NOTHING), error):
                raise RepeatError from error
        self.left += 1
        reach("operation.after_barrier")
        return result

    def _barrier(self) -> None:
        """Two workers need none: if one is lost, there is nobody whom the other could disagree with."""
        channel = self.channel
        if channel is not None and channel.size > 2:
            channel.call(lambda: channel.sum(torch.zeros(1, dtype=torch.int32, device=channel.device)))

    def give_up(self) -> None:
        """Inside an operation: the launcher says that a worker was lost.

        Raises:
            RepeatError: always; the seat is a new one.
        """
        if not self._recover(Standing(self.left, is_inside=True), None):
            raise RepeatError
        raise JobFailedError("a worker has left a pass over a step that another one was still in")

    # -- borders -----------------------------------------------------------------------------------------------

    def arrive(self) -> bool:
        """The script has come to its first loop: a joiner waits here until it is let in.

        Returns:
            Whether there is a state now that the script must come to.
        """
        is_first, self._is_ready = not self._is_ready, True
        if is_first:
            reach("startup.first_loop")
            self._tell(Ready(self._worker))
        if self._seat is not None:
            return is_first and self.received is not None
        reach("joiner.ready")
        self._enter(None, None, is_urgent=False)
        return True

    def border(self, global_step: int) -> None:
        """Between two global steps: change the generation if all have agreed to, or must.

        Raises:
            RetiredError: the job goes on without this worker.
        """
        self._global_step = global_step
        is_agreed, self._is_agreed = self._is_agreed, False
        if is_agreed:
            self._change(None)
        self.repair()
        while global_step in self._stops:
            self._change(None)

    def repair(self) -> None:
        """Between two global steps, where no joiner could find the job: change the generation only if it is broken."""
        while self.is_broken:
            self._change(None)

    def _change(self, form: Form | None) -> Form:
        started = time.time()
        reach("rescale.border")
        form, _ = self._enter(form, Standing(self.left), is_urgent=False)
        reach("rescale.done")
        self._tell(Moved(self._worker, form.generation, time.time() - started))
        return form

    def _recover(self, standing: Standing, error: PeerLostError | None) -> bool:
        """Meet those that are left. Whether the operation that broke off counts."""
        started = time.time()
        if error is not None and not self.is_broken:
            self._tell(Lost(self._worker, self.seat.generation, str(error)))
        reach("recovery.begin")
        form, counts = self._enter(None, standing, is_urgent=True)
        self._tell(Moved(self._worker, form.generation, time.time() - started))
        return counts

    # -- generations -------------------------------------------------------------------------------------------

    def _enter(self, form: Form | None, standing: Standing | None, *, is_urgent: bool) -> tuple[Form, bool]:
        """Form the generation ordered, or the next one if that does not come about, until one does."""
        while True:
            if form is None:
                form = self._mailbox.wait_form(self._tried, is_urgent=is_urgent)
            self._tried = form.generation
            if self._seat is None and self._worker not in form.members:
                form = None  # others meet, and this one goes on waiting to be let in
                continue
            try:
                seat, counts = self._meet(form, standing)
            except (PeerLostError, RefusedError) as error:
                self._links.drop()
                self._tell(Lost(self._worker, form.generation, str(error), isinstance(error, RefusedError)))
                form = None
                continue
            reach("rescale.formed")
            if self._mailbox.wait_go(form.generation):
                self._sit_down(form, seat)
                return form, counts
            self._links.drop()
            form = None

    def _meet(self, form: Form, standing: Standing | None) -> tuple[Seat | None, bool]:
        times = {"border": time.time()}
        if not form.is_urgent and self._seat is not None:
            self.check()
        placement = Placement.parse(form.placement)
        if self._worker not in form.members:
            if self._worker == form.source:
                self._give_all(form)
            self._tell(Formed(self._worker, form.generation, self._global_step, times))
            return None, False
        rank, size = form.members.index(self._worker), len(form.members)
        reach("rescale.before_meeting")
        if form.source is not None:
            beside = self._links.open(form, rank, size + 1, "-state")
            assert beside is not None
            self.received = transfer.receive(beside, size, self.places())
        channel = self._links.open(form, rank, size)
        standings = exchange(channel, standing)
        times["met"] = time.time()
        reach("rescale.before_state")
        self._hand_over(form, channel, rank)
        reach("rescale.after_state")
        times["restored"] = time.time()
        counts = counts_for(rank, standings)
        self._tell(Formed(self._worker, form.generation, self._global_step, times))
        return Seat(form.generation, placement, rank, channel), counts

    def _give_all(self, form: Form) -> None:
        """This worker leaves, and all members are new."""
        beside = self._links.open(form, len(form.members), len(form.members) + 1, "-state")
        assert beside is not None
        transfer.send(beside, self.capture(), range(len(form.members)))

    def _hand_over(self, form: Form, channel: Channel | None, rank: int) -> None:
        """Each joiner is sent the job's state by one of the others."""
        others = [place for place, worker in enumerate(form.members) if worker not in form.joiners]
        joiners = [place for place, worker in enumerate(form.members) if worker in form.joiners]
        if not joiners or not others or channel is None:
            return
        sources = {place: others[number % len(others)] for number, place in enumerate(joiners)}
        if rank in sources:
            self.received = transfer.receive(channel, sources[rank], self.places())
            return
        own = [place for place, source in sources.items() if source == rank]
        if own:
            transfer.send(channel, self.capture(), own)

    def _sit_down(self, form: Form, seat: Seat | None) -> None:
        if seat is None:
            raise RetiredError
        self._links.keep(seat.channel)
        if form.at_step is not None:
            self._stops.discard(form.at_step)
        self._seat = seat
        self._is_agreed = False

    def close(self) -> None:
        """The script has ended."""
        self._seat = None if self._seat is None else replace(self._seat, channel=None)
        self._mailbox.on_form = lambda form: None
        self._links.close()


def _no_state() -> JobState:
    raise AssertionError("nothing gives the job's state")
