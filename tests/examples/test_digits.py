"""examples/digits.py learns, and its result does not depend on how it is started."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .conftest import ROOT

DIGITS = ROOT / "examples" / "digits.py"

pytestmark = pytest.mark.slow


def accuracies(output: str) -> list[float]:
    return [float(percent) for percent in re.findall(r"^test accuracy (.*)%$", output, flags=re.MULTILINE)]


def test_four_ests_on_two_workers_reach_97_percent(easyscale_run: Any) -> None:
    [accuracy] = accuracies(easyscale_run("--ests", 4, "--workers", 2, DIGITS).output)
    assert accuracy > 97


def test_both_forms_on_any_placement_train_the_same_model(easyscale_run: Any) -> None:
    runs = [
        easyscale_run("--ests", 4, "--workers", 1, DIGITS, "--epochs", 1),
        easyscale_run("--placement", "3,0|2|1", DIGITS, "--epochs", 1),
        easyscale_run("--ests", 4, "--workers", 2, DIGITS, "--epochs", 1, "--drop-in"),
    ]
    assert len({run.digest for run in runs}) == 1
    assert {run.global_steps for run in runs} == {23}


def test_it_runs_as_a_plain_script_without_a_warning(python: Any) -> None:
    assert len(accuracies(python("-W", "error::UserWarning", DIGITS, "--epochs", 1))) == 1


def test_under_torchrun_one_worker_speaks_for_the_job(python: Any) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    assert len(accuracies(python(*torchrun, DIGITS, "--epochs", 1))) == 1
