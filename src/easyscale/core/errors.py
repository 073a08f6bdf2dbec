"""The errors a user can meet. Each message says what was asked, what was found, and what to do next."""

from __future__ import annotations


class EasyScaleError(Exception):
    """Base of all errors that EasyScale raises on purpose."""


class RefusedError(EasyScaleError):
    """The job cannot be proved equal to plain DDP, so it does not run (exit code 2)."""


class PlacementError(RefusedError):
    """A placement that misses, repeats or invents a virtual rank."""


class UsageError(EasyScaleError):
    """A call in the training script that means different things on different placements, or nothing at all."""


class DataError(EasyScaleError):
    """Data could not be loaded, through no fault of the data set's code that Python could tell of."""


class JobFailedError(EasyScaleError):
    """A worker process ended before the script did."""


class PeerLostError(JobFailedError):
    """Another worker cannot be reached any more; the job goes on with those that can."""


class LostCountsError(JobFailedError):
    """A worker was lost with counts that it had not added to the job's yet."""
