"""Random numbers and buffers of an EST, and what a session leaves in its process."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from easyscale import UsageError
from easyscale.train.context.rng import Seeder
from train.conftest import Open


def draws() -> tuple[float, float, float, float]:
    return (torch.rand(()).item(), torch.randn(()).item(), random.random(), float(np.random.rand()))


@pytest.mark.draws_random_numbers
def test_equal_keys_give_equal_streams_and_others_do_not() -> None:
    seeder, other = Seeder(1, torch.device("cpu")), Seeder(2, torch.device("cpu"))
    found = {}
    for key in [("est", 0, 0), ("est", 0, 1), ("est", 1, 0), ("job", 0, 0), ("est", 10, 0)]:
        seeder(*key)
        found[key] = draws()
        torch.randn(3)
        seeder(*key)
        assert draws() == found[key]
    other("est", 0, 0)
    streams = [*found.values(), draws()]
    assert len({number for stream in streams for number in stream}) == 4 * len(streams)


@pytest.mark.draws_random_numbers
def test_a_stream_uses_more_than_32_bits_of_its_key() -> None:
    seeder = Seeder(0, torch.device("cpu"))
    seeder("est", 0, 0)
    state = torch.get_rng_state()
    torch.manual_seed(torch.initial_seed() % 2**32)
    assert not torch.equal(state, torch.get_rng_state()), "the state is one that a 32-bit seed gives"


@pytest.mark.draws_random_numbers
def test_torch_takes_the_state_as_its_own() -> None:
    """A generator set by ``Seeder`` goes on like one that was seeded: the first words are fresh, none is skipped."""
    seeder = Seeder(0, torch.device("cpu"))
    seeder("x")
    first = torch.rand(2000)
    seeder("x")
    again = torch.cat([torch.rand(700), torch.rand(1300)])
    assert torch.equal(first, again)
    assert 0.45 < first.mean().item() < 0.55


def test_draws_outside_turns_do_not_disturb_training(open_session: Open) -> None:
    def run(extra: int) -> list[tuple[float, ...]]:
        session = open_session(seed=3, num_ests=2)
        found = []
        for step in session.steps(3):
            found += [draws() for _ in step]
            torch.rand(extra)
        session.close()
        return found

    assert run(0) == run(17)


def test_carried_streams_are_those_of_a_ddp_rank(open_session: Open) -> None:
    session = open_session(seed=5, num_ests=3, rng="ddp")
    found = {rank: [] for rank in range(3)}
    for step in session.steps(2):
        for rank in step:
            found[rank].append(draws())
    session.close()
    outside = torch.get_rng_state(), random.getstate(), np.random.get_state()
    for rank in range(3):
        torch.manual_seed(5 + rank)
        random.seed(5 + rank)
        np.random.seed(5 + rank)
        assert [draws(), draws()] == found[rank]
    torch.set_rng_state(outside[0])
    random.setstate(outside[1])
    np.random.set_state(outside[2])


def test_a_closed_session_leaves_the_process_as_it_was(open_session: Open) -> None:
    threads = torch.get_num_threads()
    session = open_session(num_ests=2, threads=threads + 2)
    assert torch.get_num_threads() == threads + 2
    assert torch.are_deterministic_algorithms_enabled()
    model = nn.Linear(2, 2)
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in session.steps(2):
        for _ in step:
            model(torch.ones(2)).sum().backward()
        optimizer.step()
    session.close()
    assert "step" not in vars(optimizer)
    assert not any(param._post_accumulate_grad_hooks for param in model.parameters())
    assert torch.get_num_threads() == threads
    session.close()  # a second time does nothing


class Counting(nn.Module):
    """A buffer that every forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += x
        return (self.weight * self.count).sum()


@pytest.mark.parametrize(("is_shared", "seen"), [(True, [1, 1, 2, 2]), (False, [1, 1, 2, 3])])
def test_buffers_of_an_est(open_session: Open, is_shared: bool, seen: list[int]) -> None:
    session = open_session(num_ests=2)
    model = session.prepare(Counting(), broadcast_buffers=is_shared)
    found = []
    for step in session.steps(2):
        for rank in step:
            # rank 0 adds 1 in each step; rank 1 adds 1, then 2: with buffers of its own it has seen 3, else rank 0's 1
            # + 2
            loss = model(torch.tensor([1.0 + rank * session.global_step]))
            loss.backward()
            found.append(int(model.count.item()))
        assert model.count.item() == session.global_step + 1, "outside turns the model holds virtual rank 0's buffers"
    expected = seen if not is_shared else [1, 1, 2, 3]
    assert found == expected


def test_own_buffers_changed_outside_are_refused(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model = session.prepare(Counting(), broadcast_buffers=False)
    with pytest.raises(UsageError, match="were changed outside a step"):
        for step in session.steps(2):
            for _ in step:
                model(torch.ones(1)).backward()
            model.count.zero_()


def test_a_buffer_that_grows_is_switched_too(open_session: Open) -> None:
    class Growing(Counting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = torch.cat([self.count, x])
            return (self.weight * self.count).sum()

    session = open_session(num_ests=3)
    model = session.prepare(Growing())
    for step in session.steps(2):
        for rank in step:
            model(torch.full((1,), float(rank + 1))).backward()
    assert model.count.tolist() == [0.0, 1.0, 1.0]
