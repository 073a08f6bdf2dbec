"""Which epoch an iteration over a loader is: the one set, else the session's, else a count. Runs in the worker."""

from __future__ import annotations

from typing import Any, Protocol

from torch.utils.data import DataLoader, DistributedSampler


class EpochHost(Protocol):
    """Runs the epochs of the script, if it uses ``session.epochs``."""

    @property
    def epoch_in_use(self) -> int | None:
        """The epoch of ``session.epochs``, or None where the script does not use it."""

    @property
    def num_epochs(self) -> int | None:
        """How many of them there are."""


class Epochs:
    """The epochs of one loader.

    Args:
        base: the user's loader.
        sampler: a sampler of the script's own, or None; it may choose its order by the epoch.

    Attributes:
        own: the epoch that the script chose for this loader, or None.
        iterations: how many iterations have begun.
    """

    def __init__(self, base: DataLoader[Any], sampler: Any, host: EpochHost) -> None:
        self.own: int | None = None
        self.iterations = 0
        self._base = base
        self._sampler = sampler
        self._host = host
        self._told = getattr(base.sampler, "epoch", None)
        self._has_distributed = isinstance(base.sampler, DistributedSampler)

    @property
    def has_chosen(self) -> bool:
        """Whether the epoch's number is one that the script chose, here or with ``session.epochs``."""
        return self.coming is not None

    @property
    def coming(self) -> int | None:
        """The epoch that comes next, as far as the script has chosen it."""
        return self._host.epoch_in_use if self.own is None else self.own

    def choose(self, epoch: int) -> None:
        """The script has called ``set_epoch``."""
        self.own = epoch
        self._tell(epoch)

    def next(self) -> int:
        """The epoch of the iteration that starts now."""
        count = self.iterations
        self.iterations += 1
        theirs = getattr(self._base.sampler, "epoch", None)
        if theirs != self._told or (self._has_distributed and self._host.epoch_in_use is None):
            self.own = self._told = theirs  # the script calls set_epoch of a sampler of its own
        if self.own is not None:
            return self.own
        if self._host.epoch_in_use is None:
            return count
        self._tell(self._host.epoch_in_use)
        return self._host.epoch_in_use

    def is_followed(self, epoch: int) -> bool:
        """Whether the epoch after ``epoch`` will be asked for, as far as can be told."""
        return self.own is None and epoch + 1 < (self._host.num_epochs or 0)

    def _tell(self, epoch: int) -> None:
        set_epoch = getattr(self._sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
            self._told = getattr(self._base.sampler, "epoch", None)
