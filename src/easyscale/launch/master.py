"""The job master: which workers a job has, and when that changes. Runs in the launcher.

A state machine without processes, clock or files: it is told what happened and answers with actions. Only one change is
under way at any time. A generation begins when all its members say that they have met and have the job's state; until
then the one before is what a loss falls back to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from easyscale.core.errors import RefusedError
from easyscale.core.messages import Formed, Lost
from easyscale.core.orders import Form, Go
from easyscale.core.placement import Placement
from easyscale.launch.actions import Action, Begun, GiveUp, Kill, Say, Send, Start
from easyscale.launch.budget import FailureBudget
from easyscale.launch.elasticity import Elasticity
from easyscale.launch.roster import Roster

SETTLE_S = 0.5
"""How long a broken connection waits for the news of whose end it was."""
_MOST_FAILED_JOINERS = 3


class Master:
    """Membership of one job.

    Args:
        placement: where the job begins.
        rules: what may change.
        store_path: what names of rendezvous stores begin with.
    """

    def __init__(self, placement: Placement, rules: Elasticity, store_path: str) -> None:
        self.placement = placement
        self.generation = 0
        self._budget = FailureBudget(rules.max_failures)
        self._rules = rules
        self._store_path = store_path
        self._roster = Roster(range(placement.num_workers))
        self._newest = 0
        self._pending: Form | None = None
        self._expected: set[int] = set()
        self._formed: dict[int, Formed] = {}
        self._target = placement
        self._schedule = deque(rules.schedule)
        self._is_ending = False
        self._failed_joiners = 0
        self._suspect: tuple[int, float, str] | None = None
        self._reason, self._wish = "", "replacement"
        self._decided_at = self._ordered_at = 0.0
        self._actions: list[Action] = []

    @property
    def members(self) -> list[int]:
        """Workers by rank in the present generation."""
        return self._roster.members

    @property
    def is_ready(self) -> bool:
        """Whether the scripts of all workers have come to their first loop."""
        return all(one.is_ready for one in self._roster.present())

    @property
    def failures(self) -> int:
        """Workers lost one after another, without enough steps between."""
        return self._budget.used

    def actions(self) -> list[Action]:
        """What is to be done now; asked for after everything that the master is told."""
        actions, self._actions = self._actions, []
        return actions

    # -- what happened -----------------------------------------------------------------------------------------

    def opened(self, num_ests: int) -> None:
        """The script says how many ESTs there are; told before anything changed."""
        if self.generation == 0 and num_ests != self.placement.num_ests:
            self.placement = self._target = Placement.even(num_ests, self.placement.num_workers)

    def resumed(self, global_step: int) -> None:
        """The job goes on from a checkpoint of this step: changes planned for earlier ones are made now, in one."""
        while self._schedule and self._schedule[0][0] <= global_step:
            self._target = self._placed(self._schedule.popleft()[1])

    def ready(self, worker: int, now: float) -> None:
        """The script of ``worker`` has come to its first loop."""
        self._roster[worker].is_ready = True
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
            self._drop_wishes(message.reason)
            self._form_urgent(now, "a change was refused")
            return
        if self._suspect is None:
            self._suspect = (self._newest, now + SETTLE_S, message.reason)

    def leaving(self, worker: int, now: float) -> None:
        """Somebody has asked ``worker`` to end."""
        self._roster[worker].is_leaving = True
        if worker not in self.members:
            self._actions.append(Kill(worker))
            return
        self._decide(now)

    def gone(self, worker: int, why: str, now: float, *, is_joiner_error: bool = False) -> None:
        """The process of ``worker`` has ended without having been asked to."""
        was = self._roster[worker]
        was.is_gone = True
        if was.has_finished:
            return
        self._count_failure(why)
        is_member = worker in self.members
        if not is_member and is_joiner_error:
            self._failed_joiners += 1
            if self._failed_joiners >= _MOST_FAILED_JOINERS:
                self._drop_wishes(f"new workers fail ({why})")
        if is_member or (self._pending is not None and worker in self._pending.members):
            self._form_urgent(now, "loss" if is_member else "loss of a joiner")
        else:
            self._advance(now)

    def left(self, worker: int) -> None:
        """``worker`` has ended as it was ordered to."""
        self._roster[worker].is_gone = True

    def finished(self, worker: int) -> None:
        """The script of ``worker`` has ended well: nothing changes any more but by a loss."""
        self._roster[worker].has_finished = True
        if self._is_ending:
            return
        self._is_ending = True
        if self._pending is not None and not self._pending.is_urgent:
            self._pending = None
        self._actions += [Kill(one.number) for one in self._roster.joiners()]

    def progressed(self) -> None:
        """All workers have finished a global step."""
        self._budget.progressed()

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
        target = self._placed(wanted)
        self._rules.check(target, self.placement.num_ests)
        if self._is_ending:
            raise RefusedError("the job is at its end: there is nothing left to rescale")
        self._target, self._wish = target, "scale"
        self._failed_joiners = 0
        self._decide(now)
        return target

    def _placed(self, wanted: Placement | int) -> Placement:
        return Placement.even(self.placement.num_ests, wanted) if isinstance(wanted, int) else wanted

    def can_lose(self, worker: int) -> bool:
        """Whether the job goes on without ``worker``: others have the job's state, or it has nothing of it."""
        if worker not in self.members:
            return worker in self._roster.numbers
        others = [one for one in self._roster.present() if one.number != worker]
        return bool(others) and all(one.is_ready for one in others)

    def _decide(self, now: float) -> None:
        if self._pending is None:
            self._decided_at = now
        self._advance(now)

    def _drop_wishes(self, why: str) -> None:
        self._schedule.clear()
        self._target = self.placement
        low = self._rules.min_workers
        if len(self._roster.present()) < low:
            self._actions.append(GiveUp(f"the job has {len(self._roster.present())} workers and needs {low}: {why}"))
        else:
            self._actions.append(Say(f"the job stays on {len(self._roster.present())} workers: {why}"))

    def _count_failure(self, why: str) -> None:
        sentence = self._budget.spend(why)
        if sentence is not None:
            self._actions.append(GiveUp(sentence))

    # -- changes -----------------------------------------------------------------------------------------------

    def _goal(self) -> tuple[Placement, int | None, str] | None:
        """What comes next: a placement, at which global step (None: as soon as can be), and why."""
        present = self._roster.present()
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
        present = self._roster.present()
        if self._is_ending or self._pending is not None or not all(one.is_ready for one in present):
            return
        goal = self._goal()
        if goal is None:
            self._actions += [Kill(one.number) for one in self._roster.joiners()]
            return
        placement, at_step, reason = goal
        self._decided_at = self._decided_at or now
        staying = [one.number for one in present if not one.is_leaving][: placement.num_workers]
        missing = placement.num_workers - len(staying)
        joiners = self._roster.joiners()
        for _ in range(missing - len(joiners)):
            self._actions.append(Start(self._roster.add()))
        chosen = [one.number for one in joiners if one.is_ready][:missing]
        if len(chosen) == missing:
            members = [*staying, *chosen]
            source = None if staying else present[0].number
            self._order(Form(self._next(), str(placement), members, chosen, "", False, at_step, source), reason, now)

    def _form_urgent(self, now: float, reason: str) -> None:
        """Those that are left of the present generation meet anew, at once."""
        self._suspect = None
        members = [one.number for one in self._roster.present()]
        if not members:
            self._pending = None
            if not any(one.has_finished for one in self._roster):
                self._actions.append(GiveUp("every worker that had the job's state is gone"))
            return
        placement = self.placement
        if len(members) != placement.num_workers:
            placement = Placement.even(placement.num_ests, len(members))
        self._decided_at = now
        self._order(Form(self._next(), str(placement), members, [], "", is_urgent=True), reason, now)

    def _next(self) -> int:
        return self._newest + 1

    def _order(self, form: Form, reason: str, now: float) -> None:
        store = f"{self._store_path}-{form.generation}"
        form = replace(form, store_path=store)
        old = {one.number for one in self._roster.present()}
        interrupted = set() if self._pending is None else set(self._pending.members)
        self._newest, self._pending, self._formed = form.generation, form, {}
        self._expected = old | set(form.members)
        self._reason, self._ordered_at = reason, now
        told = [n for n in sorted(self._expected | interrupted) if self._roster[n].is_there]
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
            self._roster[number].is_leaving = True
        self._roster.members, self.generation = list(form.members), form.generation
        self.placement = Placement.parse(form.placement)
        self._actions += [Send(number, Go(form.generation)) for number in sorted(self._expected)]
        formed = tuple(self._formed.values())
        times = (self._decided_at, self._ordered_at)
        self._actions.append(Begun(form, before, members_before, self._reason, *times, formed))
        self._decided_at = 0.0
        if self.placement == self._target:
            self._wish = "replacement"
        self._advance(now)
