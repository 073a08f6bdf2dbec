"""Which virtual ranks each physical worker runs: the only bridge between virtual and physical.

Virtual ranks, data order and reduction order decide numbers; workers decide time.
"""

from __future__ import annotations

from dataclasses import dataclass

from easyscale.core.errors import PlacementError


@dataclass(frozen=True, slots=True)
class Placement:
    """Which virtual ranks each physical worker runs, in the order it runs them.

    Written ``"0,1,2|3"``: workers are separated by ``|``, virtual ranks by ``,``.
    """

    ranks_by_worker: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.ranks_by_worker or not all(self.ranks_by_worker):
            raise PlacementError(f"placement {self} has a worker without virtual ranks: give each worker one or more")
        placed = sorted(rank for ranks in self.ranks_by_worker for rank in ranks)
        expected = set(range(len(placed)))
        if placed != sorted(expected):
            wrong = _describe_wrong(placed, expected)
            raise PlacementError(
                f"placement {self} does not hold virtual ranks 0..{len(placed) - 1}, each once ({wrong})"
            )

    @classmethod
    def parse(cls, text: str) -> Placement:
        """Read the form that ``str`` writes, such as ``"0,1,2|3"``."""
        try:
            workers = tuple(tuple(int(rank) for rank in part.split(",") if rank.strip()) for part in text.split("|"))
        except ValueError:
            raise PlacementError(
                f"placement {text!r} is not virtual ranks separated by ',' and workers by '|': write it as \"0,1,2|3\""
            ) from None
        return cls(workers)

    @classmethod
    def even(cls, num_ests: int, num_workers: int) -> Placement:
        """Consecutive virtual ranks on each worker, as evenly as they divide; earlier workers take the rest."""
        if num_ests < 1 or num_workers < 1:
            raise PlacementError(f"{num_ests} ESTs on {num_workers} workers: both must be 1 or more")
        if num_workers > num_ests:
            raise PlacementError(
                f"{num_workers} workers were asked for but the job has {num_ests} "
                f"EST{'s' if num_ests > 1 else ''}: a worker needs at least one, so ask for at most {num_ests} workers "
                f"or more ESTs"
            )
        size, extra = divmod(num_ests, num_workers)
        starts = [worker * size + min(worker, extra) for worker in range(num_workers + 1)]
        return cls(tuple(tuple(range(starts[w], starts[w + 1])) for w in range(num_workers)))

    @property
    def num_ests(self) -> int:
        return sum(len(ranks) for ranks in self.ranks_by_worker)

    @property
    def num_workers(self) -> int:
        return len(self.ranks_by_worker)

    def worker_of(self, virtual_rank: int) -> int:
        """The worker that hosts ``virtual_rank``."""
        for worker, ranks in enumerate(self.ranks_by_worker):
            if virtual_rank in ranks:
                return worker
        raise PlacementError(f"virtual rank {virtual_rank} is not in placement {self}")

    def __str__(self) -> str:
        return "|".join(",".join(str(rank) for rank in ranks) for ranks in self.ranks_by_worker)


def _describe_wrong(placed: list[int], expected: set[int]) -> str:
    missing = sorted(expected - set(placed))
    repeated = sorted({rank for rank in placed if placed.count(rank) > 1})
    found = []
    if missing:
        found.append(f"missing: {', '.join(map(str, missing))}")
    if repeated:
        found.append(f"repeated: {', '.join(map(str, repeated))}")
    beyond = sorted(set(placed) - expected)
    if beyond:
        found.append(f"out of range: {', '.join(map(str, beyond))}")
    return "; ".join(found)
