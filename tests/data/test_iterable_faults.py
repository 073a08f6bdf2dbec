"""Iterable datasets that fail, keep something to themselves or are read in unusual ways: equal values, or refused."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from consistency.loaders import Counting, Shards, Stream, bits, collate, loader_of, sample
from data.conftest import Open
from data.elsewhere import work
from easyscale import RefusedError
from easyscale.core.errors import DataError, UsageError
from easyscale.train.data.share import can_save

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # a death may be raised in a finalizer, where Python only prints it; it is noticed again a moment later
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # PyTorch looks whether it has too many files open by opening some, which it leaves to their finalizers
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]


def hashes(session: Any, loader: Any, accumulate: int = 1) -> list[Any]:
    return [[bits(batch) for batch in step] for step in session.steps(loader, accumulate)]


def firsts(session: Any, loader: Any) -> list[list[list[float]]]:
    return [[batch.flatten().tolist() for batch in step] for step in session.steps(loader)]


class Tens(IterableDataset[Any]):
    """Four samples, all of them what the dataset's own numbers say."""

    def __init__(self) -> None:
        self.epoch = self.offset = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return iter([torch.tensor([float(10 * self.epoch + self.offset)]) for _ in range(4)])


# -- the dataset's own state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rng", ["stepwise", "ddp"])
@pytest.mark.parametrize("data_workers", [0, 1])
def test_an_epoch_that_the_script_tells_the_dataset_is_left_as_it_is(
    open_session: Open, data_workers: int, rng: str
) -> None:
    session = open_session(num_ests=2, rng=rng)
    data = Tens()
    loader = session.prepare(DataLoader(data, 2, num_workers=data_workers))
    for epoch in (5, 6):
        data.set_epoch(epoch)
        assert firsts(session, loader) == [[[10.0 * epoch] * 2] * 2]
    loader.set_epoch(7)
    assert firsts(session, loader) == [[[70.0] * 2] * 2]


class SelfCounting(Tens):
    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        return super().__iter__()


@pytest.mark.parametrize("rng", ["stepwise", "ddp"])
def test_a_dataset_that_changes_itself_is_told_that_the_next_epoch_does_not_see_it(
    open_session: Open, rng: str
) -> None:
    session = open_session(num_ests=1, rng=rng)
    loader = session.prepare(DataLoader(SelfCounting(), 4))
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="SelfCounting changed its own epoch while it was read"):
            assert firsts(session, loader) == [[[10.0] * 4]]


def set_offset(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert isinstance(info.dataset, Tens)
    info.dataset.offset = 3


@pytest.mark.parametrize("rng", ["stepwise", "ddp"])
def test_what_worker_init_fn_sets_reaches_the_dataset(open_session: Open, rng: str) -> None:
    session = open_session(num_ests=1, rng=rng)
    loader = session.prepare(DataLoader(Tens(), 2, num_workers=1, worker_init_fn=set_offset))
    assert firsts(session, loader) == [[[3.0] * 2]] * 2


class Between(IterableDataset[Any]):
    """The example of PyTorch's documentation."""

    start, end = 0, 24

    def __iter__(self) -> Iterator[Any]:
        return iter(range(self.start, self.end))


def split(worker: int) -> None:
    info: Any = get_worker_info()
    each = -(-24 // info.num_workers)
    info.dataset.start, info.dataset.end = worker * each, min(24, info.id * each + each)


@pytest.mark.parametrize("data_workers", [0, 1, 2, 3])
def test_a_worker_init_fn_that_deals_the_stream_out_to_data_workers_loses_no_sample(
    open_session: Open, data_workers: int
) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Between(), 3, num_workers=data_workers, worker_init_fn=split))
    assert firsts(session, loader) == [
        [[6 * k, 6 * k + 2, 6 * k + 4], [6 * k + 1, 6 * k + 3, 6 * k + 5]] for k in range(4)
    ]


class Live(Stream):
    """Its iterator gives the state that it goes on changing."""

    def __iter__(self) -> Any:
        return LiveCounting(0, 1, self.length)


class LiveCounting(Counting):
    def __init__(self, first: int, step: int, length: int) -> None:
        super().__init__(first, step, length)
        self.own = {"next": [0]}

    def __next__(self) -> Any:
        found = super().__next__()
        self.own["next"][0] = self.next
        return found

    def state_dict(self) -> dict[str, Any]:
        return self.own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.own = state
        self.next = state["next"][0]


class Permuted(Stream):
    """Draws an order from the process's generators when it is opened."""

    def __iter__(self) -> Any:
        return PermutedCounting(0, 1, self.length)


