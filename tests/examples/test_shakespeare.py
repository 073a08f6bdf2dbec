"""examples/shakespeare.py learns, and its result does not depend on how it is started."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .conftest import ROOT

SHAKESPEARE = ROOT / "examples" / "shakespeare.py"
SMALL = ("--plays", "macbeth", "--epochs", 1, "--context", 32, "--width", 32, "--depth", 1, "--write", 20)

pytestmark = pytest.mark.slow


def validation_losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"validation loss ([\d.]+)", output)]


def test_every_placement_trains_the_same_model(easyscale_run: Any) -> None:
    one = easyscale_run("--ests", 4, "--workers", 1, SHAKESPEARE, *SMALL)
    uneven = easyscale_run("--placement", "0,1,2|3", SHAKESPEARE, *SMALL)
    assert one.digest == uneven.digest
    assert one.output == uneven.output


def test_it_learns_as_a_plain_script(python: Any) -> None:
    """Characters by their frequency alone have an entropy of about 3.3 nats."""
    [loss] = validation_losses(python(SHAKESPEARE, *SMALL))
    assert loss < 2.9


def test_an_unknown_play_is_refused_with_the_names_there_are(python: Any) -> None:
    with pytest.raises(AssertionError, match=r"no play is called macbet: choose from .*macbeth"):
        python(SHAKESPEARE, "--plays", "macbet")
