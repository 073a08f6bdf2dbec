"""When a running job moves its ESTs: simulated workers whose speeds the test sets."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from easyscale.core.placement import Placement
from easyscale.schedule.profiler import Work
from easyscale.schedule.replan import PlanRules, Replanner, Verdict, best_placement


class Sim:
    """A job whose workers take ``1 / speed`` for an EST; moves happen two steps after they are decided.

    Attributes:
        penalty: seconds that a step takes longer with these numbers of ESTs by worker.
        noise: each EST takes up to this share more or less.
        moves: global steps at which ESTs were moved by a verdict, and which.
    """

    def __init__(
        self, speeds: Mapping[int, float], placement: str, rules: PlanRules | None = None, seed: int = 0
    ) -> None:
        self.it = Replanner(rules or PlanRules())
        self.speeds = dict(speeds)
        self.workers = list(speeds)
        self.placement = Placement.parse(placement)
        self.penalty: dict[tuple[int, ...], float] = {}
        self.strain: Callable[[int, int], float] = lambda worker, ests: 1.0
        self.noise = 0.0
        self.step = 0
        self.moves: list[tuple[int, str]] = []
        self.verdicts: list[Verdict] = []
        self._draw = random.Random(seed)
        self._coming: tuple[int, Verdict] | None = None
        self.kinds = dict.fromkeys(speeds, "device")
        self.begin()

    @property
    def ests(self) -> tuple[int, ...]:
        return tuple(map(len, self.placement.ranks_by_worker))

    def begin(self) -> None:
        self.it.begin({worker: self.kinds[worker] for worker in self.workers}, self.placement)

    def change_workers(self, speeds: Mapping[int, float]) -> None:
        """Others come or go: the job goes on with an even division."""
        self.speeds, self.workers = {**self.speeds, **speeds}, list(speeds)
        self.kinds = {**dict.fromkeys(speeds, "device"), **self.kinds}
        self.placement = Placement.even(self.placement.num_ests, len(speeds))
        self._coming = None
        self.begin()

    def run(self, steps: int) -> list[Verdict]:
        found = []
        for _ in range(steps):
            if self._coming is not None and self.step >= self._coming[0]:
                verdict, self._coming = self._coming[1], None
                self.placement, self.workers = verdict.placement, list(verdict.workers)
                self.begin()
            works = {worker: self._work(worker, ests) for worker, ests in zip(self.workers, self.ests, strict=True)}
            cycle_s = max(work.seconds for work in works.values()) + 0.01 + self.penalty.get(self.ests, 0.0)
            verdict = self.it.step(self.step, works, cycle_s)
            if verdict is not None:
                found.append(verdict)
                if verdict.decision != "stay":
                    self.moves.append((self.step, verdict.decision))
                    self._coming = (self.step + 2, verdict)
            self.step += 1
        self.verdicts += found
        return found

    def _work(self, worker: int, ests: int) -> Work:
        seconds = sum(1 + self.noise * self._draw.uniform(-1, 1) for _ in range(ests)) / self.speeds[worker]
        return Work(ests, seconds * self.strain(worker, ests))


def test_a_slow_kind_gets_fewer_ests_after_the_first_measurement() -> None:
    sim = Sim({0: 1.0, 1: 0.4, 2: 0.4}, "0,1,2|3,4,5|6,7")
    (move,) = sim.run(8)
    assert (move.decision, str(move.placement), move.workers) == ("move", "0,1,2,3|4,5|6,7", (0, 1, 2))
    (stay,) = sim.run(20)
    assert (stay.decision, sim.ests) == ("stay", (4, 2, 2))
    assert stay.measured_step_s == pytest.approx(stay.plan.step_s)
    assert stay.reason == "a step takes 5.01 s and took 7.51 s before the move"


def test_a_straggler_is_unloaded_and_loaded_again() -> None:
    sim = Sim({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, "0,1|2,3|4,5|6,7")
    assert [one.decision for one in sim.run(30)] == ["stay"]
    sim.speeds[2] = 0.4
    move, stay = sim.run(20)
    assert "worker 2 (device) is slow, 0.4 of its speed before" in move.reason
    assert (stay.decision, sim.ests) == ("stay", (2, 2, 1, 3))
    sim.speeds[2] = 1.0
    move = sim.run(20)[0]
    assert "worker 2 (device) is faster" in move.reason
    assert sorted(sim.ests) == [2, 2, 2, 2]


def test_a_worker_that_brings_nothing_is_left_out_if_it_may_be() -> None:
    for least, workers in ((1, [0, 1]), (3, [0, 1, 2])):
        sim = Sim({0: 1.0, 1: 1.0, 2: 0.05}, "0,1|2|3", PlanRules(min_workers=least))
        sim.run(30)
        assert sim.workers == workers


def test_reality_that_is_slower_is_left_again_and_not_tried_twice_until_things_change() -> None:
    sim = Sim({0: 1.0, 1: 0.4, 2: 0.4}, "0,1,2|3,4,5|6,7")
    sim.penalty[4, 2, 2] = 5.0
    move, back = sim.run(25)
    assert (move.decision, back.decision, str(back.placement)) == ("move", "back", "0,1,2|3,4,5|6,7")
    assert "back to where it was" in back.reason
    assert sim.run(100) == []
    assert sim.ests == (3, 3, 2)
    sim.speeds[0] = 0.9  # not a change that counts
    assert sim.run(50) == []
    sim.begin()  # the same workers meet anew, as after a broken connection
    (stay,) = sim.run(50)
    assert stay.reason == "the division that looks best was tried: its steps took 2 times as long as predicted"
    sim.penalty.clear()
    sim.speeds[1] = 0.5
    assert [(one.decision, sim.ests) for one in sim.run(40)] == [("move", (4, 2, 2)), ("stay", (4, 2, 2))]


def test_a_device_that_is_slow_with_many_ests_does_not_swing() -> None:
    """Its speed changes by the move itself, back and forth: the first time shows it."""
    sim = Sim({0: 1.0, 1: 0.4, 2: 0.4}, "0,1,2|3,4,5|6,7")
    sim.strain = lambda worker, ests: 3.0 if ests > 3 else 1.0
    assert [one.decision for one in sim.run(200)] == ["move", "back"]
    sim.begin()
    assert [one.decision for one in sim.run(200)] == ["stay"]


def test_a_worker_that_slows_down_for_itself_does_not_take_the_move_back() -> None:
    sim = Sim({0: 1.0, 1: 0.4, 2: 0.4}, "0,1,2|3,4,5|6,7")
    sim.run(7)
    sim.speeds[1] = 0.1
    decisions = [one.decision for one in sim.run(40)]
    assert "back" not in decisions
    assert sim.ests == (6, 2), "the slow one is left out"


def test_less_than_the_least_gain_moves_nothing() -> None:
    for gain, moves in ((0.6, 0), (0.3, 1)):
        sim = Sim({0: 1.0, 1: 0.4, 2: 0.4}, "0,1,2|3,4,5|6,7", PlanRules(gain=gain))
        (verdict, *_) = sim.run(40)
        assert len(sim.moves) == moves
        assert ("faster, and moves are made for 60% or more" in verdict.reason) == (moves == 0)


def test_a_held_job_is_measured_and_left() -> None:
    sim = Sim({0: 1.0, 1: 0.4, 2: 0.4}, "0,1,2|3,4,5|6,7")
    sim.it.is_held = True
    assert sim.run(40) == []
    sim.it.is_held = False
    assert sim.run(1)[0].decision == "move"


def test_a_table_decides_before_the_first_measurement() -> None:
    rules = PlanRules(table={"V100": 5.0, "T4": 2.0}, limits={"V100": 4})
    assert str(best_placement(rules, ("T4", "V100"), Placement.even(6, 2))) == "4,5|0,1,2,3"
    assert str(best_placement(rules, ("T4", "other"), Placement.even(6, 2))) == "0,1,2|3,4,5"


@pytest.mark.parametrize("seed", range(6))
def test_noise_moves_nothing(seed: int) -> None:
    sim = Sim({0: 1.0, 1: 0.4, 2: 0.4}, "0,1,2,3|4,5|6,7", seed=seed)
    sim.noise = 0.1
    sim.run(500)
    assert sim.moves == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_it_does_not_flap(seed: int) -> None:
    draw = random.Random(seed)
    rules = PlanRules(cooldown=draw.choice([5, 10, 20]), min_workers=draw.choice([1, 2]))
    sim = Sim({0: 1.0, 1: 1.0, 2: 0.4}, "0,1,2|3,4,5|6,7", rules, seed)
    sim.noise = 0.05
    changes, names = 1, 3
    for _ in range(40):
        event = draw.random()
        if event < 0.5:
            sim.speeds[draw.choice(sim.workers)] = draw.choice([1.0, 0.7, 0.4, 0.2, 0.05])
        elif event < 0.6:
            speeds = {worker: sim.speeds[worker] for worker in draw.sample(sim.workers, min(2, len(sim.workers)))}
            sim.change_workers({**speeds, names: 1.0})
            names, changes = names + 1, changes + 1
        elif event < 0.7:
            strain = draw.choice([1.0, 2.0])
            sim.strain = lambda worker, ests, strain=strain: strain if ests > 2 else 1.0
        elif event < 0.9:
            sim.penalty[sim.ests] = draw.choice([0.0, 3.0])
        sim.run(draw.randint(1, 40))
        assert len(sim.workers) >= rules.min_workers
        assert sum(sim.ests) == 8
    pairs = zip(sim.moves, sim.moves[1:], strict=False)
    gaps = [later - earlier for (earlier, _), (later, decision) in pairs if decision == "move"]
    assert sum(gap < rules.cooldown for gap in gaps) <= changes, "only workers that come or go cut the cool-down short"
    sim.run(60)
    settled = len(sim.moves)
    sim.run(300)
    assert len(sim.moves) == settled, "where nothing changes, nothing moves"
