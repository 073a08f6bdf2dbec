"""A process killed at any point of a save leaves the checkpoint before it, or the whole new one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.checkpoint.states import is_same_state, job_state
from tests.checkpoint.victim import SIZE

from easyscale.train.checkpoint.read import find_newest
from easyscale.train.checkpoint.store import CheckpointStore
from easyscale.train.checkpoint.write import POINTS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a process was killed at each point."""
    folder = tmp_path_factory.mktemp("scene")
    subprocess.run([sys.executable, str(Path(__file__).with_name("victim.py")), str(folder)], check=True)
    return folder


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_save_leaves_the_one_before_or_the_whole_new_one(point: str, way: str, scene: Path) -> None:
    folder = scene / f"{point}-{way}"
    survives = POINTS.index(point) >= POINTS.index("checkpoint.after_rename")
    found = find_newest(folder)
    assert found is not None
    assert found.skipped == ()
    assert is_same_state(found.checkpoint.state, job_state(2 if survives else 1, SIZE))
    with CheckpointStore(folder, keep=1) as store:
        assert store.save(job_state(3, SIZE)).is_saved
        found = store.newest()
    assert found is not None
    assert is_same_state(found.checkpoint.state, job_state(3, SIZE))
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "step-00000003"]
