"""Sessions in the test process, and what loaders leave in it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import tqdm
from torch.utils.data._utils import signal_handling

from easyscale.train import runtime
from easyscale.train.data import deaths
from train.conftest import Numbers, Open, open_session

tqdm.tqdm.monitor_interval = 0  # else the first bar of a process starts a thread that stays

__all__ = ["Numbers", "Open", "open_session"]


@pytest.fixture(autouse=True)
def torchs_child_handler() -> Iterator[None]:
    """PyTorch sets a handler of SIGCHLD once in a process: let it do so in each test, and take it back."""
    before = signal.getsignal(signal.SIGCHLD)
    signal_handling._SIGCHLD_handler_set = False
    yield
    after = signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, before)
    assert after is not deaths._on_child, "the session left its own handler of SIGCHLD"


@pytest.fixture
def may_move() -> Iterator[None]:
    """This process works for a job whose ESTs may come to other workers."""
    runtime.install(runtime.WorkerContext(may_move=True))
    yield
    runtime.install(None)


def numbers(batch: Any) -> list[int]:
    """What ``Numbers`` gave."""
    return [int(number) for number in batch.flatten().tolist()]
