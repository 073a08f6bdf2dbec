"""Which ESTs each device of a plan runs: consecutive virtual ranks, in blocks that suit the reduction. Pure.

Gradients are summed along a binary tree over virtual ranks. A device whose ESTs are one whole subtree (a power of two
of them, starting at a multiple of it) sends one sum; any other sends several. So blocks are laid out by the largest
power of two that divides them: wherever all are powers of two, every block is a subtree.
"""

from __future__ import annotations

from dataclasses import dataclass

from easyscale.core.errors import PlacementError
from easyscale.core.placement import Placement
from easyscale.schedule.model import Plan, Share


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """A placement, and the kind of device that each of its workers needs."""

    placement: Placement
    kind_by_worker: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.kind_by_worker) != self.placement.num_workers:
            raise PlacementError(
                f"{len(self.kind_by_worker)} kinds were given for the {self.placement.num_workers} workers of "
                f"{self.placement}: give one for each"
            )

    @property
    def shares(self) -> list[Share]:
        """One for each worker, sorted."""
        workers = zip(self.kind_by_worker, self.placement.ranks_by_worker, strict=True)
        return sorted(Share(kind, 1, len(ranks)) for kind, ranks in workers)


def to_placement(plan: Plan, current: PlacedPlan | None = None) -> PlacedPlan:
    """Virtual ranks for each device of ``plan``; ``current`` as it is if it is a placement of this plan already."""
    workers = sorted(Share(kind, 1, ests) for kind, devices, ests in plan.shares for _ in range(devices))
    if current is not None and current.shares == workers:
        return current
    order = {kind: index for index, kind in enumerate(plan.devices_by_kind)}
    workers.sort(key=lambda share: (-(share.ests & -share.ests), -share.ests, order[share.kind]))
    ranks_by_worker, start = [], 0
    for _, _, ests in workers:
        ranks_by_worker.append(tuple(range(start, start + ests)))
        start += ests
    return PlacedPlan(Placement(tuple(ranks_by_worker)), tuple(share.kind for share in workers))
