"""What each policy decides in small situations, without a simulator: books in, decisions out."""

from __future__ import annotations

import pytest

from easyscale.core.errors import RefusedError
from easyscale.schedule.books import Books
from easyscale.schedule.cluster import ClusterJob, Counts, JobRecord, Policy
from easyscale.schedule.model import JobModel
from easyscale.schedule.policies import POLICIES, named
from easyscale.schedule.policies.easyscale import Rules, easyscale

KINDS = ("V100", "T4")
ELASTIC = easyscale(Rules(cool_down_s=0.0))


def submitted(books: Books, name: str, num_ests: int = 4, can_mix: bool = True, **asks: object) -> JobRecord:
    model = JobModel(num_ests, {"V100": 2.0, "T4": 1.0}, can_mix_kinds=can_mix)
    return books.submit(ClusterJob(name, model, "V100", **asks), remaining_s=100.0)  # type: ignore[arg-type]


def decide(books: Books, policy: Policy) -> list[tuple[str, Counts]]:
    """All decisions, each in force before the next is asked for."""
    said = []
    for decision in policy(books):
        books.check(decision, "tested")
        books.hold(decision.record, decision.held)
        said.append((decision.record.job.name, decision.held))
    return said


def held(books: Books) -> dict[str, Counts]:
    return {record.job.name: record.held for record in [*books.running(), *books.waiting()]}


def test_one_at_a_time_leaves_the_rest_idle() -> None:
    books = Books(KINDS, (8, 0))
    for name in "abc":
        submitted(books, name)
    assert decide(books, named("one-at-a-time").decide) == [("a", (4, 0))]


def test_fifo_blocks_behind_the_first_that_does_not_fit_and_backfill_does_not() -> None:
    def cluster() -> Books:
        books = Books(KINDS, (6, 0))
        for name, size in (("a", 4), ("b", 4), ("c", 2)):
            submitted(books, name, size)
        return books

    assert decide(cluster(), named("fifo").decide) == [("a", (4, 0))]
    assert decide(cluster(), named("backfill").decide) == [("a", (4, 0)), ("c", (2, 0))]


def test_shortest_remaining_first_puts_a_longer_job_back() -> None:
    books = Books(KINDS, (4, 0))
    long = submitted(books, "long")
    books.hold(long, (4, 0))
    long.finish_s = 500.0
    books.touch(long)
    books.now_s = 10.0
    submitted(books, "short")
    assert decide(books, named("srtf").decide) == [("long", (0, 0)), ("short", (4, 0))]


def test_free_devices_go_to_the_highest_speed_up_per_device() -> None:
    """``a`` has 1 of its 4, ``b`` 2 of its 4: one more doubles ``a``; then both may double."""
    books = Books(KINDS, (5, 0))
    books.hold(submitted(books, "a"), (1, 0))
    books.hold(submitted(books, "b"), (2, 0))
    assert decide(books, ELASTIC)[0] == ("a", (2, 0))


def test_ties_go_to_more_devices() -> None:
    """From 1 device, one more and three more bring the same per device; growth allows 4 times."""
    books = Books(KINDS, (4, 0))
    books.hold(submitted(books, "a"), (1, 0))
    assert decide(books, easyscale(Rules(growth=4.0))) == [("a", (4, 0))]


def test_a_newcomer_takes_a_device_from_whom_it_is_worth_least() -> None:
    """3 devices run 4 ESTs no faster than 2, so ``b`` loses nothing; ``a`` would lose half."""
    books = Books(KINDS, (7, 0))
    books.hold(submitted(books, "a"), (4, 0))
    books.hold(submitted(books, "b"), (3, 0))
    submitted(books, "c")
    books.now_s = 100.0
    assert decide(books, ELASTIC)[:2] == [("b", (2, 0)), ("c", (1, 0))]


