"""What a script sees of its session when it is run with plain ``python``."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import easyscale
from easyscale.train.session import current_session
from train.conftest import Numbers, Open

pytestmark = pytest.mark.draws_random_numbers


def test_facts(open_session: Open) -> None:
    session = open_session(num_ests=3)
    assert current_session() is session
    assert (session.num_ests, session.virtual_rank, session.is_main, session.bytes_sent) == (3, 0, True, 0)
    assert (session.global_step, session.epoch, session.device) == (0, 0, torch.device("cpu"))
    assert session.sync_gradients
    seen = []
    for _ in session.epochs(2):
        for step in session.steps(2):
            seen += [(session.epoch, session.global_step, session.virtual_rank) for _ in step]
            assert not session.is_in_turn
    assert seen == [(epoch, 2 * epoch + step, rank) for epoch in range(2) for step in range(2) for rank in range(3)]


def test_sync_gradients_says_when_the_drop_in_form_updates(open_session: Open) -> None:
    session = open_session(num_ests=3)
    _, loader = session.prepare(nn.Linear(1, 1), DataLoader(Numbers(12), batch_size=2))
    assert [session.sync_gradients for _ in loader] == 2 * [False, False, True]


def test_accumulate_gives_k_mini_batches_to_each_est(open_session: Open) -> None:
    session = open_session(num_ests=2)
    _, loader = session.prepare(nn.Linear(1, 1), DataLoader(Numbers(20), batch_size=2))
    seen = [
        [(session.virtual_rank, b.flatten().tolist()) for b in step] for step in session.steps(loader, accumulate=2)
    ]
    assert seen[0] == [(0, [0, 2]), (0, [4, 6]), (1, [1, 3]), (1, [5, 7])]
    assert [len(step) for step in seen] == [4, 4, 2]


def test_gradients_are_the_average_over_ests(open_session: Open) -> None:
    session = open_session(num_ests=3)
    model = session.prepare(nn.Linear(1, 1))
    for step in session.steps(1):
        for rank in step:
            (model(torch.tensor([1.0 + rank])) / 1.0).sum().backward()
    assert model.weight.grad.item() == 2.0
    assert model.bias.grad.item() == 1.0


def test_prepare_keeps_types_names_and_state(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    prepared = session.prepare(model, optimizer, scheduler)
    assert prepared == (model, optimizer, scheduler)
    assert list(model.state_dict()) == ["weight", "bias"]
    assert type(optimizer) is torch.optim.AdamW
    copy.deepcopy(model)


def test_a_step_scheduler_moves_once_for_each_global_step_in_the_drop_in_form(open_session: Open) -> None:
    session = open_session(num_ests=4)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    model, optimizer, scheduler, loader = session.prepare(
        model, optimizer, scheduler, DataLoader(Numbers(24), batch_size=2)
    )
    rates = []
    for x in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.125]


def test_digest_sees_parameters_buffers_and_optimizer_state(open_session: Open) -> None:
    session = open_session()
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model, optimizer = session.prepare(model, torch.optim.Adam(model.parameters()))
    digests = {session.digest()}
    with torch.no_grad():
        model[0].bias[0] += 1
    digests.add(session.digest())
    model[1].running_mean[1] = torch.nextafter(torch.tensor(0.0), torch.tensor(1.0))
    digests.add(session.digest())
    optimizer.param_groups[0]["lr"] = 0.5
    digests.add(session.digest())
    optimizer.state[model[0].bias]["exp_avg"] = torch.zeros(2)
    digests.add(session.digest())
    assert len(digests) == 5
    assert session.digest() in digests


def test_a_with_block_closes_the_session() -> None:
    with easyscale.session(device="cpu") as session:
        assert current_session() is session
    assert current_session() is None


def test_an_outer_loop_may_be_left(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model = session.prepare(nn.Linear(1, 1))
    for step in session.steps(10):
        for _ in step:
            model(torch.ones(1)).sum().backward()
        if session.global_step == 3:
            break
    assert session.global_step == 4
    session.finish()


def test_a_flat_loop_may_be_left_after_an_update_or_before_a_step(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = session.prepare(model, optimizer, DataLoader(Numbers(24), batch_size=2))
    for stop_after in (True, False):
        for x in loader:
            if not stop_after and session.global_step == 2:
                break
            model(x).sum().backward()
            optimizer.step()
            if stop_after and session.sync_gradients:
                break
    assert session.global_step == 2
    session.finish()


def test_a_prepared_scheduler_is_saved_copied_and_loaded_as_its_own_kind(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = session.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1))
    assert isinstance(scheduler, torch.optim.lr_scheduler.StepLR)
    assert "step" not in scheduler.state_dict()
    file = io.BytesIO()
    torch.save(scheduler.state_dict(), file)
    assert type(copy.deepcopy(scheduler)) is torch.optim.lr_scheduler.StepLR
    session.close()
    assert type(scheduler) is torch.optim.lr_scheduler.StepLR


def test_a_scheduler_may_be_built_after_prepare(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model = nn.Linear(1, 1)
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    scheduler = session.prepare(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
    for step in session.steps(2):
        for _ in step:
            model(torch.ones(1)).sum().backward()
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
