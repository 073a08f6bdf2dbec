"""Positions of loaders: when they may be asked for and given, and what of them is checked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Generator, nn
from torch.utils.data import DataLoader, Sampler

from consistency.loaders import loader_of
from data.conftest import Numbers, Open, numbers
from data.elsewhere import work
from easyscale import RefusedError, UsageError
from easyscale.train.data.permutation import PermutationSampler

Make = Callable[[], DataLoader[Any]]


def shuffled(**how: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(24), **{"batch_size": 2, "shuffle": True, **how})


def position_after(steps: int, make: Make = shuffled, **how: Any) -> dict[str, Any]:
    return work(make, range(3), 3, steps=steps, **how)[1]


@pytest.mark.parametrize("form", ["two_loop", "drop_in"])
@pytest.mark.parametrize("data_workers", [0, 2])
@pytest.mark.draws_random_numbers
def test_iter_before_the_position_is_loaded_is_honoured(open_session: Open, data_workers: int, form: str) -> None:
    """Scenario 8: ``iter()`` alone has read nothing yet."""
    position = position_after(2)
    expected = [numbers(batch) for step in work(shuffled, range(3), 3)[0][2:] for batch in step.values()]
    session = open_session(num_ests=3)
    model, loader = session.prepare(nn.Linear(1, 1), shuffled(num_workers=data_workers))
    early = iter(session.steps(loader)) if form == "two_loop" else iter(loader)
    loader.load_state_dict(position)
    if form == "two_loop":
        found = [numbers(batch) for step in early for batch in step]
    else:
        found = []
        for batch in early:
            model(batch).sum().backward()
            found.append(numbers(batch))
    assert found == expected


def test_a_position_loaded_while_the_loader_runs_is_an_error(open_session: Open) -> None:
    """Scenario 8: never a silent restart at row 0."""
    position = position_after(2)
    session = open_session(num_ests=3)
    loader = session.prepare(shuffled())
    for step in session.steps(loader):
        list(step)
        with pytest.raises(UsageError, match="load it before the loop"):
            loader.load_state_dict(position)


def test_a_position_asked_for_in_the_middle_of_a_step_is_an_error(open_session: Open) -> None:
    session = open_session(num_ests=3)
    loader = session.prepare(shuffled())
    steps = iter(session.steps(loader))
    batches = iter(next(steps))
    next(batches)
    with pytest.raises(UsageError, match="in the middle of a global step"):
        loader.state_dict()
    list(batches)
    assert loader.state_dict()["number"] == 1


def test_a_position_loaded_and_not_used_yet_is_told_again(open_session: Open) -> None:
    position = position_after(2)
    session = open_session(num_ests=3)
    loader = session.prepare(shuffled())
    loader.load_state_dict(position)
    assert loader.state_dict() == position


def test_a_position_of_another_epoch_than_the_sessions_is_refused(open_session: Open) -> None:
    position = {**position_after(2), "epoch": 1, "iterations": 2}
    session = open_session(num_ests=3)
    loader = session.prepare(shuffled())
    loader.load_state_dict(position)
    with pytest.raises(RefusedError, match=r"is in epoch 1 \(mini-batch 2\), but the epoch that comes is 0"):
        for _ in session.epochs(2):
            next(iter(session.steps(loader)))


@pytest.mark.parametrize(
    ("make", "num_ests", "seed", "message"),
    [
        (shuffled, 4, 0, "num_ests 3, this one has 4"),
        (lambda: DataLoader(Numbers(25), 2, shuffle=True), 3, 0, "length 24, this one has 25"),
        (lambda: shuffled(batch_size=3), 3, 0, "batch_size 2, this one has 3"),
        (lambda: shuffled(shuffle=False), 3, 0, "shuffle True, this one has False"),
        (lambda: shuffled(drop_last=True), 3, 0, "drop_last"),
        (lambda: shuffled(shuffle=False, sampler=PermutationSampler(range(24))), 3, 0, "sampler|shuffle"),
        (shuffled, 3, 1, "session seed 0, this one has 1"),
        (lambda: shuffled(generator=Generator().manual_seed(3)), 3, 0, "with seed 0, this one has 3"),
    ],
)
def test_a_foreign_position_is_refused_with_what_differs(make: Make, num_ests: int, seed: int, message: str) -> None:
    """Scenario 22."""
    with pytest.raises(RefusedError, match=message):
        work(make, range(num_ests), num_ests, position_after(1), seed=seed)


def test_a_position_of_another_permutation_sampler_is_refused() -> None:
    def make(seed: int) -> Make:
        return lambda: DataLoader(Numbers(24), 2, sampler=PermutationSampler(range(24), seed))

    with pytest.raises(RefusedError, match="with seed 1, this one has 2"):
        work(make(2), range(3), 3, position_after(1, make(1)))


def test_a_position_of_another_loader_of_the_same_job_is_refused(open_session: Open) -> None:
    """Equal samples, but other random numbers for them."""
    session = open_session(num_ests=3)
    first, second = session.prepare(shuffled(), shuffled())
    with pytest.raises(RefusedError, match="number in the job 0, this one has 1"):
        second.load_state_dict(first.state_dict())


def test_a_position_from_the_other_kind_of_random_numbers_is_refused(open_session: Open) -> None:
    position = position_after(1)
    session = open_session(num_ests=3, rng="ddp")
    with pytest.raises(RefusedError, match="rng 'stepwise', this one has 'ddp'"):
        session.prepare(shuffled()).load_state_dict(position)


@pytest.mark.usefixtures("may_move")
def test_other_data_workers_are_refused_where_they_decide_numbers(open_session: Open) -> None:
    with open_session(num_ests=3, rng="ddp") as session:
        position = session.prepare(shuffled()).state_dict()
    session = open_session(num_ests=3, rng="ddp")
    with pytest.raises(RefusedError, match="num_workers 0, this one has 1"):
        session.prepare(shuffled(num_workers=1)).load_state_dict(position)


@pytest.mark.parametrize("key", sorted(position_after(0)))
def test_a_truncated_position_is_refused(open_session: Open, key: str) -> None:
    """Scenario 22."""
    position = position_after(1)
    del position[key]
    loader = open_session(num_ests=3).prepare(shuffled())
    with pytest.raises(RefusedError, match=r"not a loader's position|with"):
        loader.load_state_dict(position)


@pytest.mark.parametrize("state", [None, {}, {"version": 0}, [1, 2], {"_steps_since_snapshot": 3}], ids=str)
def test_what_is_no_position_is_refused(open_session: Open, state: Any) -> None:
    """Scenario 22."""
    loader = open_session(num_ests=3).prepare(shuffled())
    with pytest.raises(RefusedError, match="this is not a loader's position of version 1"):
        loader.load_state_dict(state)


def test_a_position_that_lacks_an_ests_stream_is_refused() -> None:
    """Scenario 9: nothing is dropped in silence."""

    def make() -> DataLoader[Any]:
        return loader_of("stream")

    _, position = work(make, (0, 1), 4, steps=2)
    with pytest.raises(RefusedError, match="virtual rank 2 is missing"):
        work(make, (2, 3), 4, position)
    _, later = work(make, (2, 3), 4, steps=1)
    position["stream"]["ranks"].update(later["stream"]["ranks"])
    with pytest.raises(RefusedError, match="virtual rank 2 is that after mini-batch 1"):
        work(make, (2, 3), 4, position)


class Forgetful(Sampler[int]):
    """Another order each time, of which nobody can be told."""

    times = 0

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        return iter(range(24)) if self.times % 2 else iter(reversed(range(24)))


class Telling(Forgetful):
    def state_dict(self) -> dict[str, Any]:
        return vars(self)  # not a copy

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


@pytest.mark.parametrize("sampler", [Forgetful, Telling])
def test_a_sampler_that_cannot_be_put_back_is_refused_and_one_that_can_goes_on(
    open_session: Open, sampler: type[Forgetful]
) -> None:
    session = open_session(num_ests=3)
    loader = session.prepare(shuffled(shuffle=False, sampler=sampler()))
    expected = []
    for epoch in range(2):
        for step in session.steps(loader):
            expected += [numbers(batch) for batch in step]
            if (epoch, len(expected)) == (1, 15):
                position = copy.deepcopy(loader.state_dict())
    session.close()
    session = open_session(num_ests=3)
    loader = session.prepare(shuffled(shuffle=False, sampler=sampler()))
    loader.load_state_dict(position)
    steps = iter(session.steps(loader))
    if sampler is Forgetful:
        with pytest.raises(RefusedError, match="Forgetful gave another order of samples for epoch 1"):
            next(steps)
    else:
        assert [numbers(batch) for step in steps for batch in step] == expected[15:]
