"""Training that goes on from a checkpoint has the bits of training that never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.states import FACTS
from torch import nn

from easyscale.train.checkpoint.read import find_newest
from easyscale.train.checkpoint.state import JobState
from easyscale.train.checkpoint.store import CheckpointStore
from easyscale.train.digest import fingerprint_of, state_of


class Training:
    """Dropout, BatchNorm, AdamW with its lazily made state, a scheduler and a GradScaler."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 8), nn.Linear(8, 2)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=40)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)

    def step(self) -> dict[str, str]:
        loss = self.model(torch.randn(4, 6)).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return fingerprint_of(state_of([self.model], [self.optimizer]))

    def state(self, step: int) -> JobState:
        meta: dict[str, Any] = {name: getattr(self, name).state_dict() for name in ("optimizer", "scheduler", "scaler")}
        return JobState(FACTS, step, self.model.state_dict(), {**meta, "rng": torch.get_rng_state()})

    def put(self, state: JobState) -> None:
        self.model.load_state_dict(dict(state.tensors))
        for name in ("optimizer", "scheduler", "scaler"):
            getattr(self, name).load_state_dict(state.meta[name])
        torch.set_rng_state(state.meta["rng"])


@pytest.mark.draws_random_numbers
def test_a_resumed_training_has_the_bits_of_one_that_never_stopped(tmp_path: Path) -> None:
    steady = Training()
    prints = [steady.step() for _ in range(12)]
    stopped = Training()
    with CheckpointStore(tmp_path, keep=1) as store:
        for step in range(7):
            stopped.step()
            assert store.save_async(stopped.state(step + 1)) or store.wait()
        store.save(stopped.state(7))
    found = find_newest(tmp_path)
    assert found is not None
    resumed = Training()
    torch.manual_seed(99)
    resumed.put(found.checkpoint.state)
    assert [resumed.step() for _ in range(5)] == prints[7:]
    assert resumed.scaler.state_dict() == steady.scaler.state_dict()
