"""Who evaluates which ESTs' samples, also when a worker is lost in the loop. Runs in the worker.

What a worker has counted in an evaluation dies with it, so the others go through its samples too before any of them
leaves the loop.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from easyscale.train.ddp import PlainTurns
from easyscale.train.elastic.mover import Mover
from easyscale.train.elastic.standing import RepeatError
from easyscale.train.reduce.channel import Channel
from easyscale.train.turns import Turns


class Shares:
    """The virtual ranks whose samples this worker goes through in one evaluation.

    Args:
        mover: None where the membership never changes.
        turns: of this worker.
    """

    def __init__(self, mover: Mover | None, turns: Turns | PlainTurns) -> None:
        self._mover = mover
        self._turns = turns
        self._done: list[int] = []
        self._is_begun = False

    def next(self) -> tuple[int, ...]:
        """Virtual ranks to go through now; none when those of all workers are done."""
        if not self._is_begun:
            self._is_begun = True
            self._done += self._turns.ranks
            return self._turns.ranks
        if self._mover is None:
            return ()
        while True:
            done = self._exchange(self._mover, self._done)
            if done is None:
                continue
            if len(done) == self._mover.num_ests:
                return ()
            own = tuple(rank for rank in self._turns.ranks if rank not in done)
            if own:
                self._done += own
                return own

    def leave(self) -> None:
        """The script has left the loop early: nobody needs to go through what is left."""
        if self._mover is None:
            return
        while self._exchange(self._mover, range(self._mover.num_ests)) is None:
            continue

    def _exchange(self, mover: Mover, mine: Iterable[int]) -> set[int] | None:
        """What all workers together have done; None if one was lost meanwhile."""
        data = json.dumps(list(mine)).encode()

        def gather(channel: Channel | None) -> list[bytes]:
            return [data] if channel is None else list(channel.call(lambda: channel.gather_bytes(data)))

        try:
            given = mover.complete(gather)
        except RepeatError:
            mover.settle()
            return None
        mover.settle()
        return {rank for one in given for rank in json.loads(one)}
