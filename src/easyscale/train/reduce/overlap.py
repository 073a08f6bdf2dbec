"""Which buckets can go while the last EST's backward still runs. Runs in the worker; sends nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from easyscale.train.reduce.bucket import Bucket


class Overlap:
    """The buckets of one pass in the order in which all workers send them.

    The last one waits for the end of the pass: it carries the flag, which is not known before.

    Args:
        buckets: of all modules that take part.
        expected: how often the last turn accumulates into each parameter, as learned.

    Attributes:
        late: parameters that got another gradient after their bucket was sent.
    """

    def __init__(self, buckets: Sequence[Bucket], expected: Sequence[int]) -> None:
        self.buckets = list(buckets)
        self.late: set[int] = set()
        self._expected = expected
        self._sent = 0
        self._place = {number: place for place, bucket in enumerate(self.buckets) for number in bucket.numbers}
        self._missing = [sum(expected[n] > 0 for n in bucket.numbers) for bucket in self.buckets]

    def arrived(self, number: int, count: int) -> Iterator[Bucket]:
        """Note that the last turn accumulated into a parameter for the ``count``-th time; what can be sent now."""
        place = self._place.get(number)
        if place is None:
            return
        if place < self._sent:
            self.late.add(number)
            return
        if count != self._expected[number]:
            return
        self._missing[place] -= 1
        while self._sent < len(self.buckets) - 1 and self._missing[self._sent] == 0:
            self._sent += 1
            yield self.buckets[self._sent - 1]

    def rest(self) -> Iterator[Bucket]:
        """What was not sent yet."""
        while self._sent < len(self.buckets):
            self._sent += 1
            yield self.buckets[self._sent - 1]
