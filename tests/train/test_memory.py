"""How many gradient copies a worker holds: ``floor(log2 k) + 1`` for k consecutive ESTs, however many there are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from train.conftest import Open


@pytest.mark.parametrize("num_ests", [1, 2, 3, 4, 5, 7, 8, 13, 16])
@pytest.mark.draws_random_numbers
def test_gradient_copies(open_session: Open, num_ests: int) -> None:
    session = open_session(num_ests=num_ests)
    model = session.prepare(nn.Linear(3, 3))
    for step in session.steps(2):
        for _ in step:
            model(torch.ones(3)).sum().backward()
    assert session.most_gradient_copies == math.floor(math.log2(num_ests)) + 1
