"""The fleets that all consistency tests share, and the runs that many of them compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from consistency.fleet import Fleet

Run = dict[str, Any]


class Jobs:
    """Runs EasyScale jobs; the run that others are compared with is made once.

    Attributes:
        fleet: the processes.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._references: dict[str, Run] = {}

    def run(
        self,
        placement: str,
        case: str,
        form: str = "two_loop",
        *,
        epochs: int = 2,
        overrides: Mapping[str, Any] | None = None,
        may_move: bool = False,
        **options: Any,
    ) -> Run:
        """Run ``case`` on ``placement``; all workers must agree."""
        shared = {
            "placement": placement,
            "store_path": self.fleet.store_path(),
            "case": case,
            "form": form,
            "epochs": epochs,
            "overrides": overrides or {},
            "options": options,
            "may_move": may_move,
        }
        workers = placement.count("|") + 1
        runs = self.fleet.call("consistency.cases:run", [{"worker_rank": w, **shared} for w in range(workers)])
        for worker, other in enumerate(runs):
            assert other["steps"] == runs[0]["steps"], f"workers 0 and {worker} of {placement} hold different tensors"
            assert other["returned"] == runs[0]["returned"], (
                f"workers 0 and {worker} of {placement} returned other values"
            )
        return {**runs[0], "scalars": _merged([run["scalars"] for run in runs])}

    def reference(self, num_ests: int, case: str, form: str = "two_loop", **job: Any) -> Run:
        """The same job with one EST for each worker."""
        key = repr((num_ests, case, form, sorted(job.items())))
        if key not in self._references:
            self._references[key] = self.run("|".join(map(str, range(num_ests))), case, form, **job)
        return self._references[key]


def _merged(by_worker: list[list[dict[int, dict[str, float]]]]) -> list[dict[int, dict[str, float]]]:
    """What all workers logged, by step and virtual rank; a rank is logged by one worker only."""
    merged = []
    for step in zip(*by_worker, strict=True):
        ranks = [rank for logged in step for rank in logged]
        assert len(ranks) == len(set(ranks)), f"virtual ranks logged by two workers: {ranks}"
        merged.append(dict(sorted((rank, values) for logged in step for rank, values in logged.items())))
    return merged


_MOST_WORKERS = 8


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """The first half of it runs EasyScale, the other half has nothing of it."""
    fleet = Fleet(2 * _MOST_WORKERS)
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture(scope="session")
def jobs(fleet: Fleet) -> Jobs:
    return Jobs(fleet)


Oracle = Callable[..., list[Run]]


@pytest.fixture(scope="session")
def ddp(fleet: Fleet) -> Oracle:
    """Plain DDP, in processes that have nothing of EasyScale; each program runs once."""
    known: dict[str, list[Run]] = {}

    def run(num_ranks: int, program: str, *, epochs: int = 2, hook: str | None = None, **options: Any) -> list[Run]:
        shared = {
            "size": num_ranks,
            "store_path": fleet.store_path(),
            "program": program,
            "epochs": epochs,
            "options": options,
            "hook": hook,
        }
        key = repr((num_ranks, program, epochs, hook, options))
        if key not in known:
            ranks = [{"rank": rank, **shared} for rank in range(num_ranks)]
            known[key] = fleet.call("consistency.oracle:train", ranks, first=_MOST_WORKERS)
        return known[key]

    return run
