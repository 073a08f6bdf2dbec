"""Which earlier run's profile a new one begins from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from easyscale.core.errors import RefusedError
from easyscale.core.events import StartEvent
from easyscale.launch import profiles
from easyscale.launch.profiles import newest_profile, read_profile

STARTED = {
    "mine": ("train.py", ["--lr", "1"]),
    "older": ("train.py", ["--lr", "1"]),
    "other arguments": ("train.py", ["--lr", "2"]),
    "other script": ("other.py", ["--lr", "1"]),
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of runs, each older than the one before in ``STARTED``."""

    class Start:
        def __init__(self, name: str) -> None:
            self.script, self.args = STARTED[name]

    def start_of(folder: Path) -> StartEvent | None:
        return Start(folder.name) if folder.name in STARTED else None  # type: ignore[return-value]

    monkeypatch.setattr(profiles, "start_of", start_of)
    for age, name in enumerate(STARTED):
        write(tmp_path / name, {"V100": 3.0 + age}, 1000 - age)
    return tmp_path


def write(folder: Path, capability: dict[str, float], when: int) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / "profile.json"
    path.write_text(json.dumps({"capability": capability, "sync_s_by_devices": [[2, 0.5]]}))
    os.utime(path, (when, when))


def newest(runs: Path, *kinds: str) -> Path | None:
    found = newest_profile(runs, "train.py", ("--lr", "1"), set(kinds))
    return None if found is None else found.folder


def test_it_is_the_newest_of_the_same_script_and_arguments(runs: Path) -> None:
    write(runs / "other script", {"V100": 9.0}, 3000)
    assert newest(runs, "V100") == runs / "mine"
    write(runs / "older", {"V100": 2.0}, 2000)
    assert newest(runs, "V100") == runs / "older"


def test_one_that_has_not_measured_all_kinds_is_passed_over(runs: Path) -> None:
    write(runs / "older", {"V100": 2.0, "T4": 1.0}, 10)
    assert newest(runs, "V100", "T4") == runs / "older"
    assert newest(runs, "V100", "P100") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"capability": {"V100": "fast"}, "sync_s_by_devices": []}', "\0"])
def test_a_torn_one_is_passed_over_and_refused_when_named(runs: Path, text: str) -> None:
    (runs / "mine" / "profile.json").write_text(text)
    assert newest(runs, "V100") == runs / "older"
    with pytest.raises(RefusedError, match="is no profile"):
        read_profile(runs / "mine")


def test_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"has no profile\.json"):
        read_profile(tmp_path)
