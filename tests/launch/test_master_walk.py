"""Whatever happens to a job, in whatever order, its master keeps its promises; when it is quiet, all is as wished."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from easyscale.core.errors import RefusedError
from easyscale.core.messages import Formed, Lost
from easyscale.core.orders import Form, Go
from easyscale.core.placement import Placement
from easyscale.launch.elasticity import Elasticity
from easyscale.launch.master import Begun, GiveUp, Kill, Master, Send, Start

NUM_ESTS = 4


class World:
    """Workers that do, late and in any order, what a master says; checks each of its actions.

    Attributes:
        alive: processes; those that were killed or have left are not among them.
        waiting: started, and not at their first loop yet.
        orders: the newest order of each worker that has not obeyed it.
    """

    def __init__(self, num_workers: int, schedule: tuple[tuple[int, int], ...]) -> None:
        rules = Elasticity(1, NUM_ESTS, schedule, max_failures=1000)
        self.master = Master(Placement.even(NUM_ESTS, num_workers), rules, "store")
        self.now = 0.0
        self.step = 0
        self.alive = set(range(num_workers))
        self.waiting = set(self.alive)
        self.orders: dict[int, Form] = {}
        self.leaving: set[int] = set()
        self.finished: set[int] = set()
        self.left: set[int] = set()
        self.pending: Form | None = None
        self.generations = {0}
        self.is_over = False

    # -- what the master says --------------------------------------------------------------------------------------

    def obey(self) -> None:
        for action in self.master.actions():
            if isinstance(action, Start):
                assert action.worker not in self.alive, "numbers of workers are used once"
                self.alive.add(action.worker)
                self.waiting.add(action.worker)
            elif isinstance(action, Kill):
                assert action.worker in self.alive
                assert action.worker not in self.master.members
                self._forget(action.worker)
            elif isinstance(action, Send):
                self._take(action)
            elif isinstance(action, Begun):
                self._begin(action.form)
            elif isinstance(action, GiveUp):
                self.is_over = True
        if not self.is_over:
            assert self.present, "a job without workers gives up, or is at its end"

    @property
    def present(self) -> set[int]:
        return (self.alive | self.finished) & set(self.master.members)

    def _take(self, action: Send) -> None:
        assert action.worker in self.alive, f"{action} goes to a worker that is gone"
        assert action.worker not in self.finished
        order = action.order
        if isinstance(order, Go):
            if action.worker not in self.master.members:
                self.left.add(action.worker)
            return
        assert isinstance(order, Form)
        if self.pending is not order:
            assert order.generation not in self.generations, "numbers of generations are used once"
            assert self.pending is None or order.is_urgent, "a planned change waits for the one that is under way"
            assert order.is_urgent or not self.finished, "nothing is planned at the end"
            assert set(order.members) <= self.alive - self.finished
            assert Placement.parse(order.placement).num_workers == len(order.members)
            assert Placement.parse(order.placement).num_ests == NUM_ESTS
            assert set(order.joiners) == set(order.members) - set(self.master.members)
            assert order.is_urgent or not set(order.joiners) & self.waiting
            has_state = set(order.members) - set(order.joiners)
            assert has_state or order.source in self.present
            assert len(set(order.members)) == len(order.members)
            assert order.at_step is None or order.at_step <= self.step + 1, "nothing waits for a step far away"
            self.generations.add(order.generation)
            self.pending = order
        self.orders[action.worker] = order

    def _begin(self, form: Form) -> None:
        assert form is self.pending
        assert self.master.members == form.members
        assert str(self.master.placement) == form.placement
        self.pending, self.orders = None, {}
        for worker in sorted(self.left):
            self._forget(worker)
            self.master.left(worker)

    def _forget(self, worker: int) -> None:
        self.left.discard(worker)
        self.alive.discard(worker)
        self.waiting.discard(worker)
        self.orders.pop(worker, None)

    # -- what happens ----------------------------------------------------------------------------------------------

    def some_worker(self, number: int) -> int | None:
        candidates = sorted(self.alive - self.finished)
        return candidates[number % len(candidates)] if candidates else None

    def ready(self, number: int) -> None:
        """A script comes to its first loop; those that begin the job do so together, as far as anyone can tell."""
        if self.waiting:
            worker = sorted(self.waiting)[number % len(self.waiting)]
            self.waiting.discard(worker)
            self.master.ready(worker, self.now)

    def meet(self, number: int) -> None:
        if self.orders:
            worker = sorted(self.orders)[number % len(self.orders)]
            form = self.orders.pop(worker)
            self.master.formed(Formed(worker, form.generation, self.step), self.now)

    def scale(self, number: int) -> None:
        try:
            self.master.scale(number % NUM_ESTS + 1, self.now)
        except RefusedError:
            assert self.finished

    def die(self, number: int) -> None:
        worker = self.some_worker(number)
        if worker is None or not self.master.can_lose(worker):
            return
        self._forget(worker)
        self.master.gone(worker, "killed", self.now, is_joiner_error=worker not in self.master.members and number > 40)

    def ask_to_end(self, number: int) -> None:
        worker = self.some_worker(number)
        if worker is not None and worker not in self.waiting and worker not in self.leaving:
            self.leaving.add(worker)
            self.master.leaving(worker, self.now)

    def break_connection(self, number: int) -> None:
        worker = self.some_worker(number)
        if worker in self.master.members:
            generation = self.master.generation if number % 2 or self.pending is None else self.pending.generation
            self.master.lost(Lost(worker, generation, "reset"), self.now)

    def refuse(self, number: int) -> None:
        worker = self.some_worker(number)
        if worker in self.master.members and self.pending is not None and not self.pending.is_urgent:
            self.master.lost(Lost(worker, self.pending.generation, "cannot move", True), self.now)

    def train(self, number: int) -> None:
        if not self.waiting & set(self.master.members):
            self.master.progressed(self.step, self.now)
            self.step += 1

    def wait(self, number: int) -> None:
        self.now += 0.3
        self.master.tick(self.now)

    def finish(self, number: int) -> None:
        """A script ends: rarely, for nothing much happens after that."""
        worker = self.some_worker(number)
        if number > 60 and worker in self.master.members and worker not in self.waiting and self._can_finish(worker):
            self.finished.add(worker)
            self.orders.pop(worker, None)
            if self.pending is not None and not self.pending.is_urgent:
                self.pending, self.orders = None, {}
            self.master.finished(worker, self.now)

    def _can_finish(self, worker: int) -> bool:
        """One that has met the others waits for the word to go on."""
        return self.pending is None or worker in self.orders

    def calm_down(self) -> None:
        """Nothing comes up any more, and everybody does what there is to do."""
        for _ in range(200):
            if self.is_over or self.finished >= set(self.master.members):
                return
            self.wait(0)
            self.obey()
            if self.waiting:
                self.ready(0)
            elif self.orders:
                self.meet(0)
            else:
                self.train(0)
            self.obey()


EVENTS: tuple[Callable[[World, int], None], ...] = (
    *(World.ready,) * 6,
    *(World.meet,) * 10,
    *(World.train,) * 4,
    *(World.scale,) * 3,
    World.die,
    World.ask_to_end,
    World.break_connection,
    World.refuse,
    World.wait,
    World.finish,
)


@pytest.mark.parametrize("seed", range(8))
def test_promises_hold_whatever_happens(seed: int) -> None:
    draw = random.Random(seed)
    quiet = 0
    for _ in range(100):
        steps = sorted(draw.sample(range(1, 30), draw.choice([0, 0, 1, 2])))
        world = World(draw.randint(1, NUM_ESTS), tuple((step, draw.randint(1, NUM_ESTS)) for step in steps))
        for _ in range(draw.randint(5, 120)):
            draw.choice(EVENTS)(world, draw.randrange(64))
            world.obey()
            if world.is_over:
                break
        world.calm_down()
        if world.is_over or world.finished:
            continue
        quiet += 1
        assert world.pending is None, "every change comes to its end"
        assert world.master.placement == world.master.wanted
        assert not world.leaving & set(world.master.members), "the job has moved off those that were asked to end"
        assert world.alive == set(world.master.members), "workers that nobody needs are ended"
    assert quiet > 10
