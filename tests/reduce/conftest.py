"""Fixtures of the reduction tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consistency.fleet import Fleet


@pytest.fixture(scope="session")
def gloo_fleet() -> Iterator[Fleet]:
    """Processes that use gloo and nothing of EasyScale."""
    fleet = Fleet()
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.close()
