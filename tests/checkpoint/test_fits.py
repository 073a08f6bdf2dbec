"""A job goes on from a checkpoint of the same job only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.states import FACTS, job_state

from easyscale.core.errors import RefusedError
from easyscale.core.job import JobSpec
from easyscale.train.checkpoint.fits import check_fits
from easyscale.train.checkpoint.read import load
from easyscale.train.checkpoint.state import Checkpoint, JobFacts
from easyscale.train.checkpoint.store import CheckpointStore


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    with CheckpointStore(tmp_path) as store:
        path = store.save(job_state(5)).path
    assert path is not None
    return load(path)


def test_the_same_job_goes_on_without_a_word(checkpoint: Checkpoint) -> None:
    assert check_fits(checkpoint, FACTS) == []
    assert check_fits(checkpoint, replace(FACTS, bucket_layout=(((1, 0), (2,)),))) == []


def test_a_layout_that_is_not_decided_yet_will_be_the_checkpoints(checkpoint: Checkpoint) -> None:
    assert check_fits(checkpoint, replace(FACTS, bucket_layout=None)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_ests": 8}, "num_ests=4 and not 8.*--ests 4"),
        ({"seed": 8}, "seed=7 and not 8.*--seed 7"),
        ({"rng": "ddp"}, "rng='stepwise' and not 'ddp'.*--rng stepwise"),
        ({"reduction": "ring"}, "reduction='tree' and not 'ring'.*--reduction tree"),
        ({"determinism": "D0"}, "determinism='D1' and not 'D0'"),
        ({"threads": 2}, "threads=1 and not 2.*--threads 1"),
        ({"device_kind": "V100"}, "device_kind='cpu' and not 'V100'.*run it on cpu"),
        ({"bucket_layout": [[[0, 1], [2]]]}, "another bucket_layout"),
        ({"torch_version": "1.0"}, "torch_version='2.*' and not '1.0'.*allow the other one"),
        ({"seed": 8, "num_ests": 1}, "num_ests=4 and not 1, seed=7 and not 8"),
    ],
    ids=str,
)
def test_another_job_is_refused_with_what_differs(change: dict[str, Any], said: str, checkpoint: Checkpoint) -> None:
    with pytest.raises(RefusedError, match=f"{checkpoint.path.name} is of a job with .*{said}"):
        check_fits(checkpoint, replace(FACTS, **change))


def test_another_torch_goes_on_only_when_allowed_and_says_so(checkpoint: Checkpoint) -> None:
    other = replace(FACTS, torch_version="9.9")
    (note,) = check_fits(checkpoint, other, allow_other_torch=True)
    assert "goes on under 9.9" in note
    assert "no longer promised" in note
    with pytest.raises(RefusedError, match="seed"):
        check_fits(checkpoint, replace(other, seed=1), allow_other_torch=True)


def test_facts_are_those_of_the_job(checkpoint: Checkpoint) -> None:
    assert JobFacts.of(JobSpec(num_ests=4, seed=7), bucket_layout=FACTS.bucket_layout) == FACTS
