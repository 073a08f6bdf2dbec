"""Tensors travel to and from a plain state_dict, safetensors and torch.distributed.checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoint.states import FACTS, is_same, tensor

from easyscale.core.errors import RefusedError
from easyscale.train.checkpoint.interop import export_dcp, export_state_dict, import_dcp, import_state_dict
from easyscale.train.checkpoint.manifest import TENSORS_NAME
from easyscale.train.checkpoint.read import load
from easyscale.train.checkpoint.state import Checkpoint, JobState
from easyscale.train.checkpoint.store import CheckpointStore


def model() -> torch.nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        made = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    made[2].weight = made[0].weight
    return made


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    tensors = {f"module0.{name}": value for name, value in model().state_dict().items()}
    tensors["optimizer0.exp_avg"] = tensor(3)
    with CheckpointStore(tmp_path / "checkpoints") as store:
        path = store.save(JobState(FACTS, 9, tensors)).path
    assert path is not None
    return load(path)


def test_an_exported_state_dict_loads_as_pytorch_loads_it(checkpoint: Checkpoint, tmp_path: Path) -> None:
    names = export_state_dict(checkpoint, tmp_path / "model.pt", prefix="module0.")
    assert "optimizer0.exp_avg" not in names
    found = torch.load(tmp_path / "model.pt", weights_only=True)
    assert is_same(found, dict(model().state_dict()))
    assert found["0.weight"].data_ptr() == found["2.weight"].data_ptr()
    model().load_state_dict(found)
    assert (tmp_path / "model.pt").stat().st_size < 10_000


def test_a_state_dict_is_imported_as_it_was_saved(tmp_path: Path) -> None:
    state = model().state_dict()
    torch.save(state, tmp_path / "model.pt")
    found = import_state_dict(tmp_path / "model.pt", prefix="module0.")
    assert is_same(found, {f"module0.{name}": value for name, value in state.items()})


def test_a_safetensors_file_is_imported(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_file({"w": tensor(3, 2)}, tmp_path / "w.safetensors")
    assert is_same(import_state_dict(tmp_path / "w.safetensors"), {"w": tensor(3, 2)})
    assert "module0.0.weight" in import_state_dict(checkpoint.path / TENSORS_NAME)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.remove, ("victim",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (Evil(), "no state_dict of tensors alone"),
        ({"epoch": 3, "w": torch.ones(1)}, "a int under 'epoch'"),
        ([torch.ones(1)], "holds a list"),
        ({}, "holds a dict"),
    ],
    ids=["code", "number", "list", "empty"],
)
def test_what_is_no_state_dict_is_refused(content: object, said: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(RefusedError, match=said):
        import_state_dict(tmp_path / "other.pt")


@pytest.mark.parametrize("name", ["torn.pt", "torn.safetensors"])
def test_a_torn_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(RefusedError, match=f"{name} is no state_dict"):
        import_state_dict(tmp_path / name)
    with pytest.raises(RefusedError, match="cannot be read"):
        import_state_dict(tmp_path / f"no-{name}")


def test_a_prefix_that_nothing_has_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for export in (export_state_dict, export_dcp):
        with pytest.raises(RefusedError, match=r"no tensor whose name begins with 'model\."):
            export(checkpoint, tmp_path / "out", prefix="model.")


def test_a_place_that_cannot_be_written_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="cannot be written"):
        export_state_dict(checkpoint, tmp_path / "missing" / "model.pt")


@pytest.mark.slow
def test_tensors_go_through_torch_distributed_checkpoint_and_back(checkpoint: Checkpoint, tmp_path: Path) -> None:
    export_dcp(checkpoint, tmp_path / "dcp", prefix="module0.")
    assert is_same(import_dcp(tmp_path / "dcp"), dict(model().state_dict()))
    with pytest.raises(RefusedError, match="not empty"):
        export_dcp(checkpoint, tmp_path / "dcp")
    with pytest.raises(RefusedError, match=r"has no \.metadata"):
        import_dcp(tmp_path)
