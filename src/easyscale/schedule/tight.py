"""Which devices keep the most ESTs where there is barely room enough: branch and bound. Pure.

Room gets a price: let each device be worth what it keeps plus ``price`` times its room. The devices that are worth most
are found by sorting, and what they are worth less the price of the room needed is more than any choice with enough room
keeps. For the right price that bound is so close that a few dozen tries are the most that were seen, except where the
user allows only some numbers of devices and there are hundreds of several kinds. After ``MAX_TRIES`` the best so far is
taken: every choice here is equally fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from easyscale.schedule.group import Group, kept

PRICE_STEPS = 40
ROUNDING = 1e-6
MAX_TRIES = 5000


def most_kept(groups: Sequence[Group], size: int, num_ests: int) -> list[int]:
    """How many of each group (most room first): ``size`` in all, with room for ``num_ests``, and most of them kept.

    There must be a choice with enough room.
    """
    price = _best_price(groups, size, num_ests)
    search = _Search(groups, num_ests, price)
    search.go([], size, num_ests, 0)
    return search.best


class _Search:
    """Group by group, the most promising number first; what cannot be better than the best so far is left out."""

    def __init__(self, groups: Sequence[Group], num_ests: int, price: float) -> None:
        self.groups = groups
        self.num_ests = num_ests
        self.price = price
        self.worths = [_worths(groups[index:], price) for index in range(len(groups) + 1)]
        self.sizes = [sum(group.size for group in groups[index:]) for index in range(len(groups) + 1)]
        self.best: list[int] = []
        self.most = -1
        self.tries = 0

    def go(self, counts: list[int], size: int, num_ests: int, keeps: int) -> None:
        """Complete ``counts``, which keep ``keeps``, by ``size`` more devices with room for ``num_ests`` more ESTs."""
        index = len(counts)
        self.tries += 1
        if index == len(self.groups):
            found = kept(self.groups, counts, self.num_ests)
            if found > self.most:
                self.best, self.most = counts, found
            return
        group = self.groups[index]
        options = []
        for count in range(min(size, group.size), max(0, size - self.sizes[index + 1]) - 1, -1):
            here, needed = group.keeps(count), num_ests - count * group.room
            # fewer here is more of those with less room: once it is too little, it stays so
            if _most_room(self.groups[index + 1 :], size - count) < needed:
                break
            bound = here + _worth(self.worths[index + 1], size - count) - self.price * needed
            options.append((-floor(keeps + bound + ROUNDING), -count, here))
        for bound, count, here in sorted(options):
            if -bound <= self.most or (self.best and self.tries > MAX_TRIES):
                break
            self.go([*counts, -count], size + count, num_ests + count * group.room, keeps + here)


def _best_price(groups: Sequence[Group], size: int, num_ests: int) -> float:
    """The one with the lowest bound, which falls to it and rises from it."""
    low, high = 0.0, 1.0 + max(batch.ests for group in groups for batch in group.batches)

    def bound(price: float) -> float:
        return _worth(_worths(groups, price), size) - price * num_ests

    for _ in range(PRICE_STEPS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if bound(left) <= bound(right) else (left, high)
    return (low + high) / 2


def _worths(groups: Sequence[Group], price: float) -> list[tuple[float, int]]:
    """What a device is worth and how many are, the most valuable first."""
    worths = [(batch.ests + price * batch.room, batch.devices) for group in groups for batch in group.batches]
    return sorted(worths, reverse=True)


def _worth(worths: Sequence[tuple[float, int]], size: int) -> float:
    total = 0.0
    for worth, devices in worths:
        taken = devices if devices < size else size
        total += taken * worth
        size -= taken
        if not size:
            break
    return total


def _most_room(groups: Sequence[Group], size: int) -> int:
    most = 0
    for group in groups:
        taken = min(size, group.size)
        most += taken * group.room
        size -= taken
    return most
