"""Random numbers in datasets: by sample and by mini-batch, whoever loads them; the script's own are left alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from consistency.loaders import LOADERS, Noisy, bits, collate, drawn, loader_of
from data.conftest import Numbers, Open

Values = list[list[Any]]


def values(open_session: Open, loader: DataLoader[Any], *, num_ests: int = 3, epochs: int = 2) -> Values:
    with open_session(num_ests=num_ests) as session:
        loader = session.prepare(loader)
        return [[bits(batch) for batch in step] for _ in session.epochs(epochs) for step in session.steps(loader)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("kind", LOADERS)
def test_data_workers_give_the_values_of_none(open_session: Open, kind: str) -> None:
    how: dict[str, Any] = {"num_workers": 2} if kind in ("shuffled", "stream") else {}
    expected = values(open_session, loader_of(kind))
    assert len({value for step in expected for value in step}) == sum(map(len, expected))
    assert values(open_session, loader_of(kind, **how)) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("kind", ["shuffled", "stream"])
def test_data_workers_started_anew_give_the_values_of_none(open_session: Open, kind: str, context: str) -> None:
    expected = values(open_session, loader_of(kind))
    anew = loader_of(kind, 1, multiprocessing_context=context, persistent=True)
    assert values(open_session, anew) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_prefetching_more_changes_nothing(open_session: Open) -> None:
    for kind in ("shuffled", "weighted_generator", "stream"):
        expected = values(open_session, loader_of(kind))
        for persistent in (False, True):
            loader = loader_of(kind, 3, prefetch_factor=5, persistent=persistent)
            assert values(open_session, loader) == expected


def test_no_two_samples_and_no_two_epochs_share_random_numbers(open_session: Open) -> None:
    """Scenario 26: every number of every generator is another one, over samples, ESTs and epochs."""
    session = open_session(num_ests=4)
    loader = session.prepare(DataLoader(Noisy(24), batch_size=2, shuffle=True, collate_fn=collate))
    rows = [
        row
        for _ in session.epochs(3)
        for step in session.steps(loader)
        for batch in step
        for row in [*batch["samples"][:, 1:].tolist(), batch["batch"].tolist()]
    ]
    assert len(rows) == 3 * (24 + 12)
    for column in zip(*rows, strict=True):
        assert len(set(column)) == len(rows)


def test_two_loaders_of_a_job_draw_other_numbers(open_session: Open) -> None:
    session = open_session(num_ests=2)
    one, other = session.prepare(loader_of("in_order"), loader_of("in_order"))
    assert [bits(b) for step in session.steps(one) for b in step] != [
        bits(b) for step in session.steps(other) for b in step
    ]


def test_a_sample_does_not_depend_on_the_size_of_its_mini_batch(open_session: Open) -> None:
    def samples(batch_size: int) -> list[list[float]]:
        with open_session(num_ests=2) as session:
            loader = session.prepare(DataLoader(Noisy(24), batch_size=batch_size))
            return sorted(row for step in session.steps(loader) for batch in step for row in batch.tolist())

    assert samples(2) == samples(3) == samples(12)


class Late(Numbers):
    """Draws from a generator only after some mini-batches, when it is no longer looked at closely."""

    def __getitem__(self, index: int) -> Any:
        noise = [random.random()]
        if index >= 70:
            noise += [float(np.random.standard_normal()), torch.rand(()).item()]
        return torch.tensor([index, *noise, *[0.0] * (3 - len(noise))], dtype=torch.float64)


def test_a_generator_first_drawn_from_late_is_set_as_well(open_session: Open) -> None:
    """The values are those of a loader that begins there, and has looked at nothing yet."""

    def rows(loader: Any, session: Any) -> Any:
        return [[row for batch in step for row in batch.tolist()] for step in session.steps(loader)]

    with open_session(num_ests=2) as session:
        loader = session.prepare(DataLoader(Late(120), batch_size=2))
        expected = rows(loader, session)
    with open_session(num_ests=2) as session:
        loader = session.prepare(DataLoader(Late(120), batch_size=2))
        for step in session.steps(loader):
            list(step)
            if session.global_step == 17:
                position = loader.state_dict()
                break
    with open_session(num_ests=2) as session:
        loader = session.prepare(DataLoader(Late(120), batch_size=2))
        loader.load_state_dict(position)
        assert rows(loader, session) == expected[18:]
    for column in (2, 3):
        drawn_late = [row[column] for step in expected for row in step if row[0] >= 70]
        assert len(set(drawn_late)) == len(drawn_late) == 50


@pytest.mark.parametrize("kind", ["shuffled", "bulk", "stream", "shards"])
def test_the_script_draws_the_same_numbers_whatever_is_loaded(open_session: Open, kind: str) -> None:
    """In the loop's bodies and after the loop, with a dataset that draws and one that does not."""

    def script(loader: DataLoader[Any]) -> list[Any]:
        with open_session(num_ests=2) as session:
            loader = session.prepare(loader)
            found: list[Any] = []
            for step in session.steps(loader):
                found += [drawn() for _ in step]
                found.append(drawn())
                if len(found) == 9:
                    break
            return [*found, drawn()]

    assert script(loader_of(kind)) == script(DataLoader(Numbers(23), batch_size=3))


def _scale_dataset(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    info.dataset.length = info.dataset.length * 10


class ByLength(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(self.length)])


def test_worker_init_fn_reaches_the_users_dataset(open_session: Open) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(ByLength(4), batch_size=2, num_workers=1, worker_init_fn=_scale_dataset))
    assert [b.flatten().tolist() for step in session.steps(loader) for b in step] == [[40.0, 40.0]] * 2