class PermutedCounting(Counting):
    def __init__(self, first: int, step: int, length: int) -> None:
        super().__init__(first, step, length)
        self.order = torch.randperm(length).tolist()

    def __next__(self) -> Any:
        return torch.cat([super().__next__(), torch.tensor([float(self.order[self.next - 1])])])


@pytest.mark.parametrize("dataset", [Live, Permuted])
def test_a_stream_goes_on_though_its_state_lives_or_it_draws_when_opened(dataset: type[Stream]) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(dataset(), 2, collate_fn=collate)

    whole, _ = work(make, (0, 1, 2), 3)
    begin, state = work(make, (0, 1, 2), 3, steps=2)
    for ranks in ((0, 1, 2), (2, 0, 1)):  # in another order of turns
        rest, _ = work(make, ranks, 3, copy.deepcopy(state))
        found = [{rank: bits(batch) for rank, batch in sorted(step.items())} for step in begin + rest]
        assert found == [{rank: bits(batch) for rank, batch in step.items()} for step in whole]


# -- what a position leaves out ------------------------------------------------------------------------------------


def buffered(buffer_size: int) -> datasets.IterableDataset:
    rows = datasets.Dataset.from_dict({"x": list(range(24))})
    return rows.to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=buffer_size).with_format("torch")


def test_a_shuffle_buffer_is_refused_where_its_content_would_be_lost(open_session: Open, may_move: None) -> None:
    assert can_save(buffered(1))
    assert not can_save(buffered(5))
    raw = [buffered(size).with_format(None) for size in (1, 5)]
    assert can_save(datasets.interleave_datasets([raw[0], raw[0].map(dict)]))
    assert not can_save(datasets.interleave_datasets([raw[0], raw[1].map(dict)]))
    session = open_session(num_ests=2)
    session.prepare(DataLoader(buffered(1), 2))
    with pytest.raises(RefusedError, match=r"cannot save its position(.|\n)*buffer_size=1"):
        session.prepare(DataLoader(buffered(5), 2))


def test_a_shuffle_buffer_is_read_where_the_job_cannot_move_but_gives_no_position(open_session: Open) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(buffered(5), 2))
    seen: list[int] = []
    for step in session.steps(loader):
        for batch in step:
            seen += batch["x"].tolist()
        with pytest.raises(UsageError, match="buffer_size=1"):
            loader.state_dict()
    assert sorted(seen) == list(range(24))


# -- reading ahead -------------------------------------------------------------------------------------------------


class Silent(Shards):
    """Draws nothing."""

    def shard(self, num_shards: int, index: int) -> Silent:
        mine = Silent(self.lengths)
        mine.shards = self.shards[index::num_shards]
        return mine

    def __iter__(self) -> Iterator[Any]:
        return iter([torch.tensor([float(shard)]) for shard in self.shards for _ in range(self.lengths[shard])])


def test_a_step_of_several_mini_batches_is_refused_where_reading_ahead_would_move_an_ests_stream(
    open_session: Open,
) -> None:
    session = open_session(num_ests=4, rng="ddp")
    drawing, silent, away = session.prepare(
        DataLoader(Shards([3, 9, 9, 9]), 1),
        DataLoader(Silent([3, 9, 9, 9]), 1),
        DataLoader(Shards([3, 9, 9, 9]), 1, num_workers=1),
    )
    assert len(hashes(session, drawing)) == 3
    assert [len(step) for step in hashes(session, silent, 8)] == [12]
    assert [len(step) for step in hashes(session, away, 8)] == [12]
    with pytest.raises(RefusedError, match=r"Shards draws from the EST's random stream(.|\n)*accumulate=1"):
        hashes(session, drawing, 8)


def test_evaluation_in_a_loop_over_the_same_shards_takes_nothing_from_it(open_session: Open) -> None:
    session = open_session(num_ests=3)
    model, loader = session.prepare(torch.nn.ReLU(), loader_of("uneven_shards"))
    expected = hashes(session, loader)
    loader.set_epoch(0)
    model.eval()
    found = []
    for step in session.steps(loader):
        found.append([bits(batch) for batch in step])
        with torch.no_grad():
            assert sum(len(batch["samples"]) for batch in loader) == 33
    assert found == expected


class Watched(Stream):
    """Tells how often it was copied, and how many samples were read."""

    copies = reads = 0

    def __deepcopy__(self, memo: Any) -> Watched:
        Watched.copies += 1
        return Watched(self.length)

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.length):
            Watched.reads += 1
            yield sample(index)


