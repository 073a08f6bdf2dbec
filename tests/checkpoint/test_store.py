"""Saving while training goes on: what is kept, what is removed, and what happens when the disk does not play along."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.states import FACTS, is_same_state, job_state, tensor

from easyscale.core.errors import RefusedError
from easyscale.train.checkpoint import write
from easyscale.train.checkpoint.read import find_newest, load
from easyscale.train.checkpoint.state import JobState
from easyscale.train.checkpoint.store import CheckpointStore


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


class Gate:
    """Stops the writing thread at one point until it is opened."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._reached, self._opened = threading.Event(), threading.Event()

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._reached.set()
            assert self._opened.wait(30)

    def wait(self) -> None:
        assert self._reached.wait(30)

    def open(self) -> None:
        self._opened.set()


def test_what_is_saved_is_found_again(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "new" / "folder") as store:
        result = store.save(job_state(120))
        found = store.newest()
    assert result.is_saved
    assert result.reason is None
    assert result.path == tmp_path / "new" / "folder" / "step-00000120"
    assert found is not None
    assert found.skipped == ()
    assert is_same_state(found.checkpoint.state, job_state(120))
    assert found.checkpoint.versions["torch"] == torch.__version__


def test_every_point_is_passed_in_order(tmp_path: Path) -> None:
    passed: list[str] = []
    with CheckpointStore(tmp_path, keep=1, hook=passed.append) as store:
        store.save(job_state(1))
        passed.clear()
        store.save(job_state(2))
    assert passed == list(write.POINTS)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    gate = Gate("checkpoint.during_write")
    weight, bias = tensor(1000), tensor(3, 5)
    with CheckpointStore(tmp_path, hook=gate) as store:
        assert store.save_async(JobState(FACTS, 1, {"weight": weight, "bias": bias.t()}))
        gate.wait()
        weight.zero_()
        bias.zero_()
        assert store.is_busy
        gate.open()
        (result,) = store.wait()
        assert not store.is_busy
    assert result.path is not None
    found = load(result.path).state.tensors
    assert torch.equal(found["weight"].view(torch.int32), tensor(1000).view(torch.int32))
    assert torch.equal(found["bias"].view(torch.int32), tensor(3, 5).t().view(torch.int32))


def test_a_save_that_is_due_while_another_is_written_is_skipped(tmp_path: Path) -> None:
    gate = Gate("checkpoint.during_write")
    with CheckpointStore(tmp_path, hook=gate) as store:
        assert store.save_async(job_state(1))
        gate.wait()
        assert not store.save_async(job_state(2))
        gate.open()
        assert [result.global_step for result in store.wait()] == [1]
        assert store.save_async(job_state(3))
        assert [result.global_step for result in store.wait()] == [3]
        assert store.finished() == []
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_a_save_that_was_asked_for_waits_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate("checkpoint.during_write")
    with CheckpointStore(tmp_path, hook=gate) as store:
        store.save_async(job_state(1))
        gate.wait()
        join = store._join
        monkeypatch.setattr(store, "_join", lambda: (gate.open(), join()))
        assert store.save(job_state(2)).is_saved
        assert [result.global_step for result in store.finished()] == [1]
    assert is_same_state(load(tmp_path / "step-00000001").state, job_state(1))
    assert is_same_state(load(tmp_path / "step-00000002").state, job_state(2))


