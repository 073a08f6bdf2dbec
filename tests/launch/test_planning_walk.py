"""The job master with a planner beside it, whatever happens: the promises of both hold, and it comes to rest."""

from __future__ import annotations

import random

import pytest

from easyscale.core.events import PlanEvent
from easyscale.core.messages import StepReport
from easyscale.core.placement import Placement
from easyscale.launch.devices import Devices
from easyscale.launch.elasticity import Elasticity
from easyscale.launch.master import Master
from easyscale.launch.planning import Planning
from easyscale.schedule.replan import PlanRules
from launch.test_master_walk import EVENTS, NUM_ESTS, World

KINDS = ("fast", "slow", "slow", "fast")
SPEEDS = {"fast": 1.0, "slow": 0.4}
LOW = 2


class PlannedWorld(World):
    """Workers also say how long their ESTs worked."""

    def __init__(self, num_workers: int, rules: PlanRules) -> None:
        super().__init__(num_workers, ())
        elasticity = Elasticity(LOW, NUM_ESTS, max_failures=1000, plan=rules, devices=Devices(KINDS))
        self.master = Master(Placement.even(NUM_ESTS, num_workers), elasticity, "store")
        self.plans: list[PlanEvent] = []
        self.saved: list[dict[str, object]] = []
        self.planning = Planning(elasticity, self.plans.append, self.saved.append)
        self.factor: dict[int, float] = {}
        for worker in range(num_workers):
            self.planning.start(worker, self.alive)

    @property
    def moves(self) -> list[PlanEvent]:
        return [plan for plan in self.plans if plan.decision != "stay"]

    def train(self, number: int) -> None:
        if self.waiting & set(self.master.members):
            return
        reports = []
        for worker, ranks in zip(self.master.members, self.master.placement.ranks_by_worker, strict=True):
            if worker in self.present:
                speed = SPEEDS[KINDS[worker % len(KINDS)]] * self.factor.get(worker, 1.0)
                reports.append(StepReport(worker, self.step, 0, None, 1.0, turns={str(r): 1 / speed for r in ranks}))
        slowest = max(sum(report.turns.values()) for report in reports)
        for report in reports:
            self.planning.heard(
                StepReport(report.worker_rank, self.step, 0, None, 1.0, {}, None, None, report.turns, slowest)
            )
        before = len(self.plans)
        super().train(number)
        self.planning.finished(self.step - 1, self.master, self.now)
        for plan in self.plans[before:]:
            placement = Placement.parse(plan.placement)
            assert placement.num_ests == NUM_ESTS
            assert LOW <= placement.num_workers <= NUM_ESTS or plan.decision == "stay"
            assert {one["worker"] for one in plan.workers} <= set(self.master.members)
            assert 0 <= plan.waste < 1
            assert plan.decision == "stay" or str(self.master.wanted) == plan.placement

    def scale(self, number: int) -> None:
        if number % NUM_ESTS + 1 >= LOW:
            super().scale(number)

    def change_speed(self, number: int) -> None:
        worker = self.some_worker(number)
        if worker is not None:
            self.factor[worker] = (1.0, 0.5, 0.1)[number % 3]


NAMES = (
    *(event.__name__ for event in EVENTS if event is not World.train),
    *("train",) * 40,  # speeds are known after some steps
    *("change_speed",) * 2,
)


@pytest.mark.parametrize("seed", range(4))
def test_promises_hold_with_a_planner(seed: int) -> None:
    draw = random.Random(seed)
    quiet = moves = 0
    for _ in range(14):
        world = PlannedWorld(draw.randint(LOW, NUM_ESTS), PlanRules(cooldown=draw.choice([0, 5, 10]), min_workers=LOW))
        for _ in range(draw.randint(50, 400)):
            getattr(world, draw.choice(NAMES))(draw.randrange(64))
            world.obey()
            if world.is_over:
                break
        world.calm_down()
        moves += len(world.moves)
        if world.is_over or world.finished:
            continue
        quiet += 1
        settled = len(world.moves)
        world.calm_down()
        assert len(world.moves) == settled, "where nothing changes, nothing moves"
        assert world.pending is None
        assert world.master.placement == world.master.wanted
        assert world.alive == set(world.master.members)
        assert world.saved
    assert quiet > 2
    assert moves > 8


def test_a_placement_that_was_asked_for_stays() -> None:
    world = PlannedWorld(2, PlanRules(min_workers=LOW))
    world.calm_down()
    assert [(plan.decision, plan.placement) for plan in world.moves] == [("move", "0,1,2|3")]
    world.planning.hold(is_held=True)
    world.master.scale(Placement.parse("0|1,2,3"), world.now)
    world.calm_down()
    assert str(world.master.placement) == "0|1,2,3"
    world.planning.hold(is_held=False)
    world.master.scale(2, world.now)
    world.calm_down()
    assert str(world.master.placement) == "0,1,2|3"
