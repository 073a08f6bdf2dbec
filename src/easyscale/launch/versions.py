"""What is installed. Apart from ``run``, so that asking for a version loads nothing else."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "easyscale-torch"


def package_version(distribution: str) -> str:
    """What is installed, without importing it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
