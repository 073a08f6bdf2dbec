"""Sessions in the test process itself: one worker, no group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import easyscale
from easyscale.train.session import current_session

Open = Callable[..., easyscale.Session]


@pytest.fixture
def open_session() -> Iterator[Open]:
    """``easyscale.session`` that is closed when the test is over."""

    def open_one(**arguments: Any) -> easyscale.Session:
        return easyscale.session(device="cpu", **arguments)

    yield open_one
    session = current_session()
    if session is not None:
        session.close()


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Sample i is the number i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])