def test_a_process_copies_and_reads_a_stream_once_however_many_ests_it_has(open_session: Open) -> None:
    for num_ests in (1, 8):
        with open_session(num_ests=num_ests) as session:
            Watched.copies = Watched.reads = 0
            assert len(hashes(session, session.prepare(DataLoader(Watched(64), 2)))) == 32 // num_ests
            assert (Watched.copies, Watched.reads) == (1, 64)


# -- data workers that end -----------------------------------------------------------------------------------------


class Dying:
    """Ends a data worker once, before the sample that begins with ``at``."""

    def __init__(self, marker: Path, at: int) -> None:
        self.marker, self.at = marker, at

    def meet(self, number: float) -> None:
        # get_worker_info() tells nothing while a stream is read
        if number == self.at and multiprocessing.parent_process() is not None and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class DyingShards(Shards):
    def __init__(self, lengths: list[int], dying: Dying) -> None:
        super().__init__(lengths)
        self.dying = dying

    def shard(self, num_shards: int, index: int) -> DyingShards:
        mine = DyingShards(self.lengths, self.dying)
        mine.shards = self.shards[index::num_shards]
        return mine

    def __iter__(self) -> Iterator[Any]:
        for found in super().__iter__():
            self.dying.meet(float(found[0]))
            yield found


class DyingStream(Stream):
    def __init__(self, dying: Dying) -> None:
        super().__init__(27)
        self.dying = dying

    def __iter__(self) -> Any:
        return DyingCounting(self.dying, self.length)


class DyingCounting(Counting):
    def __init__(self, dying: Dying, length: int) -> None:
        super().__init__(0, 1, length)
        self.dying = dying

    def __next__(self) -> Any:
        self.dying.meet(self.next)
        return super().__next__()


LENGTHS = [8, 5, 9, 3, 2, 6]


@pytest.mark.parametrize("data_workers", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
@pytest.mark.parametrize(
    ("kind", "at"), [("shards", 0), ("shards", 204), ("shards", 500), ("stream", 1), ("stream", 20)]
)
def test_a_data_worker_that_ends_is_replaced_where_its_streams_were(
    open_session: Open, tmp_path: Path, kind: str, at: int, data_workers: int
) -> None:
    def make(name: str, data_workers: int) -> DataLoader[Any]:
        dying = Dying(tmp_path / name, at)
        data = DyingShards(LENGTHS, dying) if kind == "shards" else DyingStream(dying)
        return DataLoader(data, 2, collate_fn=collate, num_workers=data_workers)

    def both(loader: DataLoader[Any]) -> tuple[list[Any], list[Any]]:
        with open_session(num_ests=3) as session:
            elastic = session.prepare(loader)
            trained = hashes(session, elastic)
            with torch.no_grad():
                return trained, [bits(batch) for batch in session.prepare(make("evaluated", loader.num_workers))]

    expected = both(make("never", 0))
    with pytest.warns(RuntimeWarning, match="with the same values"):
        assert both(make("trained", data_workers)) == expected
    assert (tmp_path / "trained").exists()


class Forgetful(DyingStream):
    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()


def test_the_job_ends_where_a_data_worker_ends_that_read_a_stream_without_a_state(
    open_session: Open, tmp_path: Path
) -> None:
    session = open_session(num_ests=2)
    loader = session.prepare(DataLoader(Forgetful(Dying(tmp_path / "died", 20)), 2, num_workers=2))
    with pytest.raises(DataError, match="Forgetful cannot save its position, so no other one can go on"):
        hashes(session, loader)


# -- exceptions that the script catches ----------------------------------------------------------------------------


class Broken(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for index in range(24):
            if index == 13:
                raise ValueError("line 13 has no label")
            yield float(index)


@pytest.mark.parametrize("data_workers", [0, 2])
@pytest.mark.parametrize("form", ["two_loop", "drop_in", "evaluation"])
def test_after_an_exception_a_stream_does_not_look_as_if_it_were_over(
    open_session: Open, form: str, data_workers: int
) -> None:
    session = open_session(num_ests=2)
    model, loader = session.prepare(torch.nn.Linear(1, 1), DataLoader(Broken(), 2, num_workers=data_workers))
    model.train(form != "evaluation")
    batches = iter(session.steps(loader)) if form == "two_loop" else iter(loader)
    with pytest.raises(UsageError, match="a mini-batch cannot be left out"):
        while True:
            try:
                found = next(batches)
            except ValueError:
                continue
            if form == "two_loop":
                list(found)
            elif form == "drop_in":
                model(found.float().reshape(-1, 1)).sum().backward()
