"""Generators of the dataset's own are set for every sample, like the process's."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from train.conftest import Numbers, Open


class Transform:
    def __init__(self) -> None:
        self.rng = random.Random(3)
        self.generator = torch.Generator()

    def __call__(self, number: float) -> float:
        return number + self.rng.random() + torch.rand((), generator=self.generator, dtype=torch.float64).item()


class OwnGenerators(Numbers):
    """Draws in NumPy's recommended style, in a transform's, and from the process's torch, which it puts back."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.rng = np.random.default_rng(1)
        self.old = np.random.RandomState(2)
        self.transforms = [functools.partial(Transform())]

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            hidden = torch.rand(()).item()
        number = self.transforms[0](self.rng.random()) + self.old.standard_normal()
        return torch.tensor([index, number, hidden], dtype=torch.float64)


def values(open_session: Open, **how: Any) -> list[list[list[float]]]:
    session = open_session(num_ests=2, seed=3)
    loader = session.prepare(DataLoader(OwnGenerators(24), batch_size=2, shuffle=True, **how))
    found = [batch.tolist() for _ in session.epochs(2) for step in session.steps(loader) for batch in step]
    session.close()
    return found


def test_every_sample_of_every_epoch_has_numbers_of_its_own(open_session: Open) -> None:
    found = values(open_session)
    assert len({sample[1] for batch in found for sample in batch}) == 48


def test_a_generator_shared_with_the_script_is_where_it_was(open_session: Open) -> None:
    shared = np.random.default_rng(5)
    data = OwnGenerators(8)
    data.rng = shared
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(data, batch_size=2))
    before = shared.bit_generator.state
    for step in session.steps(loader):
        list(step)
    assert shared.bit_generator.state == before


@pytest.mark.slow
@pytest.mark.usefixtures("torchs_child_handler")
def test_values_do_not_depend_on_data_workers(open_session: Open) -> None:
    expected = values(open_session)
    assert values(open_session, num_workers=1) == expected
    assert values(open_session, num_workers=2, persistent_workers=True) == expected
