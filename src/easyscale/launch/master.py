"""The job master: which workers a job has, and when that changes. Runs in the launcher.

A state machine without processes, clock or files: it is told what happened and answers with actions. Only one change is
under way at any time. A generation begins when all its members say that they have met and have the job's state; until
then the one before is what a loss falls back to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from easyscale.core.errors import RefusedError
from easyscale.core.messages import Formed, Lost
from easyscale.core.orders import Form, Go
from easyscale.core.placement import Placement
from easyscale.launch.actions import Action, Begun, GiveUp, Kill, Say, Send, Start
from easyscale.launch.budget import FailureBudget
from easyscale.launch.elasticity import Elasticity
from easyscale.launch.roster import Roster
from easyscale.launch.wishes import Wishes

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
        self.roster = Roster(range(placement.num_workers))
        self._newest = 0
        self._pending: Form | None = None
        self._expected: set[int] = set()
        self._formed: dict[int, Formed] = {}
        self._wishes = Wishes(placement, rules)
        self._is_ending = False
        self._failed_joiners = 0
        self._suspect: tuple[int, float, str] | None = None
        self._reason = ""
        self._decided_at = self._started_at = self._staffed_at = 0.0
        self._reached = 0
        self._actions: list[Action] = []

    @property
    def members(self) -> list[int]:
        """Workers by rank in the present generation."""
        return self.roster.members

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
            self.placement = self._wishes.target = Placement.even(num_ests, self.placement.num_workers)

    def resumed(self, global_step: int) -> None:
        """The job goes on from a checkpoint of this step: changes planned for earlier ones are made now, in one."""
        self._reached = global_step
        self._wishes.skip_to(global_step)

    def ready(self, worker: int, now: float) -> None:
        """The script of ``worker`` has come to its first loop."""
        self.roster[worker].is_ready = True
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
        self.roster[worker].is_leaving = True
        if worker not in self.members and (self._pending is None or worker not in self._pending.members):
            self._dismiss(worker)
            self._advance(now)
            return
        self._decide(now)

    def gone(self, worker: int, why: str, now: float, *, is_joiner_error: bool = False) -> None:
        """The process of ``worker`` has ended without having been asked to."""
        was = self.roster[worker]
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
        self.roster[worker].is_gone = True

    def finished(self, worker: int, now: float) -> None:
        """The script of ``worker`` has ended well: nothing changes any more but by a loss."""
        self.roster[worker].has_finished = True
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
        self._budget.progressed()
        if self._wishes.is_planned:
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

    def scale(
        self, wanted: Placement | int, now: float, workers: Sequence[int] = (), reason: str = "scale"
    ) -> Placement:
        """Change to a placement (on ``workers`` by rank, if that matters), or to a number of workers; what it will be.

        Raises:
            RefusedError: it is out of the job's range, or the job cannot change now.
        """
        target = self._wishes.place(wanted)
        self._rules.check(target, self.placement.num_ests)
        if self._is_ending:
            raise RefusedError("the job is at its end: there is nothing left to rescale")
        self._wishes.ask(target, workers, reason)
        self._failed_joiners = 0
        self._decide(now)
        return target

    @property
    def wanted(self) -> Placement:
        """Where the job goes as soon as it can."""
        return self._wishes.target

    def can_lose(self, worker: int) -> bool:
        """Whether the job goes on without ``worker``: others have the job's state, or it has nothing of it."""
        if worker not in self.members:
            return worker in self.roster.numbers
        ready = {one.is_ready for one in self.roster.present() if one.number != worker}
        return ready == {True}

    def _decide(self, now: float) -> None:
        if self._pending is None:
            self._decided_at, self._started_at, self._staffed_at = now, 0.0, 0.0
        self._advance(now)

    def _drop_wishes(self, why: str) -> None:
        self._wishes.drop(self.placement)
        low = self._rules.min_workers
        if len(self.roster.present()) < low:
            self._actions.append(GiveUp(f"the job has {len(self.roster.present())} workers and needs {low}: {why}"))
        else:
            self._actions.append(Say(f"the job stays on {len(self.roster.present())} workers: {why}"))

    def _count_failure(self, why: str) -> None:
        sentence = self._budget.spend(why)
        if sentence is not None:
            self._actions.append(GiveUp(sentence))

    # -- changes -----------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Do the next planned change, or start the workers that it needs."""
        present = self.roster.present()
        if self._is_ending or self._pending is not None or not self.roster.is_ready:
            return
        goal = self._wishes.goal(self.placement, present)
        if goal is None:
            self._dismiss_joiners()
            return
        placement, at_step = goal.placement, goal.at_step
        self._decided_at = self._decided_at or now
        staying = self._wishes.in_order([one.number for one in present if not one.is_leaving])[: placement.num_workers]
        missing = placement.num_workers - len(staying)
        joiners = self.roster.joiners()
        for _ in range(missing - len(joiners)):
            self._actions.append(Start(self.roster.add()))
        chosen = [one.number for one in joiners if one.is_ready][:missing]
        if len(chosen) < missing:
            self._started_at, self._staffed_at = self._started_at or now, 0.0
            return
        self._staffed_at = self._staffed_at or now
        if at_step is not None and at_step > self._reached + 1:
            return  # until then something else may come up, and only one change can be under way
        members = [*staying, *chosen]
        source = None if staying else present[0].number
        self._order(Form(self._newest + 1, str(placement), members, chosen, "", False, at_step, source), goal.reason)

    def _dismiss(self, worker: int) -> None:
        self.roster[worker].is_gone = True
        self._actions.append(Kill(worker))

    def _dismiss_joiners(self) -> None:
        for one in self.roster.joiners():
            self._dismiss(one.number)

    def _form_urgent(self, now: float, reason: str) -> None:
        """Those that are left of the present generation meet anew, at once."""
        self._suspect = None
        for number in [] if self._pending is None else self._pending.members:
            one = self.roster[number]
            if number not in self.members and one.is_there and one.is_leaving:
                self._dismiss(number)  # it was asked to end while it was let in, and is not let in now
        members = [one.number for one in self.roster.present()]
        if not members:
            self._pending = None
            if not any(one.has_finished for one in self.roster):
                self._actions.append(GiveUp("every worker that had the job's state is gone"))
            return
        placement = self.placement
        if len(members) != placement.num_workers:
            placement = Placement.even(placement.num_ests, len(members))
        self._decided_at = self._started_at = self._staffed_at = now
        self._order(Form(self._newest + 1, str(placement), members, [], "", is_urgent=True), reason)

    def _order(self, form: Form, reason: str) -> None:
        store = f"{self._store_path}-{form.generation}"
        form = replace(form, store_path=store)
        old = {one.number for one in self.roster.present()}
        interrupted = set() if self._pending is None else set(self._pending.members)
        self._newest, self._pending, self._formed = form.generation, form, {}
        self._expected = old | set(form.members)
        self._reason = reason
        told = [n for n in sorted(self._expected | interrupted) if self.roster[n].is_there]
        self._actions += [Send(number, form) for number in told]

    def _begin(self, now: float) -> None:
        form = self._pending
        assert form is not None
        before, members_before = self.placement, tuple(self.members)
        self._pending, self._suspect = None, None
        if form.joiners:
            self._failed_joiners = 0
        for number in self._expected - set(form.members):
            self.roster[number].is_leaving = True
        self.roster.members, self.generation = list(form.members), form.generation
        self.placement = Placement.parse(form.placement)
        self._wishes.begin(self.placement, form.at_step)
        self._actions += [Send(number, Go(form.generation)) for number in sorted(self._expected)]
        formed = tuple(self._formed.values())
        times = (self._decided_at, self._started_at or self._staffed_at, self._staffed_at)
        self._actions.append(Begun(form, before, members_before, self._reason, *times, formed))
        self._decided_at = self._started_at = self._staffed_at = 0.0
        self._advance(now)
