"""What the profiler makes of a running job's steps: medians, kinds, a table that is corrected."""

from __future__ import annotations

import pytest

from easyscale.schedule.profiler import ENOUGH, SKIPPED, WINDOW, Profiler, Work

KINDS = {0: "V100", 1: "T4", 2: "T4"}


def profiler(table: dict[str, float] | None = None, kinds: dict[int, str] = KINDS) -> Profiler:
    it = Profiler(table or {})
    it.begin(kinds)
    return it


def note(it: Profiler, seconds: dict[int, float], steps: int = 1, cycle_s: float = 1.0) -> None:
    """Steps in which each worker took so many seconds for each of two ESTs."""
    for _ in range(steps):
        it.note({worker: Work(2, 2 * one) for worker, one in seconds.items()}, cycle_s)


def test_nothing_is_known_before_enough_steps_were_measured() -> None:
    it = profiler()
    note(it, {0: 0.1, 1: 0.2, 2: 0.2}, SKIPPED + ENOUGH - 1)
    assert it.capability(0) is None
    assert not it.is_settled
    note(it, {0: 0.1, 1: 0.2, 2: 0.2})
    assert [it.capability(worker) for worker in KINDS] == pytest.approx([10, 5, 5])
    assert it.step_s == pytest.approx(1.0)
    assert it.sync_s_by_devices == ((3, pytest.approx(0.6)),)


def test_the_first_steps_and_outliers_do_not_count() -> None:
    it = profiler()
    note(it, {0: 9.0, 1: 9.0, 2: 9.0}, SKIPPED, cycle_s=30)
    note(it, {0: 0.1, 1: 0.2, 2: 0.2}, 3)
    note(it, {0: 5.0, 1: 0.2, 2: 7.0}, 1, cycle_s=15)
    note(it, {0: 0.1, 1: 0.2, 2: 0.2}, 3)
    assert [it.capability(worker) for worker in KINDS] == pytest.approx([10, 5, 5])
    assert it.step_s == pytest.approx(1.0)


def test_a_worker_is_slow_after_five_slow_steps_and_fast_after_five_fast_ones() -> None:
    it = profiler()
    note(it, {0: 0.1, 1: 0.2, 2: 0.2}, SKIPPED + WINDOW)
    note(it, {0: 0.1, 1: 0.2, 2: 0.8}, 4)
    assert it.capability(2) == pytest.approx(5)
    note(it, {0: 0.1, 1: 0.2, 2: 0.8})
    assert it.capability(2) == pytest.approx(1.25)
    assert it.capability(1) == pytest.approx(5)
    assert it.capability_by_kind == {"V100": pytest.approx(10), "T4": pytest.approx(5)}
    note(it, {0: 0.1, 1: 0.2, 2: 0.2}, 5)
    assert it.capability(2) == pytest.approx(5)


def test_workers_of_a_kind_that_differ_little_are_alike() -> None:
    it = profiler()
    note(it, {0: 0.1, 1: 0.2, 2: 0.22}, SKIPPED + WINDOW)
    assert it.capability(1) == it.capability(2) == pytest.approx(5)


def test_a_table_is_corrected_by_what_was_measured() -> None:
    it = profiler({"V100": 3.0, "P100": 2.0, "T4": 1.0})
    assert [it.capability(worker) for worker in KINDS] == [3.0, 1.0, 1.0]
    it.begin({0: "V100"})
    note(it, {0: 0.1}, SKIPPED + ENOUGH)
    assert it.capability_by_kind == {
        "V100": pytest.approx(10),
        "P100": pytest.approx(20 / 3),
        "T4": pytest.approx(10 / 3),
    }
    assert it.measured_by_kind == {"V100": pytest.approx(10)}


def test_what_is_known_of_workers_that_stay_is_kept_and_steps_are_timed_anew() -> None:
    it = profiler()
    note(it, {0: 0.1, 1: 0.2, 2: 0.8}, SKIPPED + ENOUGH)
    it.begin({0: "V100", 2: "T4", 3: "T4"})
    assert not it.is_settled
    assert it.capability(2) == pytest.approx(1.25)
    assert it.capability(3) == pytest.approx(5), "a new worker is as fast as its kind was"
    assert it.sync_s_by_devices[0][0] == 3
