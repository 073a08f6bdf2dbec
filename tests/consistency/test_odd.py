"""What is seldom done, and once gave other bits."""

from __future__ import annotations

import pytest

from consistency.compare import assert_same_run
from consistency.conftest import Jobs
from consistency.odd import SCRIPTS


@pytest.mark.parametrize("case", SCRIPTS)
@pytest.mark.parametrize("placement", ["0,1,2", "0,1|2", "2,0|1"])
def test_placements_agree(jobs: Jobs, placement: str, case: str) -> None:
    assert_same_run(jobs.run(placement, case), jobs.reference(3, case), f"{case} on {placement}")
