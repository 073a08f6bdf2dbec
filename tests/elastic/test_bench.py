"""The pieces of ``bench/rescale.py`` work."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def stamps(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("stamps")


def test_a_step_is_finished_when_its_last_worker_has_finished_it(stamps: Any, tmp_path: Path) -> None:
    (tmp_path / "1").write_text("0 1.0\n1 2.0\n2 3.5\n")
    (tmp_path / "2").write_text("0 1.5\n1 2.25\n2 3")
    read = stamps.Stamps(tmp_path)
    read.read()
    assert read.last_step == 2
    assert [read.finished_at(step) for step in range(3)] == [1.5, 2.25, 3.5]
    with (tmp_path / "2").open("a") as file:
        file.write(".75\n1 9.0\n")
    read.read()
    assert read.finished_at(2) == 3.75
    assert read.finished_at(1) == 2.25  # not when it was done again
    assert read.steps_s(1, 2) == [0.75, 1.5]
    assert read.repeated() == 1


@pytest.mark.slow
def test_changes_of_a_run_are_measured(stamps: Any, tmp_path: Path) -> None:
    sides = importlib.import_module("rescale_sides")
    with sides.EasyScaleRun(tmp_path, "small", settle=3) as run:
        changes = [run.scale(3), run.scale(1), run.scale(2), run.kill()]
        assert run.stamps.repeated() == 0
    assert [change.what for change in changes] == ["2-3", "3-1", "1-2", "kill"]
    for change in changes:
        assert change.after_s > 0
        assert change.step_s > 0
        assert change.redone == 0
        assert {"decide", "drain", "rendezvous", "pause"} <= change.phases.keys()
    assert not [pid for pid in run.stamps.by_pid if stamps.is_alive(pid)]
