"""The job master, told what happens: which orders it gives, to whom, and what it gets over."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from easyscale.core.errors import RefusedError
from easyscale.core.messages import Formed, Lost
from easyscale.core.orders import Form, Go
from easyscale.core.placement import Placement
from easyscale.launch.elasticity import Elasticity
from easyscale.launch.master import SETTLE_S, Action, Begun, GiveUp, Kill, Master, Say, Send, Start


@dataclass
class Job:
    """A master whose workers do what they are told at once, unless the test does it for them."""

    master: Master
    now: float = 100.0
    seen: list[Action] = field(default_factory=list)

    def take(self) -> list[Action]:
        """Actions since the last call."""
        actions = self.master.actions()
        self.seen += actions
        return actions

    def ready(self, *workers: int) -> list[Action]:
        for worker in workers:
            self.master.ready(worker, self.now)
        return self.take()

    def formed(self, form: Form, *workers: int, step: int = 5) -> list[Action]:
        """These have met; all that were told, if none are named."""
        for worker in workers or form.members:
            self.master.formed(Formed(worker, form.generation, step, {}), self.now)
        return self.take()

    def gone(self, worker: int, why: str = "killed", *, is_joiner_error: bool = False) -> list[Action]:
        self.master.gone(worker, why, self.now, is_joiner_error=is_joiner_error)
        return self.take()

    def steps(self, first: int, count: int) -> list[Action]:
        for step in range(first, first + count):
            self.master.progressed(step, self.now)
        return self.take()


def job(placement: str = "0,1|2,3", **rules: object) -> Job:
    """A job of up to 4 workers whose script trains."""
    started = Job(Master(Placement.parse(placement), Elasticity(**{"max_workers": 4, **rules}), "store"))  # type: ignore[arg-type]
    started.ready(*started.master.members)
    return started


def kinds(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def order(actions: list[Action]) -> Form:
    """The one order among the actions; it goes to each worker once."""
    orders = [action.order for action in actions if isinstance(action, Send) and isinstance(action.order, Form)]
    assert orders
    assert all(one == orders[0] for one in orders)
    return orders[0]


def told(actions: list[Action]) -> list[int]:
    return [action.worker for action in actions if isinstance(action, Send) and isinstance(action.order, Form)]


def of(actions: list[Action], kind: type[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


# -- planned changes ---------------------------------------------------------------------------------------------


def test_new_workers_start_while_the_job_trains_and_are_let_in_when_all_stand_ready() -> None:
    it = job()
    assert str(it.master.scale(4, it.now)) == "0|1|2|3"
    assert it.take() == [Start(2), Start(3)]
    assert it.ready(2) == []
    actions = it.ready(3)
    form = order(actions)
    assert (form.members, form.joiners, form.placement, form.is_urgent) == ([0, 1, 2, 3], [2, 3], "0|1|2|3", False)
    assert told(actions) == [0, 1, 2, 3]
    assert it.formed(form, 0, 1, 2) == []
    assert kinds(it.formed(form, 3)) == ["Send"] * 4 + ["Begun"]
    assert (it.master.members, it.master.generation, it.master.failures) == ([0, 1, 2, 3], 1, 0)


def test_fewer_workers_need_nobody_new_and_those_that_leave_are_told_to_go() -> None:
    it = job("0|1|2|3")
    it.master.scale(2, it.now)
    form = order(it.take())
    assert form.members == [0, 1]
    assert it.formed(form, 0, 1) == []
    actions = it.formed(form, 2, 3)
    assert [a.worker for a in actions if isinstance(a, Send) and isinstance(a.order, Go)] == [0, 1, 2, 3]
    assert it.master.members == [0, 1]


def test_the_same_workers_with_other_ests() -> None:
    it = job()
    it.master.scale(Placement.parse("3,0,1|2"), it.now)
    form = order(it.take())
    assert (form.members, form.joiners, form.placement) == ([0, 1], [], "3,0,1|2")


def test_nothing_to_do_is_nothing_done() -> None:
    it = job()
    it.master.scale(2, it.now)
    assert it.take() == []


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (5, "5 workers were asked for but the job has 4 ESTs"),
        (0, "both must be 1 or more"),
        (-1, "both must be 1 or more"),
        (1, "was started with --workers 2:3: ask for 2 to 3"),
        (4, "was started with --workers 2:3: ask for 2 to 3"),
        (Placement.parse("0|1|2"), "holds 3 ESTs but the job has 4"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(wanted: int | Placement, words: str) -> None:
    it = job(min_workers=2, max_workers=3)
    with pytest.raises(RefusedError, match=words):
        it.master.scale(wanted, it.now)
    assert it.take() == []
    assert it.master.wanted == it.master.placement


def test_a_wish_that_comes_during_a_change_is_met_after_it() -> None:
    it = job()
    it.master.scale(3, it.now)
    it.take()
    first = order(it.ready(2))
    it.master.scale(1, it.now)
    assert it.take() == []
    second = order(it.formed(first))
    assert (second.generation, second.members) == (2, [0])


def test_a_wish_taken_back_ends_the_workers_that_nobody_needs() -> None:
    it = job()
    it.master.scale(4, it.now)
    it.take()
    it.master.scale(2, it.now)
    assert it.take() == [Kill(2), Kill(3)]
    it.master.scale(3, it.now)
    assert it.take() == [Start(4)], "workers that were ended are not waited for"


def test_a_wish_for_fewer_new_workers_takes_those_that_are_ready() -> None:
    it = job("0,1,2,3")
    it.master.scale(4, it.now)
    it.take()
    it.ready(2)
    it.master.scale(2, it.now)
    form = order(it.take())
    assert form.members == [0, 2]
    assert of(it.formed(form), Kill) == [Kill(1), Kill(3)]


def test_phases_are_timed() -> None:
    it = job()
    it.master.scale(3, it.now)
    it.now += 1
    form = order(it.ready(2))
    it.now += 2
    (begun,) = of(it.formed(form), Begun)
    assert isinstance(begun, Begun)
    assert (begun.decided_at, begun.started_at, begun.staffed_at, begun.reason) == (100.0, 100.0, 101.0, "scale")


def test_a_move_names_the_workers_that_are_to_run_it() -> None:
    """Also which of them leaves: a slow one, wherever it stands."""
    it = job("0,1|2|3")
    it.master.scale(Placement.parse("0,1|2,3"), it.now, (1, 2), "plan")
    form = order(it.take())
    assert (form.members, form.placement) == ([1, 2], "0,1|2,3")
    (begun,) = of(it.formed(form, 0, 1, 2), Begun)
    assert isinstance(begun, Begun)
    assert begun.reason == "plan"
    assert it.master.members == [1, 2]
    it.master.scale(1, it.now)
    assert order(it.take()).members == [1], "the next wish has an order of its own"


def test_a_worker_that_a_move_names_may_be_gone_when_it_comes() -> None:
    it = job("0,1|2|3")
    it.formed(order(it.gone(1)), 0, 2)
    it.take()
    it.master.scale(Placement.parse("0|1,2,3"), it.now, (1, 2), "plan")
    assert order(it.take()).members == [2, 0]


# -- the schedule ------------------------------------------------------------------------------------------------


def test_the_schedule_goes_in_order_and_each_change_is_ordered_shortly_before_its_step() -> None:
    it = job("0,1,2,3", schedule=((5, 2), (9, 1)))
    assert it.seen == [Start(1)]
    assert it.ready(1) == []
    assert it.steps(0, 3) == []
    first = order(it.steps(3, 1))
    assert (first.at_step, first.members) == (5, [0, 1])
    it.formed(first)
    assert it.steps(4, 3) == []
    second = order(it.steps(7, 1))
    assert (second.at_step, second.members) == (9, [0])


def test_a_change_at_the_first_border_is_ordered_at_once() -> None:
    it = job(schedule=((1, 1),))
    assert order(it.seen).at_step == 1


@pytest.mark.parametrize("what", ["scale", "leaving"])
def test_a_step_far_away_holds_up_nothing_else(what: str) -> None:
    it = job(schedule=((1000, 1),))
    assert it.seen == []
    if what == "scale":
        it.master.scale(1, it.now)
    else:
        it.master.leaving(1, it.now)
    form = order(it.take())
    assert (form.members, form.at_step) == ([0], None)


def test_a_loss_leaves_the_schedule_as_it_was() -> None:
    it = job(schedule=((4, 1),))
    it.formed(order(it.gone(1)), 0)
    assert of(it.seen, Start) == [Start(2)]
    form = order(it.ready(2))
    assert (form.members, form.at_step) == ([0, 2], None)
    it.formed(form)
    assert order(it.steps(0, 3)).at_step == 4


# -- joiners -----------------------------------------------------------------------------------------------------


def test_a_joiner_that_dies_is_followed_by_another() -> None:
    it = job()
    it.master.scale(3, it.now)
    it.take()
    assert it.gone(2) == [Start(3)]
    assert order(it.ready(3)).members == [0, 1, 3]


def test_three_that_fail_end_the_wish_and_the_job_stays_as_it_is() -> None:
    it = job()
    it.master.scale(3, it.now)
    it.take()
    assert it.gone(2, "no", is_joiner_error=True) == [Start(3)]
    assert it.gone(3, "no", is_joiner_error=True) == [Start(4)]
    actions = it.gone(4, "no", is_joiner_error=True)
    assert actions == [Say("the job stays on 2 workers: new workers fail (no)")]
    assert it.master.wanted == it.master.placement
    it.master.scale(3, it.now)
    assert it.take() == [Start(5)]


def test_three_that_fail_end_a_job_that_would_have_too_few() -> None:
    it = job(min_workers=2)
    it.formed(order(it.gone(1)), 0)
    for worker in (2, 3, 4):
        actions = it.gone(worker, "no", is_joiner_error=True)
    assert GiveUp("the job has 1 workers and needs 2: new workers fail (no)") in actions


def test_a_joiner_lost_while_the_generation_forms() -> None:
    it = job()
    it.master.scale(3, it.now)
    it.take()
    form = order(it.ready(2))
    it.formed(form, 0, 1)
    actions = it.gone(2)
    again = order(actions)
    assert (again.is_urgent, again.members, told(actions)) == (True, [0, 1], [0, 1])
    assert it.formed(form, 0, 1) == [], "what is said of a generation that was given up means nothing"
    assert of(it.formed(again), Start) == [Start(3)], "the wish is still there"


def test_a_joiner_asked_to_end_before_it_was_needed_goes_and_another_comes() -> None:
    it = job()
    it.master.scale(3, it.now)
    it.take()
    it.master.leaving(2, it.now)
    assert it.take() == [Kill(2), Start(3)]
    assert order(it.ready(3)).members == [0, 1, 3]


def test_a_joiner_asked_to_end_while_it_is_let_in_moves_out_again() -> None:
    it = job()
    it.master.scale(3, it.now)
    it.take()
    form = order(it.ready(2))
    it.master.leaving(2, it.now)
    assert it.take() == []
    after = order(it.formed(form))
    assert after.members == [0, 1]


def test_a_change_that_workers_refuse_is_dropped() -> None:
    it = job()
    it.master.scale(1, it.now)
    form = order(it.take())
    it.master.lost(Lost(0, form.generation, "this loader cannot move", is_refused=True), it.now)
    actions = it.take()
    assert order(actions).is_urgent
    assert Say("the job stays on 2 workers: this loader cannot move") in actions
    assert kinds(it.formed(order(actions))) == ["Send", "Send", "Begun"]
    assert it.master.failures == 0


# -- losses ------------------------------------------------------------------------------------------------------


def test_a_loss_is_got_over_by_the_others_at_once_and_then_made_good() -> None:
    it = job()
    form = order(it.gone(1))
    assert (form.is_urgent, form.members, form.placement) == (True, [0], "0,1,2,3")
    assert of(it.formed(form), Start) == [Start(2)]
    back = order(it.ready(2))
    assert (back.members, back.joiners, back.placement) == ([0, 2], [2], "0,1|2,3")


def test_losses_are_not_made_good_where_nobody_wants_it() -> None:
    it = job(replaces=False)
    actions = it.formed(order(it.gone(1)))
    assert kinds(actions) == ["Send", "Begun"]
    it.master.scale(2, it.now)
    assert it.take() == [Start(2)]


def test_a_second_loss_while_the_first_is_dealt_with() -> None:
    it = job("0|1|2|3")
    first = order(it.gone(3))
    it.formed(first, 0, 1)
    actions = it.gone(2)
    second = order(actions)
    assert (second.generation, second.members, told(actions)) == (2, [0, 1], [0, 1])
    assert it.master.generation == 0
    it.formed(second)
    assert (it.master.generation, it.master.members) == (2, [0, 1])


def test_one_that_leaves_dies_before_the_others_have_met() -> None:
    it = job()
    it.master.scale(1, it.now)
    form = order(it.take())
    it.formed(form, 0)
    again = order(it.gone(1))
    assert (again.is_urgent, again.members) == (True, [0])


def test_nobody_left_is_the_end() -> None:
    it = job("0,1,2,3")
    it.master.scale(2, it.now)
    assert it.take() == [Start(1)]
    assert it.gone(0) == [GiveUp("every worker that had the job's state is gone")]
    assert it.ready(1) == []


def test_whose_state_nobody_else_has_cannot_be_lost() -> None:
    it = Job(Master(Placement.parse("0|1"), Elasticity(), "store"))
    assert not it.master.can_lose(0), "the other one does not train yet"
    it.ready(0, 1)
    assert it.master.can_lose(0)
    it.gone(1)
    assert not it.master.can_lose(0)


def test_a_broken_connection_waits_for_the_news_of_whose_end_it_was() -> None:
    it = job()
    it.master.lost(Lost(0, 0, "connection reset"), it.now)
    it.master.tick(it.now + SETTLE_S / 2)
    assert it.take() == []
    assert order(it.gone(1)).members == [0]
    it.master.tick(it.now + 2 * SETTLE_S)
    assert it.take() == []
    assert it.master.failures == 1


def test_a_broken_connection_with_nobody_dead_is_made_anew() -> None:
    it = job()
    it.master.lost(Lost(0, 0, "connection reset"), it.now)
    it.master.lost(Lost(1, 0, "connection reset"), it.now)
    it.master.tick(it.now + SETTLE_S)
    form = order(it.take())
    assert (form.is_urgent, form.members, form.placement) == (True, [0, 1], "0,1|2,3")
    assert it.master.failures == 1
    assert kinds(it.formed(form)) == ["Send", "Send", "Begun"]
    it.master.lost(Lost(0, 0, "old news"), it.now)
    it.master.tick(it.now + 10)
    assert it.take() == []


# -- leaving -----------------------------------------------------------------------------------------------------


def test_the_job_moves_off_a_worker_that_was_asked_to_end_and_gets_another() -> None:
    it = job()
    it.master.leaving(0, it.now)
    form = order(it.take())
    assert (form.is_urgent, form.members, form.placement) == (False, [1], "0,1,2,3")
    actions = it.formed(form, 0, 1)
    assert of(actions, Start) == [Start(2)]
    it.master.left(0)
    assert order(it.ready(2)).members == [1, 2]
    assert it.master.failures == 0


@pytest.mark.parametrize("placement", ["0,1,2,3", "0,1|2,3"])
def test_when_all_are_asked_to_end_one_gives_the_state_to_a_new_one(placement: str) -> None:
    it = job(placement)
    for worker in list(it.master.members):
        it.master.leaving(worker, it.now)
    first = it.take()
    if placement == "0,1|2,3":  # one goes by itself before the other is asked
        first = it.formed(order(first), 0, 1)
    assert of(first, Start) == [Start(max(it.master.members) + 1 if placement == "0,1,2,3" else 2)]
    (new,) = (action.worker for action in first if isinstance(action, Start))
    form = order(it.ready(new))
    assert (form.members, form.joiners) == ([new], [new])
    assert form.source in it.master.members
    it.formed(form, form.source or 0, new)
    assert it.master.members == [new]


def test_the_only_worker_stays_where_nobody_is_replaced() -> None:
    it = job("0,1,2,3", replaces=False)
    it.master.leaving(0, it.now)
    assert it.take() == []


# -- the failure budget ------------------------------------------------------------------------------------------


def lose(it: Job, worker: int) -> list[Action]:
    """Lose one of two workers and get another."""
    actions = it.gone(worker)
    actions += it.formed(order(actions))
    (new,) = (action.worker for action in actions if isinstance(action, Start))
    it.formed(order(it.ready(new)))
    return actions


def test_losses_in_a_row_use_up_the_budget() -> None:
    it = job(max_failures=2)
    assert not of(lose(it, 1), GiveUp)
    assert not of(lose(it, 2), GiveUp)
    (given_up,) = of(it.gone(3, "killed again"), GiveUp)
    assert "3 workers were lost in a row" in str(given_up)
    assert "killed again" in str(given_up)


def test_ten_steps_forgive_and_nine_do_not() -> None:
    it = job(max_failures=1)
    lose(it, 1)
    it.steps(0, 9)
    assert it.master.failures == 1
    it.steps(9, 1)
    assert it.master.failures == 0
    assert not of(lose(it, 2), GiveUp)
    it.steps(10, 9)
    assert of(it.gone(3), GiveUp)


def test_planned_changes_and_preemptions_cost_nothing_of_it() -> None:
    it = job(max_failures=0)
    for wanted in (1, 2, 1, 2):
        it.master.scale(wanted, it.now)
        actions = it.take()
        starts = [action.worker for action in actions if isinstance(action, Start)]
        form = order(it.ready(*starts) if starts else actions)
        it.formed(form, *{*it.master.members, *form.members})
    it.master.leaving(it.master.members[0], it.now)
    it.formed(order(it.take()), *it.master.members)
    assert it.master.failures == 0
    assert not of(it.seen, GiveUp)


# -- the end -----------------------------------------------------------------------------------------------------


def test_at_the_end_of_the_script_new_workers_are_not_needed() -> None:
    it = job()
    it.master.scale(3, it.now)
    it.take()
    it.master.finished(0, it.now)
    assert it.take() == [Kill(2)]
    assert it.ready(2) == []
    with pytest.raises(RefusedError, match="the job is at its end"):
        it.master.scale(1, it.now)
    it.master.finished(1, it.now)
    assert it.take() == []


def test_an_order_that_nobody_came_to_obey_is_dropped_at_the_end() -> None:
    it = job()
    it.master.scale(3, it.now)
    it.take()
    form = order(it.ready(2))
    it.master.finished(0, it.now)
    assert it.take() == [Kill(2)]
    assert it.formed(form) == []


def test_a_loss_at_the_end_is_got_over_by_those_that_have_not_finished() -> None:
    it = job("0|1|2|3")
    it.master.finished(0, it.now)
    form = order(it.gone(1))
    assert form.members == [2, 3]
    assert kinds(it.formed(form)) == ["Send", "Send", "Begun"]


def test_others_do_not_wait_for_one_that_finishes_instead_of_meeting_them() -> None:
    it = job("0|1|2|3")
    first = order(it.gone(3))
    it.formed(first, 1, 2)
    it.master.finished(0, it.now)
    actions = it.take()
    second = order(actions)
    assert (second.is_urgent, second.members, told(actions)) == (True, [1, 2], [1, 2])
    it.formed(second)
    assert it.master.members == [1, 2]


def test_the_number_of_ests_is_the_script_s_to_say() -> None:
    it = Job(Master(Placement.even(2, 2), Elasticity(max_workers=4), "store"))
    it.master.opened(6)
    it.ready(0, 1)
    assert str(it.master.placement) == "0,1,2|3,4,5"
    assert it.take() == []
