"""Which devices a plan uses and how many ESTs each of them gets, once the step's time is known. Pure.

In that time every device has room for a certain number of ESTs, and all choices with enough room are equally fast.
What is left to choose: the fewest devices, then those that keep the most ESTs where they are (keep.py), then the
slower kinds, then powers of two, because of which the reduction is cheapest (placing.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from easyscale.schedule.group import Batch
from easyscale.schedule.keep import keeping, spread
from easyscale.schedule.model import Plan, Share
from easyscale.schedule.search import Supply, ests_in
from easyscale.schedule.tradeoff import Step


def shares_of(supply: Sequence[Supply], num_ests: int, step: Step, current: Plan | None) -> list[Share]:
    """Shares that run all ESTs in ``step``; a kind may occur with the same number of ESTs more than once."""
    batches = [Batch(kind.name, devices, ests_in(step.compute_s, kind)) for devices, kind in reversed(supply)]
    batches = sorted((batch for batch in batches if batch.room), key=lambda batch: -batch.room)
    taken = _fewest(batches, num_ests) if step.size is None else _exactly(batches, step.size)
    if current is not None:
        return keeping(current, batches, sum(batch.devices for batch in taken), num_ests)
    return _trimmed(taken, sum(batch.devices * batch.room for batch in taken) - num_ests)


def _fewest(batches: Sequence[Batch], num_ests: int) -> list[Batch]:
    taken = []
    for batch in batches:
        taken.append(batch._replace(devices=min(batch.devices, -(-num_ests // batch.room))))
        num_ests -= taken[-1].devices * batch.room
        if num_ests <= 0:
            break
    return taken


def _exactly(batches: Sequence[Batch], size: int) -> list[Batch]:
    taken = []
    for batch in batches:
        devices = min(batch.devices, size)
        size -= devices
        if devices:
            taken.append(batch._replace(devices=devices))
    return taken


def _trimmed(taken: Sequence[Batch], surplus: int) -> list[Share]:
    """Fill every device but leave ``surplus`` free: first what is above a power of two, then from those with least."""
    full: list[Batch] = []
    for batch in sorted(taken, key=lambda batch: _above_power_of_two(batch.room)):
        above = _above_power_of_two(batch.room)
        rounded = min(batch.devices, surplus // above) if above else 0
        surplus -= rounded * above
        full.append(batch._replace(devices=rounded, ests=batch.room - above))
        full.append(batch._replace(devices=batch.devices - rounded, ests=batch.room))
    return spread(sorted(full, key=lambda batch: batch.ests), -surplus)


def _above_power_of_two(ests: int) -> int:
    return ests - (1 << (ests.bit_length() - 1))
