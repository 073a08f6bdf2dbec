"""The job master: which workers a job has, and when that changes. Runs in the launcher.

A state machine without processes, clock or files: it is told what happened and answers with actions. Only one change is
under way at any time. A generation begins when all its members say that they have met and have the job's state; until
then the one before is what a loss falls back to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from easyscale.core.errors import RefusedError
from easyscale.core.messages import Formed, Lost
from easyscale.core.orders import Form, Go, Order
from easyscale.core.placement import Placement
from easyscale.launch.elasticity import STEPS_THAT_FORGIVE, Elasticity

SETTLE_S = 0.5
"""How long a broken connection waits for the news of whose end it was."""
_MOST_FAILED_JOINERS = 3


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker that joins."""

    worker: int


@dataclass(frozen=True, slots=True)
class Send:
    """Give a worker an order."""

    worker: int
    order: Order


@dataclass(frozen=True, slots=True)
class Kill:
    """End a worker: nobody needs it."""

    worker: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job cannot go on."""

    message: str


@dataclass(frozen=True, slots=True)
class Say:
    """The user should know."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Begun:
    """A generation has begun.

    Attributes:
        decided_at: when it was wished for, or a worker was lost.
        started_at: when the job began to wait for new workers; without any the same as ``staffed_at``.
        staffed_at: when all that it needs were there.
    """

    form: Form
    before: Placement
    members_before: tuple[int, ...]
    reason: str
    decided_at: float
    started_at: float
    staffed_at: float
    formed: tuple[Formed, ...]


Action = Start | Send | Kill | GiveUp | Say | Begun


@dataclass(slots=True)
class _Worker:
    number: int
    is_ready: bool = False
    is_leaving: bool = False
    is_gone: bool = False
    has_finished: bool = False

    @property
    def is_there(self) -> bool:
        return not self.is_gone and not self.has_finished