def test_memory_of_the_host_is_used_again(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        addresses = set()
        for step in range(4):
            store.save(job_state(step))
            addresses.add(store._buffer._bytes.data_ptr())
        assert len(addresses) == 1
        store.save(job_state(5, size=100_000))
        store.save(job_state(6))
        assert store._buffer._bytes.numel() < 10_000
    assert is_same_state(load(tmp_path / "step-00000005").state, job_state(5, size=100_000))


def test_the_newest_are_kept(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, keep=2) as store:
        for step in range(5):
            store.save(job_state(step))
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


def test_all_are_kept_on_request(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, keep=None) as store:
        for step in range(5):
            store.save(job_state(step))
    assert len(names(tmp_path)) == 5


def test_no_checkpoint_at_all_is_no_number_to_keep(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="keep is 0"):
        CheckpointStore(tmp_path, keep=0)


def test_the_newest_whole_one_is_never_removed(tmp_path: Path) -> None:
    """Even when all that are newer by their step are damaged."""
    with CheckpointStore(tmp_path, keep=1) as store:
        store.save(job_state(30))
        (tmp_path / "step-00000030" / "tensors.safetensors").write_bytes(b"torn")
        store.save(job_state(20))
        found = store.newest()
    assert found is not None
    assert found.checkpoint.path == tmp_path / "step-00000020"
    assert names(tmp_path) == ["step-00000020"]


def test_the_last_saved_is_the_newest_also_after_going_back(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, keep=3) as store:
        for step in (10, 20, 30, 15):
            store.save(job_state(step))
        found = store.newest()
    assert found is not None
    assert found.checkpoint.state.global_step == 15
    assert names(tmp_path) == ["step-00000015", "step-00000020", "step-00000030"]


def test_a_step_may_be_saved_again(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        first, second = store.save(job_state(7)), store.save(job_state(7))
        found = store.newest()
    assert first.path != second.path
    assert found is not None
    assert found.checkpoint.path == second.path == tmp_path / "step-00000007-2"


def test_removal_does_not_touch_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with CheckpointStore(tmp_path, keep=1) as store:
        for step in range(3):
            store.save(job_state(step))
    assert names(tmp_path) == ["notes.txt", "step-00000002"]


def test_what_a_dead_writer_left_is_cleared_away(tmp_path: Path) -> None:
    for left in (".partial-step-00000001", ".removed-step-00000000"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "tensors.safetensors").touch()
    with CheckpointStore(tmp_path) as store:
        assert find_newest(tmp_path) is None
        store.claim()
        assert names(tmp_path) == []


def full(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["os.write", "os.fsync", "pathlib.Path.rename", "pathlib.Path.mkdir"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_full_disk_is_told_and_training_goes_on(
    call: str, is_async: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointStore(tmp_path) as store:
        store.save(job_state(1))
        with monkeypatch.context() as patch:
            patch.setattr(call, full)
            if is_async:
                assert store.save_async(job_state(2))
                (result,) = store.wait()
            else:
                result = store.save(job_state(2))
        assert not result.is_saved
        assert result.reason == (
            f"the checkpoint of step 2 was not written to {tmp_path} (No space left on device): training goes on, and "
            f"earlier checkpoints are as they were"
        )
        assert names(tmp_path) == ["step-00000001"]
        assert store.save(job_state(3)).is_saved


@pytest.mark.slow
def test_a_file_that_may_not_grow_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    code = f"""
import resource, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.checkpoint.states import job_state
from easyscale.train.checkpoint.store import CheckpointStore
with CheckpointStore({str(tmp_path)!r}) as store:
    store.save(job_state(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    store.save_async(job_state(2, size=100_000))
    print(store.wait()[0].reason)
    print(store.save(job_state(3)).path.name)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = run.stdout.splitlines()
    assert "was not written" in first
    assert "(File too large)" in first
    assert second == "step-00000003"
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_a_mistake_in_writing_does_not_end_training_either(tmp_path: Path) -> None:
    def broken(point: str) -> None:
        if point == "checkpoint.before_manifest":
            raise ZeroDivisionError("by mistake")

    with CheckpointStore(tmp_path, hook=broken) as store:
        assert "by mistake" in str(store.save(job_state(1)).reason)
    assert names(tmp_path) == []


def test_a_folder_that_went_away_is_told_and_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with CheckpointStore(folder) as store:
        store.save(job_state(1))
        shutil.rmtree(folder)
        assert "removed or replaced" in str(store.save(job_state(2)).reason)
        assert "No such file or directory" in str(store.save(job_state(3)).reason)
        assert not folder.exists()
        folder.mkdir()
        assert store.save(job_state(4)).is_saved


def test_a_folder_in_the_place_of_the_one_that_was_claimed_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with CheckpointStore(folder) as store:
        store.save(job_state(1))
        folder.rename(tmp_path / "elsewhere")
        with CheckpointStore(folder) as other:
            other.claim()
            assert "removed or replaced" in str(store.save(job_state(2)).reason)
            assert "being written by process" in str(store.save(job_state(3)).reason)
        assert names(folder) == []


def test_a_folder_that_cannot_be_made_is_refused_when_claimed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with CheckpointStore(tmp_path / "file" / "folder") as store:
        with pytest.raises(RefusedError, match="cannot be made"):
            store.claim()
        assert "cannot be made" in str(store.save(job_state(1)).reason)


def test_old_ones_that_cannot_be_removed_are_told(tmp_path: Path) -> None:
    def fail(point: str) -> None:
        if point == "checkpoint.during_removal":
            full()

    with CheckpointStore(tmp_path, keep=1, hook=fail) as store:
        store.save(job_state(1))
        result = store.save(job_state(2))
    assert result.is_saved
    assert "could not be removed (No space left on device)" in str(result.reason)
    assert is_same_state(load(tmp_path / "step-00000002").state, job_state(2))


@pytest.mark.slow
def test_a_process_that_ends_finishes_what_is_being_written(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.checkpoint.states import job_state
from easyscale.train.checkpoint.store import CheckpointStore
CheckpointStore({str(tmp_path)!r}).save_async(job_state(1, 300_000))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert is_same_state(load(tmp_path / "step-00000001").state, job_state(1, 300_000))


def test_two_jobs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, owner="job first") as first, CheckpointStore(tmp_path) as second:
        first.claim()
        with pytest.raises(RefusedError, match=rf"written by process {os.getpid()} on .* \(job first\)"):
            second.claim()
        assert not second.save(job_state(1)).is_saved
        first.close()
        assert second.save(job_state(1)).is_saved
        with pytest.raises(RefusedError, match="being written"):
            first.claim()


def test_readers_need_no_claim(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as writer:
        writer.save(job_state(1))
        assert CheckpointStore(tmp_path).newest() is not None


@pytest.mark.slow
def test_a_dead_writers_folder_is_free_although_its_children_live(tmp_path: Path) -> None:
    """Data workers are forked and may outlive it for a moment."""
    code = f"""
import os, sys, time
from easyscale.train.checkpoint.store import CheckpointStore
store = CheckpointStore({str(tmp_path)!r})
store.claim()
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert process.wait(30) == -9
        os.kill(child, 0)
        with CheckpointStore(tmp_path) as store:
            store.claim()


def test_a_state_that_cannot_be_kept_is_refused_before_training(tmp_path: Path) -> None:
    state = JobState(FACTS, 0, {}, {"registered": {"hook": print}})
    with CheckpointStore(tmp_path) as store:
        for call in (store.check, store.save, store.save_async):
            refused: Callable[[JobState], object] = call
            with pytest.raises(RefusedError, match=r"meta\['registered'\]\['hook'\] is the builtin_function"):
                refused(state)
        assert store.save(job_state(1)).is_saved


def test_memory_that_is_not_there_is_told_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CheckpointStore(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr("mmap.mmap", full)
            assert "was not written" in str(store.save(job_state(1)).reason)
        assert store.save(job_state(2)).is_saved
