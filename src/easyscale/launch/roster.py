"""The workers of a job as the job master knows them. Runs in the launcher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Worker:
    """What is known of one worker."""

    number: int
    is_ready: bool = False
    is_leaving: bool = False
    is_gone: bool = False
    has_finished: bool = False

    @property
    def is_there(self) -> bool:
        """Whether it can still do something for the job."""
        return not self.is_gone and not self.has_finished


class Roster:
    """All workers that a job has or had, by number.

    Attributes:
        members: numbers of the workers of the present generation, by rank.
    """

    def __init__(self, members: Iterable[int]) -> None:
        self.members = list(members)
        self._workers = {number: Worker(number) for number in self.members}

    def __getitem__(self, number: int) -> Worker:
        return self._workers[number]

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    @property
    def numbers(self) -> Iterable[int]:
        """Of all workers that ever were."""
        return self._workers.keys()

    @property
    def is_ready(self) -> bool:
        """Whether there are members, and their scripts have all come to their first loop."""
        present = self.present()
        return bool(present) and all(one.is_ready for one in present)

    def add(self) -> int:
        """A new worker, which joins; its number."""
        number = max(self._workers) + 1
        self._workers[number] = Worker(number)
        return number

    def present(self) -> list[Worker]:
        """Members that are there, by rank."""
        return [self._workers[number] for number in self.members if self._workers[number].is_there]

    def joiners(self) -> list[Worker]:
        """Workers that are there to become members."""
        return [one for one in self if one.number not in self.members and one.is_there and not one.is_leaving]
