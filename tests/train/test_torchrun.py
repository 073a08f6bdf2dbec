"""Under torchrun each process is a worker; plain ``python`` is one worker. The same bits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import easyscale, torch
from torch import nn

session = easyscale.session(seed=0, num_ests=4)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
model, optimizer = session.prepare(model, torch.optim.AdamW(model.parameters()))
for step in session.steps(5):
    for _ in step:
        model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
if session.is_main:
    print("digest", session.digest(), session.num_ests, flush=True)
session.close()
"""


def digest_of(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # must not matter
    run = subprocess.run(
        [sys.executable, *command, "train.py"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    (found,) = re.findall(r"digest (\w+) 4", run.stdout)
    return found


@pytest.mark.slow
def test_torchrun_and_plain_python_give_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    alone = digest_of([], tmp_path)
    assert digest_of([*torchrun, "--nproc-per-node", "2"], tmp_path) == alone
    assert digest_of([*torchrun, "--nproc-per-node", "3"], tmp_path) == alone
