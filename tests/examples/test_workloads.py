"""The paper's eight workloads give DDP's bits on any number of workers, and the losses of their plain DDP twins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT

WORKLOADS = ROOT / "examples" / "workloads"
NAMES = ("shufflenetv2", "resnet50", "vgg19", "yolov3", "neumf", "bert", "electra", "swin")
STEPS = 4
VERIFY = ("verify", "--ests", 4, "--workers", "4,2,1,3", "--rescale", "1:2,2:3", "--against", "ddp", "--json")
RUNS = 6

pytestmark = pytest.mark.slow


def batch_size(name: str) -> int:
    return {"neumf": 256, "yolov3": 2}.get(name, 4)


@pytest.mark.parametrize("name", NAMES)
def test_every_placement_and_the_three_stages_give_the_bits_of_ddp(name: str, python: Any, tmp_path: Path) -> None:
    """One call: DDP, 4, 2, 1 and 3 workers, and one run on 4, then 2, then 3 (2, 1 and 1 ESTs)."""
    ours, twins = tmp_path / "ours", tmp_path / "twins"
    samples = ("--samples", 4 * STEPS * batch_size(name))
    found = json.loads(python("-m", "easyscale", *VERIFY, WORKLOADS / f"{name}.py", *samples, "--losses", ours))
    assert found["equal"] is True
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 4)
    python(*torchrun, WORKLOADS / f"{name}_ddp.py", *samples, "--losses", twins)
    expected = twins.read_text().splitlines()
    assert len(set(expected)) == STEPS
    assert ours.read_text().splitlines() == RUNS * expected
