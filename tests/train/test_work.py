"""What counts as an EST's work, by which a plan judges how fast a worker is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from easyscale.train.runtime import NullObserver
from train.conftest import Numbers, Open

pytestmark = pytest.mark.draws_random_numbers


class Stopwatch(NullObserver):
    """Whether work is being timed, and how often it was."""

    def __init__(self) -> None:
        self.runs = False
        self.pieces = 0

    def begin_work(self) -> None:
        self.runs = True

    def end_work(self) -> None:
        self.pieces += self.runs
        self.runs = False


def watched(session: Any) -> Stopwatch:
    stopwatch = session._turns.observer = Stopwatch()
    return stopwatch


def test_in_the_drop_in_form_a_turns_work_ends_with_its_backward(open_session: Open) -> None:
    session = open_session(num_ests=3)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = session.prepare(model, optimizer, DataLoader(Numbers(12), batch_size=2))
    stopwatch = watched(session)
    seen = []
    for batch in loader:
        seen.append(stopwatch.runs)
        model(batch).sum().backward()
        seen.append(stopwatch.runs)
        optimizer.step()
        optimizer.zero_grad()
    assert seen == 6 * [True, False]
    assert stopwatch.pieces == 6


def test_in_the_two_loop_form_it_ends_with_the_inner_body(open_session: Open) -> None:
    session = open_session(num_ests=3)
    model, loader = session.prepare(nn.Linear(1, 1), DataLoader(Numbers(12), batch_size=2))
    stopwatch = watched(session)
    for number, step in enumerate(session.steps(loader), start=1):
        for batch in step:
            model(batch).sum().backward()
            assert stopwatch.runs
        assert not stopwatch.runs
        assert stopwatch.pieces == 3 * number
