"""The mini-batches of the step that comes, read from streams of which nobody knows the length. Runs in the worker."""

from __future__ import annotations

from collections.abc import Callable

from easyscale.core.errors import DataError
from easyscale.train.data.pulling import Pulled

Agree = Callable[[int], int]
"""The least of what all workers say."""


class Ahead:
    """Mini-batches of the step that comes: whether all ESTs have theirs is known only when they are there.

    Args:
        read: the next mini-batch of a virtual rank; None at the end of its stream.
        agree: the least of what all workers say.
    """

    def __init__(self, ranks: tuple[int, ...], read: Callable[[int, int], Pulled], agree: Agree) -> None:
        self._ranks = ranks
        self._read = read
        self._agree = agree
        self._is_over = False
        self._ready: dict[tuple[int, int], Pulled] = {}

    def load(self, first: int, most: int) -> range:
        """Numbers of the mini-batches that every EST of the job has, ``most`` at most."""
        self._ready.clear()
        if self._is_over:
            return range(first, first)
        count = 0
        for number in range(first, first + most):
            pulled = {rank: self._read(rank, number) for rank in self._ranks}
            if any(one.is_over for one in pulled.values()):
                break
            self._ready.update({(rank, number): one for rank, one in pulled.items()})
            count += 1
        count = self._agree(count)
        self._is_over = count < most
        return range(first, first + count)

    def load_again(self, numbers: range, most: int) -> None:
        """Mini-batches that every EST is known to have, ``most`` at most.

        Raises:
            DataError: one that was there before is not there now.
        """
        self._is_over = len(numbers) < most
        for number in numbers:
            for rank in self._ranks:
                self._ready[rank, number] = self._read(rank, number)
        gone = [place for place, one in self._ready.items() if one.is_over]
        if gone:
            raise DataError(
                f"the stream of virtual rank {gone[0][0]} had a mini-batch {gone[0][1]}, but not when it was read "
                "again after a worker was lost: let load_state_dict bring it to where its state_dict was taken"
            )

    def get(self, virtual_rank: int, number: int) -> Pulled:
        """One of them.

        Raises:
            DataError: it was read by a worker that is lost, in an earlier pass over the step.
        """
        try:
            return self._ready[virtual_rank, number]
        except KeyError:
            raise DataError(
                f"mini-batch {number} of virtual rank {virtual_rank} is gone with a worker that was lost in another "
                "pass over the same step, and a stream cannot be read again: resume from a checkpoint"
            ) from None
