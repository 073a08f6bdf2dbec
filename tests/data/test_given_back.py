"""What loaders take of the system is given back: processes, file descriptors, shared memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from consistency.loaders import Noisy, Stream, sample
from data.conftest import Numbers, Open

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Where(Numbers):
    """Samples tell the process that loaded them."""

    def __getitem__(self, index: int) -> Any:
        if index == 77:
            raise ValueError("sample 77")
        return torch.full((200,), os.getpid())  # large enough for shared memory


class WhereStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        for index in range(self.length):
            sample(index)
            yield torch.full((200,), os.getpid())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "persistent", "rng"),
    [(k, p, r) for k in ("map-style", "stream") for p in (False, True) for r in ("stepwise", "ddp")][:-1],  # refused
)
def test_descriptors_shared_memory_and_processes_are_given_back(
    open_session: Open, kind: str, persistent: bool, rng: str
) -> None:
    """Over several epochs, evaluations, a loop left in the middle and exceptions."""

    def make(length: int) -> DataLoader[Any]:
        data = Where(length) if kind == "map-style" else WhereStream(length)
        return DataLoader(data, 4, num_workers=2, persistent_workers=persistent)

    threads = set(threading.enumerate())
    pids: set[int] = set()
    descriptors = []
    for _ in range(3):
        with open_session(num_ests=2, rng=rng) as session:
            loader, left, broken = session.prepare(make(32), make(32), make(80))
            for _ in range(2):
                for step in session.steps(loader):
                    pids |= {int(batch[0, 0]) for batch in step}
            with torch.no_grad():
                pids |= {int(batch[0, 0]) for batch in loader}
            for step in session.steps(left):
                pids |= {int(batch[0, 0]) for batch in step}
                break
            if kind == "map-style":
                with pytest.raises(ValueError, match="sample 77"):
                    pids |= {int(batch[0, 0]) for step in session.steps(broken) for batch in step}
        gc.collect()
        assert not multiprocessing.active_children()
        for thread in set(threading.enumerate()) - threads:
            thread.join(5)  # those of queues close their pipes and end by themselves
        descriptors.append(open_descriptors())
    assert len(pids) >= 6
    assert os.getpid() not in pids
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not [name for name in os.listdir("/dev/shm") if any(f"_{pid}_" in name for pid in pids)]  # noqa: PTH208
    assert descriptors[2] == descriptors[1], "the first session of a process may open some for good"


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_data_workers_end_with_the_session_though_an_exception_holds_the_loop(open_session: Open) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Noisy(), 2, num_workers=2))
    steps = iter(session.steps(loader))  # held, as by the traceback of an exception in the loop's body
    list(next(steps))
    assert len(multiprocessing.active_children()) == 2
    session.close()
    assert not multiprocessing.active_children()
    del steps
