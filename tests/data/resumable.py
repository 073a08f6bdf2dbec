"""Every part of a job that keeps a position, and how it is run: add a line here for a new one.

``test_resume`` stops each of them at its start, in the middle and at its end, and lets another session go on.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import datasets
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import easyscale
from consistency.loaders import Noisy, bits, collate, drawn, loader_of
from easyscale.train.data.permutation import PermutationSampler

EPOCHS = 2
ESTS = 3
_ANY = ((0, 3), (3, 1), (1, 0))

Seen = list[list[list[Any]]]
"""Hashes of mini-batches, by epoch and step."""


@dataclass(frozen=True)
class Part:
    """A part that keeps a position.

    Attributes:
        loader: made for a number of data workers.
        pairs: numbers of data workers before and after.
    """

    loader: Callable[[int], DataLoader[Any]]
    rng: str = "stepwise"
    accumulate: int = 1
    pairs: tuple[tuple[int, int], ...] = _ANY


def _kind(kind: str, **how: Any) -> Part:
    return Part(lambda workers: loader_of(kind, workers), **how)


def _lasting(kind: str, **how: Any) -> Part:
    return Part(lambda workers: loader_of(kind, workers, persistent=workers > 0), **how)


def _permuted(workers: int) -> DataLoader[Any]:
    return DataLoader(Noisy(), 3, sampler=PermutationSampler(Noisy(), 5), collate_fn=collate, num_workers=workers)


def _stateful(workers: int) -> DataLoader[Any]:
    return StatefulDataLoader(Noisy(), 3, shuffle=True, collate_fn=collate, num_workers=workers)


def noisy(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"], "noise": drawn()}


def hugging_face(num_shards: int) -> datasets.IterableDataset:
    rows = datasets.Dataset.from_dict({"x": list(range(25))})
    return rows.to_iterable_dataset(num_shards=num_shards).map(noisy).with_format("torch")


PARTS: dict[str, Part] = {
    "map-style": _kind("shuffled"),
    "map-style, data workers live on": _lasting("shuffled"),
    "map-style, several mini-batches in a step": _kind("shuffled", accumulate=2),
    "sampler with a generator": _kind("weighted_generator"),
    "batch sampler": _kind("own_batch_sampler"),
    "PermutationSampler": Part(_permuted),
    "StatefulDataLoader": Part(_stateful),
    "stream, its iterator keeps the state": _kind("uneven_stream"),
    "stream, data workers live on": _lasting("stream"),
    "stream, several mini-batches in a step": _kind("stream", accumulate=2),
    "stream, the dataset keeps the state": _kind("uneven_shards"),
    "stream of Hugging Face's": Part(lambda workers: DataLoader(hugging_face(3), 2, num_workers=workers)),
    "stream of Hugging Face's, fewer shards than ESTs": Part(
        lambda workers: DataLoader(hugging_face(2), 2, num_workers=workers)
    ),
    "ddp": _kind("shuffled", rng="ddp", pairs=()),
    "ddp, stream": _kind("stream", rng="ddp", pairs=()),
    "ddp, data workers": _kind("shuffled", rng="ddp", pairs=((2, 2),)),
    "ddp, data workers live on": _lasting("shuffled", rng="ddp", pairs=((2, 2),)),
    "ddp, data workers and single samples": _kind("single", rng="ddp", pairs=((2, 2),)),
}


@dataclass(frozen=True)
class Point:
    """A position: after so many epochs, and steps of the next one."""

    epoch: int
    step: int
    is_inside: bool
    state: bytes = field(repr=False)


def run(part: Part, data_workers: int, at: Point | None = None, *, keeps: bool = False) -> tuple[Seen, list[Point]]:
    """Two epochs in a session of their own, or what is left of them.

    Args:
        at: go on there.
        keeps: note the position wherever it can be asked for.
    """
    seen: Seen = []
    points: list[Point] = []
    with easyscale.session(seed=1, num_ests=ESTS, rng=part.rng, device="cpu") as session:
        loader = session.prepare(part.loader(data_workers))
        if at is not None:
            loader.load_state_dict(torch.load(io.BytesIO(at.state), weights_only=False))

        def note(epoch: int, *, is_inside: bool) -> None:
            if keeps:
                file = io.BytesIO()
                torch.save(loader.state_dict(), file)
                step = len(seen[epoch]) if is_inside else 0
                points.append(Point(epoch, step, is_inside, file.getvalue()))

        for epoch in range(0 if at is None else at.epoch, EPOCHS):
            note(epoch, is_inside=False)
            seen.append([])
            for step in session.steps(loader, part.accumulate):
                if not seen[-1]:
                    note(epoch, is_inside=True)
                seen[-1].append([_seen(batch, part) for batch in step])
                note(epoch, is_inside=True)
        note(EPOCHS, is_inside=False)
    return seen, points


def _seen(batch: Any, part: Part) -> Any:
    """With ``rng="ddp"`` what the loop's body draws as well: the EST's stream belongs to the position."""
    return (bits(batch), sum(drawn())) if part.rng == "ddp" else bits(batch)
