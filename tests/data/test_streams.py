"""Iterable datasets: dealt out to ESTs, ended for all at the same step, state kept by whoever keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from consistency.loaders import Shards, Stream, bits, loader_of
from data.conftest import Open
from data.elsewhere import work
from easyscale import RefusedError, UsageError
from easyscale.train.data.share import can_save


def dealt(session: Any, loader: Any, accumulate: int = 1) -> list[list[list[int]]]:
    """First entries of samples, by step and EST."""
    return [
        [[int(row[0]) for row in batch.reshape(-1, batch.shape[-1])] for batch in step]
        for step in session.steps(loader, accumulate)
    ]


def test_a_stream_is_dealt_out_in_turns_as_by_a_distributed_sampler(open_session: Open) -> None:
    session = open_session(num_ests=3)
    steps = dealt(session, session.prepare(DataLoader(Stream(18), 2)))
    assert steps == [[[6 * k + r, 6 * k + r + 3] for r in range(3)] for k in range(3)]


def test_a_dataset_that_deals_itself_out_is_asked_for_the_shards_of_each_est(open_session: Open) -> None:
    session = open_session(num_ests=2)
    steps = dealt(session, session.prepare(DataLoader(Shards([3, 2, 1, 2]), 2)))
    assert steps == [[[0, 1], [100, 101]], [[2, 200], [300, 301]]]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("data_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_epoch_ends_for_all_when_the_first_stream_has_no_mini_batch(open_session: Open, data_workers: int) -> None:
    """Of 20 samples virtual ranks 0 and 1 have 7, rank 2 has 6: the short mini-batches of two of them are left out."""
    session = open_session(num_ests=3)
    how = {"num_workers": data_workers}
    ends_short, drops, shards = session.prepare(
        DataLoader(Stream(20), 4, **how),
        DataLoader(Stream(20), 4, drop_last=True, **how),
        DataLoader(Shards([5, 9, 4]), 2, **how),
    )
    assert [[len(batch) for batch in step] for step in dealt(session, ends_short)] == [[4, 4, 4], [3, 3, 2]]
    assert [[len(batch) for batch in step] for step in dealt(session, drops)] == [[4, 4, 4]]
    assert [[len(batch) for batch in step] for step in dealt(session, shards)] == [[2, 2, 2], [2, 2, 2]]
    assert [[len(batch) for batch in step] for step in dealt(session, shards, accumulate=3)] == [[2] * 6]


class Epochs(IterableDataset[Any]):
    """Takes ``set_epoch``; what it counts in itself is lost with its copy."""

    def __init__(self) -> None:
        self.epoch = -1
        self.times = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.times += 1
        yield from (torch.tensor([100.0 * self.epoch + 10 * self.times + i]) for i in range(4))


@pytest.mark.filterwarnings("ignore:the iterable dataset Epochs changed its own times")
def test_every_epoch_begins_with_a_copy_of_the_dataset_which_is_told_the_epoch(open_session: Open) -> None:
    session = open_session(num_ests=2)
    data = Epochs()
    loader = session.prepare(DataLoader(data, 1))
    for epoch in session.epochs(3):
        assert dealt(session, loader) == [
            [[100 * epoch + 10], [100 * epoch + 11]],
            [[100 * epoch + 12], [100 * epoch + 13]],
        ]
    assert (data.epoch, data.times) == (-1, 0)


def test_a_stream_that_cannot_be_copied_is_refused(open_session: Open) -> None:
    class Holding(Stream):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = (number for number in range(3))

    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Holding(), 2))
    with pytest.raises(RefusedError, match="Holding cannot be copied"):
        next(iter(session.steps(loader)))


def test_who_keeps_the_state_is_found_without_reading(open_session: Open) -> None:
    class Unreadable(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("read")
            yield

    assert can_save(Stream())
    assert can_save(Shards())
    assert not can_save(Unreadable())


def test_evaluation_in_a_loop_over_the_same_stream_takes_nothing_from_it(open_session: Open) -> None:
    """Also without data workers, where both are read in this process."""
    session = open_session(num_ests=3)
    model, loader = session.prepare(torch.nn.ReLU(), loader_of("stream"))
    expected = [[bits(batch) for batch in step] for step in session.steps(loader)]
    loader.set_epoch(0)
    model.eval()
    found = []
    for step in session.steps(loader):
        found.append([bits(batch) for batch in step])
        with torch.no_grad():
            inner = [int(i) for batch in loader for i in batch["samples"][:, 0]]
            assert sorted(inner) == list(range(24))
    assert found == expected


def test_two_evaluations_of_a_stream_at_once_take_nothing_from_each_other(open_session: Open) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(loader_of("uneven_stream"))
    with torch.no_grad():
        pairs = [(a, b) for a, b in zip(loader, loader, strict=True)]
    assert all(bits(a) == bits(b) for a, b in pairs)
    assert sorted(int(i) for a, _ in pairs for i in a["samples"][:, 0]) == list(range(27))


def test_a_stream_without_the_protocol_is_refused_at_start_only_where_the_job_may_move(
    open_session: Open, request: pytest.FixtureRequest
) -> None:
    """Scenario 18: a clear refusal at start, not at the first change."""

    class Plain(Stream):
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()

    expected, _ = work(lambda: DataLoader(Stream(), 2), range(3), 3)
    with open_session(num_ests=3) as session:
        loader = session.prepare(DataLoader(Plain(), 2))
        steps = [[bits(batch) for batch in step] for step in session.steps(loader)]
        assert steps == [[bits(batch) for batch in step.values()] for step in expected]
        for step in session.steps(loader):
            list(step)
            with pytest.raises(UsageError, match=r"Plain cannot save its position.*state_dict\(\)"):
                loader.state_dict()
            break
    request.getfixturevalue("may_move")
    session = open_session(num_ests=3)
    with pytest.raises(RefusedError, match="Plain cannot save its position, but the job may rescale"):
        session.prepare(DataLoader(Plain(), 2))
    with pytest.raises(RefusedError, match="Endless cannot save its position"):
        session.prepare(DataLoader(Endless(), 2))


class Endless(Stream):
    def __iter__(self) -> Any:
        return iter(range(100))  # an iterator that keeps no state