def test_minimums_come_first_and_are_not_taken() -> None:
    books = Books(KINDS, (4, 0))
    submitted(books, "best effort", 4)
    submitted(books, "guaranteed", 4, min_devices=3, priority=1)
    decide(books, ELASTIC)
    assert sum(held(books)["guaranteed"]) >= 3
    late = submitted(books, "late", 4, min_devices=2, priority=5)
    books.now_s = 10.0
    decide(books, ELASTIC)
    assert sum(held(books)["guaranteed"]) >= 3
    assert not late.is_running


def test_devices_that_are_wanted_back_come_from_those_that_lose_least() -> None:
    books = Books(KINDS, (7, 0))
    books.hold(submitted(books, "a"), (4, 0))
    books.hold(submitted(books, "b"), (3, 0))
    books.set_capacity((6, 0))
    decide(books, ELASTIC)
    assert held(books)["a"] == (4, 0)
    assert min(books.free) >= 0


def test_all_devices_may_be_wanted_back() -> None:
    books = Books(KINDS, (4, 2))
    for name in "abc":
        submitted(books, name)
    decide(books, ELASTIC)
    books.set_capacity((0, 0))
    decide(books, ELASTIC)
    assert books.free == (0, 0)
    assert books.num_running == 0


def test_a_job_changes_to_a_faster_kind_and_returns_the_slow_one() -> None:
    books = Books(KINDS, (4, 4))
    books.hold(submitted(books, "a"), (0, 4))
    decide(books, ELASTIC)
    assert held(books)["a"] == (4, 0)


def test_an_exchange_needs_a_clear_gain_and_rested_jobs() -> None:
    """One more doubles ``few``; ``many`` gives two and halves, which is half as much per device."""

    def decided(now_s: float, threshold: float) -> list[tuple[str, Counts]]:
        books = Books(KINDS, (5, 0))
        books.hold(submitted(books, "many", 4), (4, 0))
        books.hold(submitted(books, "few", 8), (1, 0))
        books.now_s = now_s
        return decide(books, easyscale(Rules(cool_down_s=30.0, threshold=threshold)))

    assert decided(29.0, threshold=1.5) == []
    assert decided(31.0, threshold=2.5) == []
    assert decided(31.0, threshold=1.5)[:2] == [("many", (2, 0)), ("few", (2, 0))]


def test_devices_that_bring_nothing_go_to_whoever_they_bring_something() -> None:
    """7 devices run 8 ESTs no faster than 4."""
    books = Books(KINDS, (8, 0))
    books.hold(submitted(books, "many", 8), (7, 0))
    books.hold(submitted(books, "few", 8), (1, 0))
    books.now_s = 31.0
    decide(books, easyscale(Rules(cool_down_s=30.0)))
    assert held(books) == {"many": (4, 0), "few": (4, 0)}


def test_asked_again_a_policy_has_nothing_more_to_say() -> None:
    for name in sorted(POLICIES):
        books = Books(KINDS, (4, 4))
        for number in range(6):
            submitted(books, f"job-{number}", 1 + number % 4)
        decide(books, POLICIES[name].decide)
        assert decide(books, POLICIES[name].decide) == [], name


def test_unknown_policies_and_rules_that_cannot_be_are_refused() -> None:
    with pytest.raises(RefusedError, match="no policy is called 'fastest': choose from easyscale, "):
        named("fastest")
    with pytest.raises(RefusedError, match=r"growth is 0\.5"):
        Rules(growth=0.5)


@pytest.mark.parametrize(("slow", "kind"), [(0.9, "T4"), (0.2, "V100")])
def test_a_job_that_may_not_mix_starts_on_a_free_kind_only_if_it_can_become_fast_there(slow: float, kind: str) -> None:
    """It stays for life where it starts; on a much slower kind it takes a device of its best one from another job."""
    books = Books(KINDS, (4, 4))
    books.hold(submitted(books, "first"), (4, 0))
    model = JobModel(4, {"V100": 1.0, "T4": slow}, can_mix_kinds=False)
    record = books.submit(ClusterJob("stays", model, "V100"))
    books.now_s = 100.0
    decide(books, ELASTIC)
    assert record.held[KINDS.index(kind)] == sum(record.held) > 0
