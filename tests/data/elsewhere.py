"""One worker after another, in the test process: what each hands out to its ESTs, and where its loader stands then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import DataLoader

import easyscale
from easyscale.core.placement import Placement

Handed = list[dict[int, Any]]
"""Mini-batches by virtual rank, for each step."""


def work(
    make: Callable[[], DataLoader[Any]],
    ranks: Sequence[int],
    num_ests: int,
    position: dict[str, Any] | None = None,
    *,
    steps: int | None = None,
    seed: int = 0,
) -> tuple[Handed, dict[str, Any]]:
    """Be the worker of ``ranks`` for so many steps, or to the epoch's end.

    Returns:
        What was handed out, and the position, taken before the loop is left.
    """
    with easyscale.session(num_ests=num_ests, seed=seed, device="cpu") as session:
        loader = session.prepare(make())
        if position is not None:
            loader.load_state_dict(position)
        stream = loader.open(tuple(ranks), 1, None, lambda count: count)
        handed: Handed = []
        first = stream.progress.number
        while (steps is None or len(handed) < steps) and (numbers := stream.upcoming(first, 1)):
            handed.append({rank: stream.fetch(rank, numbers.start) for rank in ranks})
            first = numbers.stop
        state = loader.state_dict()
        loader.close_stream(stream)
    return handed, state


def work_on(
    make: Callable[[], DataLoader[Any]],
    workers: int,
    num_ests: int,
    positions: Sequence[dict[str, Any]] = (),
    *,
    steps: int | None = None,
) -> tuple[Handed, list[dict[str, Any]]]:
    """Be all workers of an even placement, from the positions that other workers left.

    Returns:
        What all ESTs were given, and the position of every worker.
    """
    together = None if not positions else {**positions[0], "stream": _joined([p["stream"] for p in positions])}
    placement = Placement.even(num_ests, workers)
    runs = [work(make, ranks, num_ests, together, steps=steps) for ranks in placement.ranks_by_worker]
    # these workers are no job that agrees on the end of a stream: it ends where the first one has no more
    handed = [
        {rank: batch for part in step for rank, batch in part.items()}
        for step in zip(*(r[0] for r in runs), strict=False)
    ]
    return [dict(sorted(step.items())) for step in handed], [state for _, state in runs]


def _joined(streams: list[dict[str, Any]]) -> dict[str, Any]:
    """As a checkpoint puts together what workers keep by virtual rank."""
    if "ranks" not in streams[0]:
        return streams[0]
    return {"ranks": {rank: state for stream in streams for rank, state in stream["ranks"].items()}}
