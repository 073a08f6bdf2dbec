"""Exceptions in a dataset: the user sees what was raised, where, and for which sample."""

from __future__ import annotations

import random
import traceback
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from consistency.loaders import Counting, Stream
from data.conftest import Numbers, Open


class Broken(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise ValueError("pixel 3 is missing")  # the user's line
        return super().__getitem__(index)


class Incomplete(Numbers):
    def __getitem__(self, index: int) -> Any:
        return {}["image"] if index == 13 else super().__getitem__(index)


class TwoPartError(Exception):
    def __init__(self, file: str, line: int) -> None:
        super().__init__(f"{file}:{line}")


class Strict(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise TwoPartError("labels.csv", 7)
        return super().__getitem__(index)


class BrokenStream(Stream):
    def __iter__(self) -> Any:
        return BrokenCounting(0, 1, self.length)


class BrokenCounting(Counting):
    def __next__(self) -> Any:
        if self.next == 13:
            raise ValueError("line 13 has no label")  # the user's line
        return super().__next__()


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("data_workers", [0, 2])
@pytest.mark.parametrize(("dataset", "raised", "message"), [
    (Broken, ValueError, "pixel 3 is missing"),
    (Incomplete, KeyError, "image"),
    (Strict, (TwoPartError, RuntimeError), "labels.csv:7"),
])  # fmt: skip
def test_an_exception_says_which_sample_it_was(
    open_session: Open, dataset: type[Numbers], raised: Any, message: str, data_workers: int
) -> None:
    session = open_session(num_ests=3)
    loader = session.prepare(DataLoader(dataset(24), batch_size=2, num_workers=data_workers))
    steps = 0
    with pytest.raises(raised) as caught:
        for step in session.steps(loader):
            list(step)
            steps += 1
    text = text_of(caught.value)
    assert steps == 2
    assert message in text
    assert f"while loading sample 13 of {dataset.__name__} (epoch 0, step 2, virtual rank 1)" in text
    assert "in __getitem__" in text
    assert "test_errors.py" in text
    if dataset is Broken:
        assert "# the user's line" in text


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("data_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_exception_of_a_stream_says_where_it_was(open_session: Open, data_workers: int) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(BrokenStream(24), batch_size=2, num_workers=data_workers))
    with pytest.raises(ValueError, match="line 13 has no label") as caught:
        for step in session.steps(loader):
            list(step)
    text = text_of(caught.value)
    assert "while reading sample 13 of the stream of BrokenStream (epoch 0, virtual rank 0)" in text
    assert "# the user's line" in text


def test_an_exception_of_collate_fn_is_the_users(open_session: Open) -> None:
    def collate(samples: list[Any]) -> Any:
        raise ValueError("shapes differ")

    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Numbers(8), batch_size=2, collate_fn=collate))
    with pytest.raises(ValueError, match="shapes differ"):
        for step in session.steps(loader):
            list(step)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_a_loader_can_be_used_again_after_an_exception(open_session: Open, how: dict[str, Any]) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Broken(16), batch_size=2, **how))
    for _ in range(2):
        seen = []
        with torch.no_grad(), pytest.raises(ValueError, match="pixel 3"):
            for batch in loader:
                seen += batch.flatten().tolist()
        assert seen == [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14]


def test_an_exception_leaves_the_scripts_random_numbers_alone(open_session: Open) -> None:
    """The leak check of every test sees it; here the dataset has drawn before it fails."""

    class Drawing(Broken):
        def __getitem__(self, index: int) -> Any:
            torch.rand(2), np.random.random(), random.random()
            return super().__getitem__(index)

    session = open_session(num_ests=1)
    loader = session.prepare(DataLoader(Drawing(16), batch_size=16))
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(ValueError, match="pixel 3"), torch.no_grad():
        next(iter(loader))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
