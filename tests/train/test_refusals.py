"""What cannot be proved equal is refused with one sentence, before anything trains."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from easyscale import RefusedError, UsageError
from train.conftest import Numbers, Open


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


def sparse_embedding() -> nn.Module:
    return nn.Embedding(4, 2, sparse=True)


def complex_module() -> nn.Module:
    module = nn.Module()
    module.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    return module


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Sequential(nn.Linear(1, 1), nn.SyncBatchNorm(1)), r"1 is a SyncBatchNorm.*use BatchNorm"),
        (sparse_embedding, r"sparse=True.*use sparse=False"),
        (complex_module, r"parameter weight is complex"),
        (lambda: nn.LazyLinear(3), r"run one forward before session.prepare"),
        (lambda: nn.DataParallel(nn.Linear(1, 1)), r"already wrapped in DataParallel.*model\.module"),
        (lambda: object(), r"session\.prepare got object: it takes modules.*session\.register"),
        (lambda: torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), r"SGD holds 2 parameter\(s\) of no prepared"),
    ],
)
@pytest.mark.draws_random_numbers
def test_prepare_refuses(open_session: Open, make: Any, says: str) -> None:
    session = open_session()
    with pytest.raises(RefusedError, match=says):
        session.prepare(make())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"num_ests": 0}, "at least 1 EST"),
        ({"threads": 0}, "at least 1 thread"),
        ({"seed": -1}, "seed is -1"),
        ({"rng": "fast"}, "rng is 'fast': choose one of 'stepwise', 'ddp'"),
        ({"reduction": "nccl"}, "reduction is 'nccl'"),
        ({"determinism": "D1+D2"}, "D2 .* is not available"),
        ({"determinism": "D9"}, "determinism is 'D9'"),
    ],
)
def test_session_refuses(open_session: Open, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        open_session(**arguments)


def test_a_second_session_is_refused(open_session: Open) -> None:
    open_session()
    with pytest.raises(UsageError, match="open in this process already"):
        open_session()


def test_a_loader_never_prepared_is_refused(open_session: Open) -> None:
    session = open_session()
    with pytest.raises(RefusedError, match="DataLoader, which was never prepared"):
        session.steps(DataLoader(Numbers(4)))


@pytest.mark.draws_random_numbers
def test_an_object_is_prepared_once(open_session: Open) -> None:
    session = open_session()
    model = session.prepare(nn.Linear(1, 1))
    with pytest.raises(RefusedError, match="Linear was prepared before"):
        session.prepare(model)


@pytest.mark.draws_random_numbers
def test_an_update_in_the_inner_body_is_refused(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model = nn.Linear(1, 1)
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(UsageError, match=r"SGD\.step\(\) was called in the inner loop"):
        for step in session.steps(1):
            for _ in step:
                model(torch.ones(1)).sum().backward()
                optimizer.step()


@pytest.mark.draws_random_numbers
def test_a_parameter_changed_in_the_inner_body_is_refused(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model = session.prepare(nn.Linear(1, 1))
    with pytest.raises(UsageError, match=r"parameter weight was changed in the turn of virtual rank"):
        for step in session.steps(1):
            for _ in step:
                model(torch.ones(1)).sum().backward()
                with torch.no_grad():
                    model.weight.clamp_(-0.1, 0.1)


@pytest.mark.draws_random_numbers
def test_a_parameter_changed_in_an_early_turn_is_refused_in_the_drop_in_form(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model, loader = session.prepare(nn.Linear(1, 1), DataLoader(Numbers(8), batch_size=2))
    with pytest.raises(UsageError, match=r"changed in the turn of virtual rank 0.*session\.sync_gradients"):
        for x in loader:
            model(x).sum().backward()
            with torch.no_grad():
                model.weight.clamp_(-0.1, 0.1)


@pytest.mark.parametrize("num_ests", [1, 2])
@pytest.mark.draws_random_numbers
def test_two_backwards_are_refused_in_the_drop_in_form(open_session: Open, num_ests: int) -> None:
    session = open_session(num_ests=num_ests)
    model, loader = session.prepare(nn.Linear(1, 1), DataLoader(Numbers(8), batch_size=2))
    with pytest.raises(UsageError, match=r"(?s)second time for one mini-batch.*for step in session\.steps\(loader\)"):
        for x in loader:
            model(x).sum().backward()
            model(x).sum().backward()


@pytest.mark.draws_random_numbers
def test_counting_mini_batches_is_refused_in_the_drop_in_form(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = session.prepare(model, optimizer, DataLoader(Numbers(8), batch_size=2))
    with pytest.raises(UsageError, match=r"every mini-batch of a global step must make the same calls.*accumulate=k"):
        for number, x in enumerate(loader):
            model(x).sum().backward()
            if number % 2:
                optimizer.step()


@pytest.mark.draws_random_numbers
def test_an_inner_loop_left_early_is_refused(open_session: Open) -> None:
    session = open_session(num_ests=3)
    model = session.prepare(nn.Linear(1, 1))
    with pytest.raises(UsageError, match=r"global step 0 was left in the turn of virtual rank 1"):
        for step in session.steps(2):
            for rank in step:
                model(torch.ones(1)).sum().backward()
                if rank == 1:
                    break


@pytest.mark.draws_random_numbers
def test_a_flat_loop_left_in_mid_step_is_refused_at_the_next_use(open_session: Open) -> None:
    session = open_session(num_ests=3)
    model, loader = session.prepare(nn.Linear(1, 1), DataLoader(Numbers(12), batch_size=2))
    for number, x in enumerate(loader):
        model(x).sum().backward()
        if number == 1:
            break
    with pytest.raises(UsageError, match=r"left in the turn of virtual rank 1, in the middle of global step 0"):
        session.digest()


@pytest.mark.draws_random_numbers
def test_a_frozen_parameter_that_gets_a_gradient_is_refused(open_session: Open) -> None:
    session = open_session()
    model = nn.Linear(1, 1)
    model.bias.requires_grad_(False)
    model = session.prepare(model)
    model.bias.requires_grad_(True)
    with pytest.raises(UsageError, match=r"parameter bias did not require gradients when"):
        for step in session.steps(1):
            for _ in step:
                model(torch.ones(1)).sum().backward()


@pytest.mark.draws_random_numbers
def test_a_ring_refuses_a_parameter_that_turns_unused(open_session: Open) -> None:
    session = open_session(num_ests=2, rng="ddp", reduction="ring")
    model = session.prepare(nn.Linear(1, 1))
    with pytest.raises(RefusedError, match=r"parameter bias unused after a first step.*find_unused_parameters=True"):
        for step in session.steps(2):
            for _ in step:
                bias = None if session.global_step else model.bias
                nn.functional.linear(torch.ones(1), model.weight, bias).sum().backward()


@pytest.mark.draws_random_numbers
def test_a_floating_point_sum_without_ranks_is_refused(open_session: Open) -> None:
    session = open_session(num_ests=2)
    with pytest.raises(UsageError, match="depends on the placement"):
        session.sum(0.5)
    assert session.sum({0: 0.5, 1: 0.25}) == 0.75
    assert session.sum(3) == 3
    assert session.sum(torch.tensor([True, False])).tolist() == [1, 0]


def test_register_takes_state_and_refuses_other_things(open_session: Open) -> None:
    session = open_session()
    state = {"best": 1}
    assert session.register("best", state) is state
    with pytest.raises(RefusedError, match="'best' is registered already"):
        session.register("best", {})
    with pytest.raises(RefusedError, match="got list: it takes a dict"):
        session.register("other", [])


@pytest.mark.parametrize("value", ["high", torch.zeros(2)])
def test_log_refuses_what_is_no_number(open_session: Open, value: Any) -> None:
    session = open_session()
    with pytest.raises(UsageError, match=r"session\.log\(loss="):
        session.log(loss=value)


@pytest.mark.draws_random_numbers
def test_a_parameter_of_two_models_is_refused(open_session: Open) -> None:
    session = open_session()
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    second.weight = first.weight
    session.prepare(first)
    with pytest.raises(RefusedError, match=r"parameter weight belongs to two prepared models.*ModuleList"):
        session.prepare(second)


@pytest.mark.draws_random_numbers
def test_a_parameter_that_came_later_is_refused(open_session: Open) -> None:
    session = open_session()
    model = nn.Sequential(nn.Linear(1, 1))
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.append(nn.Linear(1, 1))
    optimizer.add_param_group({"params": list(model[1].parameters())})
    with pytest.raises(RefusedError, match=r"build the whole model before session\.prepare|of no prepared model"):
        for step in session.steps(1):
            for _ in step:
                model(torch.ones(1)).sum().backward()
            optimizer.step()


@pytest.mark.draws_random_numbers
def test_an_update_outside_every_step_is_refused(open_session: Open) -> None:
    session = open_session()
    model = nn.Linear(1, 1)
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.step()  # without gradients it does nothing, so it may
    model(torch.ones(1)).sum().backward()
    with pytest.raises(UsageError, match="outside every global step"):
        optimizer.step()


@pytest.mark.draws_random_numbers
def test_a_backward_after_the_turns_is_refused(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model = nn.Linear(1, 1)
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(UsageError, match=r"no EST ran a backward in its turn of global step 0"):
        for step in session.steps(1):
            for _ in list(step):
                model(torch.ones(1)).sum().backward()
            optimizer.step()


class InitialisesItself(nn.Module):
    """Sets its parameter from the first mini-batch, in a way that version counters do not see."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))
        self.is_ready = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_ready:
            self.shift.data.copy_(x.mean().reshape(1))
            self.is_ready = True
        return x - self.shift


