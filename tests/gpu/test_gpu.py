"""The same on CUDA devices. Skips, saying so, where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import easyscale

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.draws_random_numbers,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, found none"),
]


def train(num_ests: int, overrides: dict[str, str]) -> list[str]:
    from easyscale.core.placement import Placement
    from easyscale.train import runtime

    runtime.install(runtime.WorkerContext(placement=Placement.even(num_ests, 1), overrides=overrides))
    try:
        with easyscale.session(seed=0) as session:
            model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(), nn.BatchNorm1d(64), nn.Linear(64, 4)).to(
                session.device
            )
            model, optimizer = session.prepare(model, torch.optim.AdamW(model.parameters()))
            digests = []
            for step in session.steps(5):
                for _ in step:
                    model(torch.randn(8, 64, device=session.device)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                digests.append(session.digest())
            return digests
    finally:
        runtime.install(None)


def test_a_run_repeats() -> None:
    assert train(4, {}) == train(4, {})


def test_staging_on_the_host_changes_no_bit() -> None:
    assert train(5, {"stage": "host"}) == train(5, {"stage": "device"})
