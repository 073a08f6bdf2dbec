"""Tensors of any dtype, shape and sharing come back bit for bit, and others can read the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.checkpoint.states import FACTS, bits, is_same, tensor
from torch import Tensor

from easyscale.core.errors import RefusedError
from easyscale.train.checkpoint.manifest import TENSORS_NAME
from easyscale.train.checkpoint.read import load
from easyscale.train.checkpoint.state import Checkpoint, JobState
from easyscale.train.checkpoint.store import CheckpointStore

DTYPES = sorted({dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}, key=str)
DTYPES = [dtype for dtype in DTYPES if not str(dtype).startswith(("torch.q", "torch.bits"))]


def saved(folder: Path, **tensors: Tensor) -> Checkpoint:
    with CheckpointStore(folder) as store:
        result = store.save(JobState(FACTS, 1, tensors))
    assert result.path is not None, result.reason
    return load(result.path, check_sha256=True)


def save_and_load(folder: Path, **tensors: Tensor) -> dict[str, Tensor]:
    return dict(saved(folder, **tensors).state.tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype_keeps_its_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    given = {"odd": tensor(5, 3, dtype=dtype), "byte": tensor(3, dtype=torch.uint8), "none": tensor(0, 2, dtype=dtype)}
    given["turned"] = given["odd"].t()
    given["alone"] = tensor(dtype=dtype)
    assert is_same(save_and_load(tmp_path, **given), given)


@pytest.mark.parametrize("is_mapped", [True, False])
def test_a_file_of_several_pieces_comes_back_the_same(is_mapped: bool, tmp_path: Path) -> None:
    given = {f"t{number}": tensor(1000, 331 + number, seed=number) for number in range(7)}
    path = saved(tmp_path, **given).path
    assert is_same(dict(load(path, is_mapped=is_mapped).state.tensors), given)


def test_nothing_at_all_comes_back_as_nothing(tmp_path: Path) -> None:
    assert save_and_load(tmp_path) == {}


def test_what_is_written_to_a_loaded_tensor_does_not_reach_the_file(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, weight=tensor(2000, seed=1))
    checkpoint.state.tensors["weight"].zero_()
    assert bits(load(checkpoint.path).state.tensors["weight"]) == bits(tensor(2000, seed=1))


def test_tied_weights_are_stored_once_and_tied_again(tmp_path: Path) -> None:
    weight = tensor(1000, 10)
    checkpoint = saved(tmp_path, embed=weight, head=weight, other=weight.view(1000, 10))
    found = checkpoint.state.tensors
    assert (checkpoint.path / TENSORS_NAME).stat().st_size < 1.1 * weight.numel() * 4
    found["embed"].fill_(3)
    assert found["head"].eq(3).all()
    assert found["other"].eq(3).all()


def test_a_tensor_tied_to_one_in_the_registered_objects_is_tied_again(tmp_path: Path) -> None:
    weight = tensor(4)
    with CheckpointStore(tmp_path) as store:
        path = store.save(JobState(FACTS, 1, {"weight": weight}, {"registered": {"teacher": weight}})).path
    assert path is not None
    state = load(path).state
    assert state.meta["registered"]["teacher"].data_ptr() == state.tensors["weight"].data_ptr()


def test_views_that_overlap_overlap_again(tmp_path: Path) -> None:
    flat = tensor(100, dtype=torch.float64)
    given = {
        "flat": flat,
        "part": flat[3:40],
        "column": flat.view(10, 10)[:, 4],
        "bytes": flat.view(torch.uint8)[9:17],
        "reversed": flat.view(10, 10).t(),
    }
    found = save_and_load(tmp_path, **given)
    assert is_same(found, given)
    found["flat"][34] = 5.0
    assert (found["part"][31], found["column"][3], found["reversed"][4, 3]) == (5, 5, 5)
    assert {name: t.stride() for name, t in found.items()} == {name: t.stride() for name, t in given.items()}


def test_neighbours_in_one_storage_are_no_relatives(tmp_path: Path) -> None:
    huge = torch.zeros(1_000_000)
    checkpoint = saved(tmp_path, first=huge[:10], last=huge[-10:])
    assert (checkpoint.path / TENSORS_NAME).stat().st_size < 1000


@pytest.mark.parametrize("name", ["channels_last", "transposed"])
def test_an_order_in_memory_is_kept(name: str, tmp_path: Path) -> None:
    given = {
        "channels_last": tensor(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "transposed": tensor(6, 7).t(),
    }[name]
    found = save_and_load(tmp_path, one=given, tied=given)
    assert is_same(found, {"one": given, "tied": given})
    assert found["one"].stride() == given.stride()
    assert found["one"].data_ptr() == found["tied"].data_ptr()


def test_slices_and_expanded_tensors_come_back_dense(tmp_path: Path) -> None:
    given = {"slice": tensor(6, 8)[::2, ::3], "expanded": tensor(1, 3, seed=2).expand(4, 3)}
    found = save_and_load(tmp_path, **given)
    assert is_same(found, given)
    assert all(value.is_contiguous() for value in found.values())


def test_conjugated_and_negated_views_come_back_as_values(tmp_path: Path) -> None:
    given = {"conjugated": tensor(4, dtype=torch.complex64).conj(), "negated": torch._neg_view(torch.ones(3))}
    assert is_same(save_and_load(tmp_path, **given), given)


def test_a_loaded_state_can_be_saved_again_and_is_the_same(tmp_path: Path) -> None:
    weight = tensor(50)
    given = {"weight": weight, "tied": weight, "part": weight[3:9], "complex": tensor(3, dtype=torch.complex64)}
    first = saved(tmp_path, **given)
    second = saved(tmp_path, **first.state.tensors)
    assert second.sha256_by_name == first.sha256_by_name
    assert is_same(dict(second.state.tensors), given)


def test_the_library_of_safetensors_reads_the_file(tmp_path: Path) -> None:
    given = {"a.weight": tensor(3, 4), "b": tensor(5, dtype=torch.bfloat16), "c": tensor(1, dtype=torch.bool)}
    path = saved(tmp_path, **given, z=tensor(2, dtype=torch.complex64), none=torch.empty(0, 3)).path
    found = load_file(path / TENSORS_NAME)
    assert is_same({name: found[name] for name in given}, given)
    assert found["z"].shape == (2, 2)
    assert found["none"].shape == (0, 3)


def test_a_gradient_tensor_is_kept_by_its_values(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(tensor(3))
    assert bits(save_and_load(tmp_path, weight=weight, twice=weight * 2)["weight"]) == bits(weight)


class Marked(Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.eye(3).to_sparse(), "'weight' is sparse"),
        (torch.empty(3, device="meta"), "'weight' is on the device 'meta'"),
        (torch.ones(3).as_subclass(Marked), "'weight' is a Marked"),
        (torch.nn.UninitializedParameter(), "'weight' is a UninitializedParameter"),
    ],
    ids=["sparse", "meta", "subclass", "lazy"],
)
def test_what_is_no_dense_tensor_is_refused_by_name(value: Tensor, said: str, tmp_path: Path) -> None:
    state = JobState(FACTS, 1, {"weight": value})
    with CheckpointStore(tmp_path) as store:
        with pytest.raises(RefusedError, match=said):
            store.check(state)
        with pytest.raises(RefusedError, match=said):
            store.save(state)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("name", ["__metadata__", "line\nbreak", "half\ud83d"])
def test_a_name_that_the_format_does_not_allow_is_refused(name: str, tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store, pytest.raises(RefusedError, match="does not allow"):
        store.save(JobState(FACTS, 1, {name: torch.ones(1)}))


def test_names_that_look_like_ours_stay_apart(tmp_path: Path) -> None:
    shared = tensor(6)
    tensors = {"meta['x']": tensor(2, seed=1), "a": shared, "b": shared[1:3], "a + b": tensor(3, seed=2)}
    with CheckpointStore(tmp_path) as store:
        path = store.save(JobState(FACTS, 1, tensors, {"x": tensor(2, seed=3)})).path
    assert path is not None
    state = load(path).state
    assert is_same(dict(state.tensors), tensors)
    assert is_same(state.meta["x"], tensor(2, seed=3))
