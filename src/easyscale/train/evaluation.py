"""A loop over a prepared loader where nothing trains: each sample once, on whichever workers. Runs in the worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from easyscale.train.data.loader import ElasticLoader
from easyscale.train.ddp import PlainTurns
from easyscale.train.elastic.mover import Mover
from easyscale.train.elastic.shares import Shares
from easyscale.train.elastic.track import Track
from easyscale.train.process.faults import reach
from easyscale.train.runtime import Observer
from easyscale.train.turns import Turns


class Evaluation:
    """Runs the evaluation loops of a script.

    Attributes:
        mover: None where the membership never changes.
        rank: the virtual rank whose mini-batch is in the script's hands.
        is_closed: whether the session is over.
    """

    def __init__(self, turns: Turns | PlainTurns, track: Track, observer: Observer) -> None:
        self.mover: Mover | None = None
        self.rank: int | None = None
        self.is_closed = False
        self._turns = turns
        self._track = track
        self._observer = observer

    def batches(self, loader: ElasticLoader, epoch: int) -> Iterator[Any]:
        """Mini-batches of the local ESTs; also those of workers that are lost meanwhile."""
        if self._track.begin_loop(is_training=False) is None:
            return
        shares = Shares(self.mover, self._turns)
        try:
            while ranks := shares.next():
                for rank, batch in loader.evaluation(epoch, ranks):
                    self._tell(rank)
                    yield batch
                    reach("evaluation.in_loop")
                self._tell(None)
        except GeneratorExit:
            self._tell(None)
            if not self.is_closed:
                shares.leave()
            raise
        finally:
            self._tell(None)
            self._track.end_loop()

    def _tell(self, rank: int | None) -> None:
        self.rank = rank
        self._observer.turn(rank)