def test_initialisation_by_the_first_mini_batch_is_refused(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model = session.prepare(InitialisesItself())
    with pytest.raises(UsageError, match="parameter shift was changed in the turn of virtual rank 1"):
        for step in session.steps(1):
            for rank in step:
                model(torch.full((2,), float(rank + 1))).sum().backward()


@pytest.mark.draws_random_numbers
def test_evaluation_in_training_mode_is_refused(open_session: Open) -> None:
    session = open_session()
    model, loader = session.prepare(nn.BatchNorm1d(1), DataLoader(Numbers(8), batch_size=2))
    with torch.no_grad():
        with pytest.raises(UsageError, match=r"call model\.eval\(\) to evaluate"):
            iter(loader)
        model.eval()
        assert len(list(loader)) == 4


@pytest.mark.draws_random_numbers
def test_a_scheduler_never_prepared_is_refused_in_the_drop_in_form(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = session.prepare(model, optimizer, DataLoader(Numbers(8), batch_size=2))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with pytest.raises(UsageError, match=r"give the LR scheduler to session\.prepare"):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
            optimizer._opt_called = True  # torch warns of a scheduler that steps first, which it does in an early turn
            scheduler.step()


@pytest.mark.draws_random_numbers
def test_a_gradient_hook_of_the_scripts_own_is_refused_in_the_drop_in_form(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model, loader = session.prepare(nn.Linear(1, 1), DataLoader(Numbers(8), batch_size=2))
    handle = model.weight.register_post_accumulate_grad_hook(lambda param: None)
    with pytest.raises(UsageError, match="register_post_accumulate_grad_hook"):
        next(iter(loader))
    handle.remove()


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("broken")


@pytest.mark.draws_random_numbers
def test_a_caught_error_in_backward_is_refused_in_the_drop_in_form(open_session: Open) -> None:
    session = open_session(num_ests=2)
    body, head = nn.Linear(1, 1), nn.Linear(1, 1)
    body, head, loader = session.prepare(body, head, DataLoader(Numbers(8), batch_size=2))
    with pytest.raises(UsageError, match="a backward broke off"):
        for x in loader:
            with suppress(ArithmeticError):
                head(Breaks.apply(body(x))).sum().backward()


@pytest.mark.draws_random_numbers
def test_a_mini_batch_without_backward_is_refused_in_the_drop_in_form(open_session: Open) -> None:
    session = open_session(num_ests=2)
    model, loader = session.prepare(nn.Linear(1, 1), DataLoader(Numbers(8), batch_size=2))
    with pytest.raises(UsageError, match=r"virtual rank 1 ran no backward in global step 0, but other ESTs did"):
        for x in loader:
            if session.virtual_rank == 0:
                model(x).sum().backward()
