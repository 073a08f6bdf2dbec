"""Loops over a prepared loader: its attributes, passes, lengths, and progress bars around it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import tqdm
from torch.utils.data import DataLoader

from consistency.loaders import Stream, bits, loader_of
from data.conftest import Numbers, Open, numbers


def test_another_pass_over_a_step_gives_the_same_mini_batches(open_session: Open) -> None:
    session = open_session(num_ests=2)
    for kind in ("shuffled", "stream"):
        loader = session.prepare(loader_of(kind))
        for step in session.steps(loader):
            first = [bits(batch) for batch in step]
            assert [bits(batch) for batch in step] == first


def test_a_step_never_passed_over_is_skipped(open_session: Open) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Numbers(16), batch_size=4))
    seen = []
    for step in session.steps(loader):
        if session.global_step == 0:
            continue
        seen += [number for batch in step for number in numbers(batch)]
    assert sorted(seen) == list(range(8, 16))
    assert session.global_step == 2


def test_a_loader_keeps_its_attributes(open_session: Open) -> None:
    session = open_session(num_ests=4)
    data = Numbers(17)
    loader = session.prepare(DataLoader(data, batch_size=2))
    assert (len(loader), loader.batch_size, loader.dataset) == (3, 2, data)
    with pytest.raises(AttributeError):
        _ = loader.no_such_thing


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_pinning_memory_is_left_to_pytorch(open_session: Open) -> None:
    session = open_session(num_ests=2)
    plain, pinned = session.prepare(DataLoader(Numbers(8), 2), DataLoader(Numbers(8), 2, pin_memory=True))
    assert pinned.pin_memory
    expected = [[numbers(batch) for batch in step] for step in session.steps(plain)]
    assert [[numbers(batch) for batch in step] for step in session.steps(pinned)] == expected


def test_a_progress_bar_around_the_steps_counts_global_steps(open_session: Open, capsys: Any) -> None:
    session = open_session(num_ests=3)
    loader = session.prepare(DataLoader(Numbers(17), batch_size=2))
    bar = tqdm.tqdm(session.steps(loader))
    seen = [number for step in bar for batch in step for number in numbers(batch)]
    assert (len(bar), bar.n) == (3, 3)
    assert set(seen) == set(range(17))
    assert len(session.steps(loader, accumulate=2)) == 2
    assert len(session.steps(7)) == 7
    assert "3/3" in capsys.readouterr().err


@pytest.mark.draws_random_numbers
def test_a_progress_bar_around_the_loader_goes_past_its_end_in_the_drop_in_form(
    open_session: Open, capsys: Any
) -> None:
    """Its length is that of a DDP rank's loader; the flat loop gives a mini-batch for every local EST of each step."""
    session = open_session(num_ests=3)
    model, loader = session.prepare(torch.nn.Linear(1, 1), DataLoader(Numbers(17), batch_size=2))
    bar = tqdm.tqdm(loader)
    for batch in bar:
        model(batch).sum().backward()
    assert (len(bar), bar.n) == (3, 9)
    assert "9it" in capsys.readouterr().err


def test_a_stream_has_a_length_only_if_its_dataset_has_one(open_session: Open, capsys: Any) -> None:
    class Sized(Stream):
        def __len__(self) -> int:
            return self.length

    session = open_session(num_ests=3)
    endless, sized = session.prepare(loader_of("stream"), DataLoader(Sized(24), batch_size=3))
    with pytest.raises(TypeError, match=r"the iterable dataset Stream has no len\(\)"):
        len(endless)
    assert len(sized) == 3
    for loader in (endless, sized):
        bar = tqdm.tqdm(session.steps(loader))
        assert sum(len(list(step)) for step in bar) == 3 * bar.n
    assert "3/3" in capsys.readouterr().err
