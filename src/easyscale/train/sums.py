"""What all workers work out together outside of steps, also when one of them is lost meanwhile. Runs in the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from easyscale.core.errors import LostCountsError
from easyscale.train.elastic.mover import Mover
from easyscale.train.elastic.standing import RepeatError
from easyscale.train.elastic.track import Track
from easyscale.train.process.faults import reach
from easyscale.train.reduce.channel import Channel
from easyscale.train.totals import job_least, job_sum


class Sums:
    """Sums and least values over the workers of a job.

    Args:
        channel: to the other workers, for ever.

    Attributes:
        mover: None where the membership never changes.
    """

    def __init__(self, channel: Channel | None, track: Track) -> None:
        self.mover: Mover | None = None
        self._channel = channel
        self._track = track

    def total(self, value: Any, num_ests: int) -> Any:
        """``session.sum``; a joiner, whose script is not there yet, is told what the others got.

        Raises:
            LostCountsError: a worker was lost, and what it had counted is lost with it.
        """
        known = self._track.replayed_sum()
        if known is not None:
            return known[0]
        reach("sum.before")
        try:
            result = self._complete(lambda channel: job_sum(value, num_ests, channel))
        except RepeatError as error:
            raise LostCountsError(
                "a worker was lost with counts that it had not added to session.sum yet, and what it counted cannot "
                "be counted again by the others: resume from a checkpoint"
            ) from error
        reach("sum.after")
        self._track.note_sum(result)
        return result

    def least(self, count: int) -> int:
        """The least of what all workers say.

        Raises:
            RepeatError: a worker was lost before everyone knew.
        """
        least: int = self._complete(lambda channel: job_least(count, channel))
        return least

    def _complete(self, work: Callable[[Channel | None], Any]) -> Any:
        return work(self._channel) if self.mover is None else self.mover.complete(work)
