"""Data workers that are killed are replaced without a trace in the values, or end the job; nothing hangs or is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from consistency.loaders import Counting, Noisy, Stream, bits, collate
from data.conftest import Numbers, Open
from easyscale.core.errors import DataError

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # a death may be raised in a finalizer, where Python only prints it; it is noticed again a moment later
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # PyTorch looks whether it has too many files open by opening some, which it leaves to their finalizers
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]
KILLED = r"a data worker \(pid \d+\) was ended by SIGKILL"


def die_once(marker: Path) -> None:
    """End this data worker with SIGKILL, if none has been yet."""
    if get_worker_info() is not None and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Killed(Noisy):
    def __init__(self, marker: Path, at: int) -> None:
        super().__init__()
        self.marker, self.at = marker, at

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            die_once(self.marker)
        return super().__getitem__(index)


class KilledStream(Stream):
    def __init__(self, marker: Path, at: int) -> None:
        super().__init__()
        self.marker, self.at = marker, at

    def __iter__(self) -> Any:
        return KilledCounting(self.marker, self.at, self.length)


class KilledCounting(Counting):
    def __init__(self, marker: Path, at: int, length: int) -> None:
        super().__init__(0, 1, length)
        self.marker, self.at = marker, at

    def __next__(self) -> Any:
        # no get_worker_info here: it says that there are no data workers while a stream is read
        is_data_worker = multiprocessing.parent_process() is not None
        if self.next == self.at and is_data_worker and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__next__()


class Fatal(Numbers):
    """Ends every data worker that loads sample 7."""

    def __getitem__(self, index: int) -> Any:
        if index == 7 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def values(session: Any, loader: Any, epochs: int = 2) -> list[Any]:
    return [[bits(batch) for batch in step] for _ in session.epochs(epochs) for step in session.steps(loader)]


def expected(open_session: Open, loader: DataLoader[Any]) -> list[Any]:
    with open_session(num_ests=3) as session:
        return values(session, session.prepare(loader))


@pytest.mark.parametrize(
    ("at", "persistent"),
    [(0, False), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((22, False), (0, True)))],
)
def test_a_killed_data_worker_is_replaced_and_the_values_stay(
    open_session: Open, tmp_path: Path, at: int, persistent: bool
) -> None:
    plain = expected(open_session, DataLoader(Noisy(), 3, shuffle=True, collate_fn=collate))
    session = open_session(num_ests=3)
    killed = Killed(tmp_path / "killed", at)
    how = {"num_workers": 2, "persistent_workers": persistent}
    loader = session.prepare(DataLoader(killed, 3, shuffle=True, collate_fn=collate, **how))
    with pytest.warns(RuntimeWarning, match=KILLED + r"(.|\n)*with the same values, by new data workers \(2 more"):
        assert values(session, loader) == plain


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("at", [0, 17])
def test_a_killed_data_worker_of_a_stream_is_replaced_and_the_values_stay(
    open_session: Open, tmp_path: Path, at: int, persistent: bool
) -> None:
    plain = expected(open_session, DataLoader(Stream(), 2, collate_fn=collate))
    session = open_session(num_ests=3)
    stream = KilledStream(tmp_path / "killed", at)
    how = {"num_workers": 2, "persistent_workers": persistent}
    loader = session.prepare(DataLoader(stream, 2, collate_fn=collate, **how))
    with pytest.warns(RuntimeWarning, match=KILLED):
        assert values(session, loader) == plain


def test_the_job_ends_where_no_data_worker_may_be_replaced(open_session: Open, tmp_path: Path) -> None:
    session = open_session(num_ests=2)
    killed = Killed(tmp_path / "killed", 5)
    loader = session.prepare(DataLoader(killed, 3, num_workers=2), replace_data_workers=0)
    with pytest.raises(DataError, match=KILLED + r"(.|\n)*replace_data_workers=N"):
        values(session, loader)


@pytest.mark.slow
def test_a_killed_data_worker_ends_the_job_where_it_holds_random_streams(open_session: Open, tmp_path: Path) -> None:
    session = open_session(num_ests=2, rng="ddp")
    loader = session.prepare(DataLoader(Killed(tmp_path / "killed", 5), 3, num_workers=1))
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        values(session, loader)


@pytest.mark.slow
def test_a_dataset_that_kills_every_data_worker_ends_the_job(open_session: Open) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Fatal(24), 2, num_workers=1), replace_data_workers=2)
    with (
        pytest.warns(RuntimeWarning) as warnings,
        pytest.raises(DataError, match=r"num_workers=0 shows where"),
    ):
        values(session, loader)
    assert ["(1 more" in str(w.message) for w in warnings] == [True, False]


def kill_one_and_wait() -> None:
    """SIGKILL a data worker; when this returns it has ended, and the signal that says so has been delivered."""
    child = multiprocessing.active_children()[0]
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_a_death_while_the_scripts_own_code_runs_does_not_raise_there(open_session: Open) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Noisy(40), 2, num_workers=2))

    def script() -> int:
        for number, step in enumerate(session.steps(loader)):
            for turn, _ in enumerate(step):
                if (number, turn) == (2, 0):
                    kill_one_and_wait()
                    total = 0
                    for count in range(10_000):  # an exception of a signal handler would be raised in here
                        total += count
                    assert total == 49_995_000
        return session.global_step

    with pytest.warns(RuntimeWarning, match=KILLED):
        assert script() == 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map-style", "stream"])
def test_a_data_worker_that_dies_between_epochs_is_replaced(open_session: Open, kind: str) -> None:
    def make(**how: Any) -> DataLoader[Any]:
        return DataLoader(Noisy() if kind == "map-style" else Stream(), 3, collate_fn=collate, **how)

    plain = expected(open_session, make())
    session = open_session(num_ests=3)
    loader = session.prepare(make(num_workers=2, persistent_workers=True))

    def script() -> list[Any]:
        found = []
        for epoch in session.epochs(2):
            found += [[bits(batch) for batch in step] for step in session.steps(loader)]
            if epoch == 0:
                kill_one_and_wait()
        return found

    with pytest.warns(RuntimeWarning, match=KILLED):
        assert script() == plain


@pytest.mark.slow
def test_a_data_worker_that_dies_in_an_evaluation_is_replaced(open_session: Open, tmp_path: Path) -> None:
    session = open_session(num_ests=2)
    plain, killed = session.prepare(
        DataLoader(Noisy(), 3), DataLoader(Killed(tmp_path / "killed", 9), 3, num_workers=1)
    )
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match=KILLED):
            found = [batch[:, 0].tolist() for batch in killed]
        assert found == [batch[:, 0].tolist() for batch in plain]


STUCK = """
import os, sys, time
from easyscale.train.data import forking

marker = sys.argv[1]

def stay():  # in place of a lock that a thread held when the process was forked
    if not os.path.exists(marker):
        open(marker, "w").close()
        time.sleep(1000)

os.register_at_fork(after_in_child=stay)
forking.BEGIN_S = 0.3

import easyscale
from consistency.loaders import bits, loader_of

kind, rng, number = sys.argv[2:]
session = easyscale.session(num_ests=2, rng=rng, device="cpu")
loader = session.prepare(loader_of(kind, 2))
for _ in session.epochs(2):
    print(*[bits(batch) for step in session.steps(loader) for batch in step])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rng"), [("shuffled", "stepwise"), ("stream", "stepwise"), ("shuffled", "ddp")])
def test_a_data_worker_that_was_caught_when_it_was_forked_is_forked_again(tmp_path: Path, kind: str, rng: str) -> None:
    def run(number: int) -> str:
        marker = tmp_path / "forked"
        command = [sys.executable, "-W", "ignore", "-c", STUCK, str(marker), kind, rng, str(number)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=50).stdout

    caught = run(1)
    assert caught.count("\n") == 2
    assert run(2) == caught
