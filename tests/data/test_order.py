"""Which samples an EST is given: those of DistributedSampler, or of a sampler of the user's own dealt out once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler, SubsetRandomSampler

from data.conftest import Numbers, Open, numbers
from easyscale import RefusedError
from easyscale.train.data.permutation import Permutation, PermutationSampler
from easyscale.train.data.plan import LoaderOrder


def never(epoch: int) -> None:
    raise AssertionError("a loader without a sampler of the user's own drew random numbers")


@given(
    length=st.integers(1, 40),
    num_ests=st.integers(1, 9),
    batch_size=st.integers(1, 7),
    epoch=st.integers(0, 3),
    is_shuffled=st.booleans(),
    drop_uneven=st.booleans(),
    drop_last=st.booleans(),
)
@settings(deadline=None, max_examples=150)
@pytest.mark.draws_random_numbers
def test_order_is_that_of_distributed_sampler(
    length: int, num_ests: int, batch_size: int, epoch: int, is_shuffled: bool, drop_uneven: bool, drop_last: bool
) -> None:
    if drop_uneven and length < num_ests:
        return  # DistributedSampler itself fails there
    data = Numbers(length)
    samplers = [
        DistributedSampler(data, num_ests, rank, shuffle=is_shuffled, seed=7, drop_last=drop_uneven)
        for rank in range(num_ests)
    ]
    loader = DataLoader(data, batch_size=batch_size, drop_last=drop_last, sampler=samplers[0])
    order = LoaderOrder.of(loader, num_ests, seed=0)
    plan = order.epoch(epoch, never)
    for rank, sampler in enumerate(samplers):
        sampler.set_epoch(epoch)
        expected = list(BatchSampler(sampler, batch_size, drop_last))
        assert [plan.batch(rank, number) for number in range(len(plan))] == expected
        assert order.num_batches() == len(expected)


@given(length=st.integers(0, 3000), seed=st.integers(0, 2**40))
@settings(deadline=None, max_examples=40)
def test_a_permutation_without_an_array_is_one(length: int, seed: int) -> None:
    order = Permutation(length, seed)
    assert sorted(order) == list(range(length))
    assert list(order) == order[:]
    assert [order[place] for place in range(0, length, 97)] == order[::97]
    assert order[length // 2 :: 3] == list(order)[length // 2 :: 3]


def test_permutations_of_other_seeds_and_epochs_are_unrelated() -> None:
    sampler = PermutationSampler(range(1000), seed=4)
    orders = [list(sampler.permutation(epoch)) for epoch in range(5)] + [list(Permutation(1000, 5))]
    for number, one in enumerate(orders):
        for other in orders[:number]:
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 10
        assert sum(a + 1 == b for a, b in zip(one, one[1:], strict=False)) < 10


def test_a_permutation_sampler_is_dealt_out_by_epoch(open_session: Open) -> None:
    session = open_session(num_ests=3)
    data = Numbers(12)
    loader = session.prepare(DataLoader(data, batch_size=2, sampler=PermutationSampler(data, seed=2)))
    for epoch in session.epochs(2):
        seen = [[numbers(batch) for batch in step] for step in session.steps(loader)]
        order = list(PermutationSampler(data, seed=2).permutation(epoch))
        assert seen == [[[order[rank + 6 * k], order[rank + 6 * k + 3]] for rank in range(3)] for k in range(2)]


@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
@pytest.mark.draws_random_numbers
def test_a_sampler_of_the_users_own_is_dealt_out_once(open_session: Open, kind: str) -> None:
    data = Numbers(20)
    if kind == "sampler":
        loader: DataLoader[Any] = DataLoader(data, batch_size=2, sampler=SubsetRandomSampler(range(4, 16)))
    else:
        loader = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(range(4, 16)), 2, drop_last=False))
    session = open_session(num_ests=3)
    _, loader = session.prepare(torch.nn.Linear(1, 1), loader)
    epochs = []
    for _ in session.epochs(2):
        seen = [number for step in session.steps(loader) for batch in step for number in numbers(batch)]
        assert len(seen) == 12
        assert len(set(seen)) == 12
        epochs.append(seen)
    assert (epochs[0] == epochs[1]) == (kind == "batch_sampler")


def test_epochs_differ_without_session_epochs_and_set_epoch_chooses(open_session: Open) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Numbers(16), batch_size=4, shuffle=True))

    def one_epoch() -> list[int]:
        return [number for step in session.steps(loader) for batch in step for number in numbers(batch)]

    first, second = one_epoch(), one_epoch()
    assert first != second
    loader.sampler.set_epoch(0)
    assert one_epoch() == first
    loader.set_epoch(1)
    assert one_epoch() == second


def test_set_epoch_of_the_scripts_own_distributed_sampler_is_followed(open_session: Open) -> None:
    session = open_session(num_ests=2)
    data = Numbers(16)
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=0, seed=9)
    loader = session.prepare(DataLoader(data, batch_size=4, sampler=sampler))
    other: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=0, seed=9)
    for epoch in (0, 3, 3, 1):
        sampler.set_epoch(epoch)
        other.set_epoch(epoch)
        steps = [[numbers(batch) for batch in step] for step in session.steps(loader)]
        assert [number for step in steps for number in step[0]] == list(other)


def test_a_distributed_sampler_with_an_order_of_its_own_is_refused(open_session: Open) -> None:
    class Backwards(DistributedSampler[Any]):
        def __iter__(self) -> Iterator[int]:
            return iter(reversed(list(super().__iter__())))

    session = open_session(num_ests=2)
    data = Numbers(16)
    with pytest.raises(RefusedError, match="Backwards is a DistributedSampler with an order of its own"):
        session.prepare(DataLoader(data, batch_size=4, sampler=Backwards(data, num_replicas=2, rank=0)))


def test_orders_follow_the_session_seed_or_the_loaders_generator(open_session: Open) -> None:
    """Scenario 7: two new loaders differ with other seeds and agree with equal ones; the seed is the session's."""

    def order(seed: int, generator: torch.Generator | None = None) -> list[int]:
        with open_session(num_ests=2, seed=seed) as session:
            loader = session.prepare(DataLoader(Numbers(20), batch_size=5, shuffle=True, generator=generator))
            return [number for step in session.steps(loader) for batch in step for number in numbers(batch)]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1, torch.Generator().manual_seed(5)) == order(2, torch.Generator().manual_seed(5))
    assert order(1, torch.Generator().manual_seed(5)) != order(1, torch.Generator().manual_seed(6))