class Master:
    """Membership of one job.

    Args:
        placement: where the job begins.
        rules: what may change.
        store_path: what names of rendezvous stores begin with.

    Attributes:
        members: workers by rank in the present generation.
        failures: workers lost one after another, without enough steps between.
    """

    def __init__(self, placement: Placement, rules: Elasticity, store_path: str) -> None:
        self.placement = placement
        self.members: list[int] = list(range(placement.num_workers))
        self.generation = 0
        self.failures = 0
        self._rules = rules
        self._store_path = store_path
        self._workers = {number: _Worker(number) for number in self.members}
        self._newest = 0
        self._pending: Form | None = None
        self._expected: set[int] = set()
        self._formed: dict[int, Formed] = {}
        self._target = placement
        self._schedule = deque(rules.schedule)
        self._is_ending = False
        self._steps_since_failure = 0
        self._failed_joiners = 0
        self._suspect: tuple[int, float, str] | None = None
        self._reason, self._wish = "", "replacement"
        self._decided_at = self._started_at = self._staffed_at = 0.0
        self._reached = 0
        self._actions: list[Action] = []

    def actions(self) -> list[Action]:
        """What is to be done now; asked for after everything that the master is told."""
        actions, self._actions = self._actions, []
        return actions

    # -- what happened -----------------------------------------------------------------------------------------

    def opened(self, num_ests: int) -> None:
        """The script says how many ESTs there are; told before anything changed."""
        if self.generation == 0 and num_ests != self.placement.num_ests:
            self.placement = self._target = Placement.even(num_ests, self.placement.num_workers)

    def ready(self, worker: int, now: float) -> None:
        """The script of ``worker`` has come to its first loop."""
        self._workers[worker].is_ready = True
        self._advance(now)

    def formed(self, message: Formed, now: float) -> None:
        """A worker has met the others of the generation that forms."""
        if self._pending is None or message.generation != self._pending.generation:
            return
        self._formed[message.worker_rank] = message
        if self._expected <= self._formed.keys():
            self._begin(now)

    def lost(self, message: Lost, now: float) -> None:
        """A worker cannot reach the others: whose end it was is soon known, or nobody's."""
        if message.generation not in (self.generation, self._newest):
            return
        if message.is_refused:
            self._form_urgent(now, "a change was refused")
            self._drop_wishes(message.reason)
            return
        if self._suspect is None:
            self._suspect = (self._newest, now + SETTLE_S, message.reason)

    def leaving(self, worker: int, now: float) -> None:
        """Somebody has asked ``worker`` to end."""
        self._workers[worker].is_leaving = True
        if worker not in self.members and (self._pending is None or worker not in self._pending.members):
            self._dismiss(worker)
            self._advance(now)
            return
        self._decide(now)

    def gone(self, worker: int, why: str, now: float, *, is_joiner_error: bool = False) -> None:
        """The process of ``worker`` has ended without having been asked to."""
        was = self._workers[worker]
        was.is_gone = True
        if was.has_finished:
            return
        self._count_failure(why)
        is_member = worker in self.members
        self._failed_joiners += not is_member and is_joiner_error
        if is_member or (self._pending is not None and worker in self._pending.members):
            self._form_urgent(now, "loss" if is_member else "loss of a joiner")
        if self._failed_joiners >= _MOST_FAILED_JOINERS:
            self._failed_joiners = 0
            self._drop_wishes(f"new workers fail ({why})")
        self._advance(now)

    def left(self, worker: int) -> None:
        """``worker`` has ended as it was ordered to."""
        self._workers[worker].is_gone = True

    def finished(self, worker: int, now: float) -> None:
        """The script of ``worker`` has ended well: nothing changes any more but by a loss."""
        self._workers[worker].has_finished = True
        if self._pending is not None and self._pending.is_urgent and worker in self._expected:
            self._form_urgent(now, self._reason)  # the others would wait for it for ever
        if self._is_ending:
            return
        self._is_ending = True
        if self._pending is not None and not self._pending.is_urgent:
            self._pending = None
        self._dismiss_joiners()

    def progressed(self, global_step: int, now: float) -> None:
        """All workers have finished ``global_step``."""
        self._reached = global_step + 1
        self._steps_since_failure += 1
        if self._steps_since_failure >= STEPS_THAT_FORGIVE:
            self.failures = 0
        if self._schedule:
            self._advance(now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self._suspect is None or now < self._suspect[1]:
            return
        generation, _, reason = self._suspect
        self._suspect = None
        if generation == self._newest:
            self._count_failure(reason)
            self._form_urgent(now, "broken connection")

    # -- what is wanted ----------------------------------------------------------------------------------------

    def scale(self, wanted: Placement | int, now: float) -> Placement:
        """Change to a placement, or to a number of workers; what it will be.

        Raises:
            RefusedError: it is out of the job's range, or the job cannot change now.
        """
        num_ests = self.placement.num_ests
        target = self._placed(wanted)
        if target.num_ests != num_ests:
            raise RefusedError(f"placement {target} holds {target.num_ests} ESTs but the job has {num_ests}")
        low, high = self._rules.min_workers, self._rules.max_workers
        if not low <= target.num_workers <= high:
            raise RefusedError(
                f"{target.num_workers} workers were asked for, but the job was started with --workers {low}:{high}: "
                f"ask for {low} to {high}"
            )
        if self._is_ending:
            raise RefusedError("the job is at its end: there is nothing left to rescale")
        self._target, self._wish = target, "scale"
        self._failed_joiners = 0
        self._decide(now)
        return target

    def _placed(self, wanted: Placement | int) -> Placement:
        return Placement.even(self.placement.num_ests, wanted) if isinstance(wanted, int) else wanted

    @property
    def wanted(self) -> Placement:
        """Where the job goes as soon as it can."""
        return self._target

    def can_lose(self, worker: int) -> bool:
        """Whether the job goes on without ``worker``: others have the job's state, or it has nothing of it."""
        if worker not in self.members:
            return worker in self._workers
        others = [one for one in self._present() if one.number != worker]
        return bool(others) and all(one.is_ready for one in others)

    def _decide(self, now: float) -> None:
        if self._pending is None:
            self._decided_at, self._started_at, self._staffed_at = now, 0.0, 0.0
        self._advance(now)

    def _drop_wishes(self, why: str) -> None:
        self._schedule.clear()
        self._target = self.placement
        low = self._rules.min_workers
        if len(self._present()) < low:
            self._actions.append(GiveUp(f"the job has {len(self._present())} workers and needs {low}: {why}"))
        else:
            self._actions.append(Say(f"the job stays on {len(self._present())} workers: {why}"))

    def _count_failure(self, why: str) -> None:
        self.failures += 1
        self._steps_since_failure = 0
        if self.failures > self._rules.max_failures:
            self._actions.append(
                GiveUp(
                    f"{self.failures} workers were lost in a row, with fewer than {STEPS_THAT_FORGIVE} global steps "
                    f"between two of them (--max-failures {self._rules.max_failures}); the last: {why}"
                )
            )

    # -- changes -----------------------------------------------------------------------------------------------

    def _present(self) -> list[_Worker]:
        """Members that are there, by rank."""
        return [self._workers[number] for number in self.members if self._workers[number].is_there]

    def _joiners(self) -> list[_Worker]:
        return [w for w in self._workers.values() if w.number not in self.members and w.is_there and not w.is_leaving]

    def _goal(self) -> tuple[Placement, int | None, str] | None:
        """What comes next: a placement, at which global step (None: as soon as can be), and why."""
        present = self._present()
        staying = [one for one in present if not one.is_leaving]
        if len(staying) < len(present):
            num_workers = max(1, len(staying))
            if not staying and not self._rules.replaces:
                return None
            return Placement.even(self.placement.num_ests, num_workers), None, "preemption"
        if self.placement != self._target and (self._rules.replaces or self._wish == "scale"):
            return self._target, None, self._wish
        if self._schedule:
            step, wanted = self._schedule[0]
            return self._placed(wanted), step, "schedule"
        return None

    def _advance(self, now: float) -> None:
        """Do the next planned change, or start the workers that it needs."""
        present = self._present()
        if not present or self._is_ending or self._pending is not None or not all(one.is_ready for one in present):
            return
        goal = self._goal()
        if goal is None:
            self._dismiss_joiners()
            return
        placement, at_step, reason = goal
        self._decided_at = self._decided_at or now
        staying = [one.number for one in present if not one.is_leaving][: placement.num_workers]
        missing = placement.num_workers - len(staying)
        joiners = self._joiners()
        for _ in range(missing - len(joiners)):
            self._start()
        chosen = [one.number for one in joiners if one.is_ready][:missing]
        if len(chosen) < missing:
            self._started_at, self._staffed_at = self._started_at or now, 0.0
            return
        self._staffed_at = self._staffed_at or now
        if at_step is not None and at_step > self._reached + 1:
            return  # until then something else may come up, and only one change can be under way
        members = [*staying, *chosen]
        source = None if staying else present[0].number
        self._order(Form(self._next(), str(placement), members, chosen, "", False, at_step, source), reason)

    def _dismiss(self, worker: int) -> None:
        self._workers[worker].is_gone = True
        self._actions.append(Kill(worker))

    def _dismiss_joiners(self) -> None:
        for one in self._joiners():
            self._dismiss(one.number)

    def _start(self) -> None:
        number = max(self._workers) + 1
        self._workers[number] = _Worker(number)
        self._actions.append(Start(number))

    def _form_urgent(self, now: float, reason: str) -> None:
        """Those that are left of the present generation meet anew, at once."""
        self._suspect = None
        for number in [] if self._pending is None else self._pending.members:
            one = self._workers[number]
            if number not in self.members and one.is_there and one.is_leaving:
                self._dismiss(number)  # it was asked to end while it was let in, and is not let in now
        members = [one.number for one in self._present()]
        if not members:
            self._pending = None
            if not any(one.has_finished for one in self._workers.values()):
                self._actions.append(GiveUp("every worker that had the job's state is gone"))
            return
        placement = self.placement
        if len(members) != placement.num_workers:
            placement = Placement.even(placement.num_ests, len(members))
        self._decided_at = self._started_at = self._staffed_at = now
        self._order(Form(self._next(), str(placement), members, [], "", is_urgent=True), reason)

    def _next(self) -> int:
        return self._newest + 1

    def _order(self, form: Form, reason: str) -> None:
        store = f"{self._store_path}-{form.generation}"
        form = replace(form, store_path=store)
        old = {one.number for one in self._present()}
        interrupted = set() if self._pending is None else set(self._pending.members)
        self._newest, self._pending, self._formed = form.generation, form, {}
        self._expected = old | set(form.members)
        self._reason = reason
        told = [n for n in sorted(self._expected | interrupted) if self._workers[n].is_there]
        self._actions += [Send(number, form) for number in told]

    def _begin(self, now: float) -> None:
        form = self._pending
        assert form is not None
        before, members_before = self.placement, tuple(self.members)
        self._pending, self._suspect = None, None
        if form.joiners:
            self._failed_joiners = 0
        if self._schedule and form.at_step == self._schedule[0][0]:
            self._target = self._placed(self._schedule.popleft()[1])
        for number in self._expected - set(form.members):
            self._workers[number].is_leaving = True
        self.members, self.generation = list(form.members), form.generation
        self.placement = Placement.parse(form.placement)
        self._actions += [Send(number, Go(form.generation)) for number in sorted(self._expected)]
        formed = tuple(self._formed.values())
        times = (self._decided_at, self._started_at or self._staffed_at, self._staffed_at)
        self._actions.append(Begun(form, before, members_before, self._reason, *times, formed))
        self._decided_at = self._started_at = self._staffed_at = 0.0
        if self.placement == self._target:
            self._wish = "replacement"
        self._advance(now)
