"""What users of elastic training met (docs/data.md says what holds): workers change in the middle of an epoch."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from consistency.loaders import Shards, bits, collate, loader_of
from data.conftest import Numbers, numbers
from data.elsewhere import Handed, work, work_on

pytestmark = pytest.mark.usefixtures("may_move")

COUNTS = (1, 2, 3, 5, 7, 8)


def indices(handed: Handed) -> list[int]:
    return [number for step in handed for batch in step.values() for number in numbers(batch)]


def hashes(handed: Handed) -> list[dict[int, float]]:
    return [{rank: bits(batch) for rank, batch in step.items()} for step in handed]


def test_the_samples_that_come_next_come_next_on_two_workers() -> None:
    """Scenario 1: 16 samples, 4 in a step; one worker takes the first step, two go on."""

    def make() -> DataLoader[Any]:
        return DataLoader(Numbers(16), batch_size=2)

    first, positions = work_on(make, 1, 2, steps=1)
    rest, _ = work_on(make, 2, 2, positions)
    assert sorted(indices(first)) == [0, 1, 2, 3]
    assert sorted(indices(rest[:1])) == [4, 5, 6, 7]
    assert sorted(indices(first + rest)) == list(range(16))


def test_no_sample_is_trained_again_when_a_worker_leaves() -> None:
    """Scenario 2: of two workers one goes after step 4."""

    def make() -> DataLoader[Any]:
        return DataLoader(Numbers(64), batch_size=2, shuffle=True)

    first, positions = work_on(make, 2, 4, steps=4)
    rest, _ = work_on(make, 1, 4, positions[:1])
    assert len(first) == len(rest) == 4
    assert sorted(indices(first + rest)) == list(range(64))


def test_what_is_left_is_the_tail_of_the_same_permutation() -> None:
    """Scenarios 4 and 5: and the next epoch does not repeat it."""

    def make() -> DataLoader[Any]:
        return DataLoader(Numbers(24), batch_size=2, shuffle=True)

    whole, end = work(make, range(3), 3)
    for stop in range(5):
        first, position = work(make, range(3), 3, steps=stop)
        rest, after = work(make, range(3), 3, position)
        assert indices(first) + indices(rest) == indices(whole)
        assert after == end
    over, _ = work(make, range(3), 3, {**end, "epoch": None, "number": 0})
    assert sorted(indices(over)) == sorted(indices(whole))
    assert indices(over) != indices(whole)


@pytest.mark.parametrize("kind", ["shuffled", "weighted_generator", "uneven_stream"])
def test_every_number_of_workers_hands_out_the_same(kind: str) -> None:
    """Scenarios 14 and 15: 8 ESTs on 1, 2, 3, 5, 7 and 8 workers, values included."""
    expected, _ = work_on(lambda: loader_of(kind), 8, 8)
    assert len(expected) >= 1
    for workers in COUNTS:
        found, _ = work_on(lambda: loader_of(kind), workers, 8)
        # workers that are no job of one channel do not agree on the end of a stream: ``zip`` cut them alike
        assert hashes(found) == hashes(expected)


@pytest.mark.parametrize("kind", ["shuffled", "stream", "shards_of_eight"])
def test_the_position_of_every_est_is_kept_on_fewer_and_on_more_workers(kind: str) -> None:
    """Scenarios 9, 10 and 17: four workers stop in the middle of an epoch; two, eight and one go on."""

    def make() -> DataLoader[Any]:
        if kind == "shards_of_eight":
            return DataLoader(Shards([6, 7, 8, 6, 9, 6, 7, 6]), 2, collate_fn=collate)
        return loader_of(kind) if kind == "stream" else DataLoader(Numbers(48), 2, shuffle=True)

    num_ests = 8 if kind != "stream" else 4
    whole, _ = work_on(make, 1, num_ests)
    for stop in (0, 1, 2):
        first, positions = work_on(make, 4, num_ests, steps=stop)
        for workers in (1, 2, num_ests):
            rest, _ = work_on(make, workers, num_ests, positions)
            assert hashes(first + rest) == hashes(whole)


def test_the_position_is_that_of_the_trainer_and_not_of_data_workers() -> None:
    """Scenario 19: two data workers are up to 8 mini-batches ahead."""
    for kind in ("shuffled", "stream"):
        plain, expected = work(lambda kind=kind: loader_of(kind), range(3), 3, steps=1)
        ahead = lambda kind=kind: loader_of(kind, 2, prefetch_factor=4)  # noqa: E731
        found, position = work(ahead, range(3), 3, steps=1)
        assert hashes(found) == hashes(plain)
        assert position["number"] == expected["number"] == 1
        rest, _ = work(lambda kind=kind: loader_of(kind), range(3), 3, position)
        assert hashes(rest) == hashes(work(lambda kind=kind: loader_of(kind), range(3), 3)[0])[1:]


def test_the_position_of_a_shuffled_loader_is_a_few_numbers() -> None:
    """It does not grow with the dataset."""
    _, position = work(lambda: DataLoader(Numbers(100_000), 2, shuffle=True), range(3), 3, steps=2)
    assert position["number"] == 2
    assert len(str(position)) < 600
