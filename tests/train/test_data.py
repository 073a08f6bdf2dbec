"""Mini-batches are those of DistributedSampler; values do not depend on who loads them."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler, SubsetRandomSampler

from easyscale import RefusedError
from easyscale.train.data.plan import LoaderOrder
from train.conftest import Numbers, Open


class Augmented(Numbers):
    """Draws from all three generators for every sample."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()])


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


@pytest.mark.parametrize("length", [7, 12])
def test_evaluation_sees_every_sample_once(open_session: Open, length: int) -> None:
    session = open_session(num_ests=5)
    loader = session.prepare(DataLoader(Numbers(length), batch_size=2))
    before = torch.get_rng_state()
    with torch.no_grad():
        seen = [int(number) for batch in loader for number in batch.flatten()]
    assert sorted(seen) == list(range(length))
    assert torch.equal(before, torch.get_rng_state())


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
        seen = [number for step in session.steps(loader) for batch in step for number in batch.flatten().tolist()]
        assert len(seen) == 12
        assert len(set(seen)) == 12
        epochs.append(seen)
    assert (epochs[0] == epochs[1]) == (kind == "batch_sampler")


@pytest.fixture
def torchs_child_handler() -> Iterator[None]:
    """A DataLoader with workers sets a handler of SIGCHLD for the rest of the process: take it back."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


def values(open_session: Open, num_workers: int, epochs: int = 2) -> list[list[float]]:
    session = open_session(num_ests=3)
    loader = session.prepare(DataLoader(Augmented(20), batch_size=3, shuffle=True, num_workers=num_workers))
    found = [
        batch.flatten().tolist() for _ in session.epochs(epochs) for step in session.steps(loader) for batch in step
    ]
    session.close()
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("torchs_child_handler")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_augmented_values_do_not_depend_on_data_workers(open_session: Open) -> None:
    expected = values(open_session, 0)
    assert len({number for batch in expected for number in batch}) > len(expected)
    assert values(open_session, 1) == expected
    assert values(open_session, 3) == expected


def test_another_pass_over_a_step_gives_the_same_mini_batches(open_session: Open) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Augmented(8), batch_size=2, shuffle=True))
    for step in session.steps(loader):
        first = [batch.tolist() for batch in step]
        assert [batch.tolist() for batch in step] == first


def test_epochs_differ_without_session_epochs_and_set_epoch_chooses(open_session: Open) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Numbers(16), batch_size=4, shuffle=True))

    def one_epoch() -> list[float]:
        return [number for step in session.steps(loader) for batch in step for number in batch.flatten().tolist()]

    first, second = one_epoch(), one_epoch()
    assert first != second
    loader.sampler.set_epoch(0)
    assert one_epoch() == first
    loader.set_epoch(1)
    assert one_epoch() == second


def test_a_step_never_passed_over_is_skipped(open_session: Open) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Numbers(16), batch_size=4))
    seen = []
    for step in session.steps(loader):
        if session.global_step == 0:
            continue
        seen += [number for batch in step for number in batch.flatten().tolist()]
    assert sorted(seen) == list(range(8, 16))
    assert session.global_step == 2


def test_a_loader_keeps_its_attributes(open_session: Open) -> None:
    session = open_session(num_ests=4)
    data = Numbers(17)
    loader = session.prepare(DataLoader(data, batch_size=2))
    assert (len(loader), loader.batch_size, loader.dataset) == (3, 2, data)
    with pytest.raises(AttributeError):
        _ = loader.no_such_thing


def test_set_epoch_of_the_scripts_own_distributed_sampler_is_followed(open_session: Open) -> None:
    session = open_session(num_ests=2)
    data = Numbers(16)
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=0, seed=9)
    loader = session.prepare(DataLoader(data, batch_size=4, sampler=sampler))
    other: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=0, seed=9)
    for epoch in (0, 3, 3, 1):
        sampler.set_epoch(epoch)
        other.set_epoch(epoch)
        own = [
            n
            for step in session.steps(loader)
            for rank, b in enumerate(step)
            if rank == 0
            for n in b.flatten().tolist()
        ]
        assert own == list(other)


def test_a_distributed_sampler_with_an_order_of_its_own_is_refused(open_session: Open) -> None:
    class Backwards(DistributedSampler[Any]):
        def __iter__(self) -> Iterator[int]:
            return iter(reversed(list(super().__iter__())))

    session = open_session(num_ests=2)
    data = Numbers(16)
    with pytest.raises(RefusedError, match="Backwards is a DistributedSampler with an order of its own"):
        session.prepare(DataLoader(data, batch_size=4, sampler=Backwards(data, num_replicas=2, rank=0)))


def _scale_dataset(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    info.dataset.length = info.dataset.length * 10


class ByLength(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(self.length)])


@pytest.mark.slow
@pytest.mark.usefixtures("torchs_child_handler")
def test_worker_init_fn_reaches_the_users_dataset(open_session: Open) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(ByLength(4), batch_size=2, num_workers=1, worker_init_fn=_scale_dataset))
    assert [b.flatten().tolist() for step in session.steps(loader) for b in step] == [[40.0, 40.0]] * 2
