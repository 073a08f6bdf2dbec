"""Evaluation over a prepared loader: each sample once, and the training does not notice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from consistency.loaders import bits, drawn, loader_of
from data.conftest import Numbers, Open, numbers


@pytest.mark.parametrize("length", [2, 7, 12])
def test_evaluation_sees_every_sample_once(open_session: Open, length: int) -> None:
    session = open_session(num_ests=5)
    loader = session.prepare(DataLoader(Numbers(length), batch_size=2))
    before = torch.get_rng_state()
    with torch.no_grad():
        seen = [number for batch in loader for number in numbers(batch)]
    assert sorted(seen) == list(range(length))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", ["shuffled", "drop_last", "single", "weighted_generator", "uneven_stream", "shards"])
def test_an_evaluation_repeats(open_session: Open, kind: str) -> None:
    session = open_session(num_ests=3)
    loader = session.prepare(loader_of(kind))
    with torch.no_grad():
        first = [bits(batch) for batch in loader]
        assert [bits(batch) for batch in loader] == first


def test_evaluation_draws_other_numbers_than_training(open_session: Open) -> None:
    session = open_session(num_ests=1)
    loader = session.prepare(loader_of("in_order"))
    trained = [bits(batch) for step in session.steps(loader) for batch in step]
    loader.set_epoch(0)
    with torch.no_grad():
        evaluated = [bits(batch) for batch in loader]
    assert len(evaluated) == len(trained)
    assert not set(evaluated) & set(trained)


def training(open_session: Open, loader: DataLoader[Any], *, evaluates: str) -> list[Any]:
    with open_session(num_ests=3) as session:
        loader, held_out = session.prepare(loader, loader_of("shuffled"))
        found: list[Any] = []
        for epoch in session.epochs(2):
            for step in session.steps(loader):
                found += [(bits(batch), drawn()) for batch in step]
                if "in steps" in evaluates:
                    with torch.no_grad():
                        assert list(loader if "itself" in evaluates else held_out)
            if "between" in evaluates and epoch == 0:
                with torch.no_grad():
                    assert list(loader if "itself" in evaluates else held_out)
            if "left" in evaluates:
                with torch.no_grad():
                    next(iter(loader))
        return found


@pytest.mark.parametrize("evaluates", ["in steps", "in steps, itself", "between", "between, itself", "left"])
@pytest.mark.parametrize("kind", ["shuffled", "weighted", "weighted_generator", "uneven_stream"])
def test_training_does_not_notice_evaluations(open_session: Open, kind: str, evaluates: str) -> None:
    expected = training(open_session, loader_of(kind), evaluates="")
    assert training(open_session, loader_of(kind), evaluates=evaluates) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("evaluates", ["in steps, itself", "between, itself"])
@pytest.mark.parametrize("kind", ["shuffled", "uneven_stream"])
def test_training_does_not_notice_evaluations_by_data_workers(open_session: Open, kind: str, evaluates: str) -> None:
    expected = training(open_session, loader_of(kind), evaluates="")
    for persistent in (False, True):
        found = training(open_session, loader_of(kind, 2, persistent=persistent), evaluates=evaluates)
        assert found == expected


def test_the_position_of_a_loader_does_not_notice_evaluations(open_session: Open) -> None:
    session = open_session(num_ests=3)
    loader = session.prepare(loader_of("shuffled"))
    for number, step in enumerate(session.steps(loader)):
        list(step)
        before = loader.state_dict()
        with torch.no_grad():
            for _ in loader:
                assert loader.state_dict() == before
        assert before["number"] == number + 1


def test_sums_over_an_evaluation_are_filed_under_ests(open_session: Open) -> None:
    session = open_session(num_ests=3)
    loader = session.prepare(DataLoader(Numbers(10), batch_size=2))
    count, sum_by_rank = 0, dict.fromkeys(range(3), 0.0)
    with torch.no_grad():
        for batch in loader:
            count += len(batch)
            sum_by_rank[session.virtual_rank] += float(batch.sum())
    assert session.sum(count) == 10
    assert session.sum(sum_by_rank) == 45.0
    assert sum_by_rank == {0: 18.0, 1: 12.0, 2: 15.0}
