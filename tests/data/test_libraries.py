"""Loaders and datasets of other libraries: torchdata's StatefulDataLoader, Hugging Face's datasets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import datasets
import pytest
import torch
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from consistency.loaders import Noisy, Shards, Stream, bits, collate, drawn
from data.conftest import Open, numbers

pytestmark = [
    pytest.mark.draws_random_numbers,  # both libraries draw seeds when their objects are made
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

ESTS = 3


def values(open_session: Open, loader: DataLoader[Any]) -> list[list[float]]:
    with open_session(num_ests=ESTS) as session:
        loader = session.prepare(loader)
        return [[bits(batch) for batch in step] for _ in session.epochs(2) for step in session.steps(loader)]


@pytest.mark.parametrize("data_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [
    lambda cls, **o: cls(Noisy(), 3, shuffle=True, collate_fn=collate, **o),
    lambda cls, **o: cls(Noisy(), 3, drop_last=True, collate_fn=collate, **o),
    lambda cls, **o: cls(Noisy(), None, shuffle=True, **o),
    lambda cls, **o: cls(Stream(), 2, collate_fn=collate, **o),
    lambda cls, **o: cls(Shards((8, 5, 9, 3)), 2, collate_fn=collate, **o),
], ids=["shuffled", "in order", "single", "stream", "shards"])  # fmt: skip
def test_a_stateful_data_loader_is_taken_as_a_data_loader(
    open_session: Open, make: Callable[..., DataLoader[Any]], data_workers: int
) -> None:
    plain = values(open_session, make(DataLoader))
    assert values(open_session, make(StatefulDataLoader, num_workers=data_workers)) == plain


def rows(length: int = 25) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"x": list(range(length)), "y": [2 * i for i in range(length)]})


def augmented(batch: dict[str, list[int]]) -> dict[str, Any]:
    return {"x": [torch.tensor([float(x), *drawn()], dtype=torch.float64) for x in batch["x"]]}


def test_hugging_face_samples_are_dealt_out_as_by_a_distributed_sampler(open_session: Open) -> None:
    data = rows().with_format("torch")
    session = open_session(num_ests=ESTS)
    loader = session.prepare(DataLoader(data, 4, shuffle=True))
    steps = [[(numbers(batch["x"]), numbers(batch["y"])) for batch in step] for step in session.steps(loader)]
    for rank in range(ESTS):
        sampler: Any = DistributedSampler(data, ESTS, rank, seed=0)
        plain = [(numbers(batch["x"]), numbers(batch["y"])) for batch in DataLoader(data, 4, sampler=sampler)]
        assert [step[rank] for step in steps] == plain


@pytest.mark.slow
@pytest.mark.parametrize("data_workers", [1, 2])
def test_a_hugging_face_transform_that_draws_gives_the_same_with_data_workers(
    open_session: Open, data_workers: int
) -> None:
    data = rows()
    data.set_transform(augmented)
    expected = values(open_session, DataLoader(data, 3, shuffle=True))
    assert len({value for step in expected for value in step}) == sum(map(len, expected))
    assert values(open_session, DataLoader(data, 3, shuffle=True, num_workers=data_workers)) == expected


def noisy(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"], "noise": drawn()}


@pytest.mark.parametrize("data_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shards", [1, 2, 3, 6, 7])
def test_a_hugging_face_stream_is_dealt_out_as_its_library_does(
    open_session: Open, shards: int, data_workers: int
) -> None:
    """By shards where they divide among ESTs, else sample by sample."""
    data = rows(27).to_iterable_dataset(num_shards=shards).with_format("torch")
    plain = [
        [numbers(batch["x"]) for batch in DataLoader(split_dataset_by_node(data, rank, ESTS), 2)]
        for rank in range(ESTS)
    ]
    session = open_session(num_ests=ESTS)
    loader = session.prepare(DataLoader(data, 2, num_workers=data_workers))
    steps = [[numbers(batch["x"]) for batch in step] for step in session.steps(loader)]
    assert steps == [list(step) for step in zip(*plain, strict=False)]
    assert len(steps) == 5
    with torch.no_grad():
        seen = [number for batch in loader for number in numbers(batch["x"])]
    assert sorted(seen) == list(range(27))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["draws", "shuffled"])
@pytest.mark.parametrize("shards", [2, 6])
def test_a_hugging_face_stream_gives_the_same_with_data_workers(open_session: Open, shards: int, kind: str) -> None:
    """What draws stands behind its shuffle: that reads in threads, so what draws before it differs in any loader."""
    data = rows().to_iterable_dataset(num_shards=shards)
    if kind == "shuffled":
        data = data.shuffle(seed=3, buffer_size=5)
    data = data.map(noisy).with_format("torch")
    expected = values(open_session, DataLoader(data, 2))
    half = len(expected) // 2
    assert expected[:half] != expected[half:]
    assert values(open_session, DataLoader(data, 2, num_workers=2)) == expected
