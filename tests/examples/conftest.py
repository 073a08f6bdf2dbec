"""How the tests of this folder start a script: as a user does, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 100


@dataclass(frozen=True)
class Run:
    """One finished ``easyscale run``."""

    output: str
    digest: str
    global_steps: int


Python = Callable[..., str]
EasyScaleRun = Callable[..., Run]


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run the interpreter with arguments in an empty folder; returns what it prints."""

    def run(*arguments: object, folder: Path = tmp_path) -> str:
        command = [sys.executable, *map(str, arguments)]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run


@pytest.fixture
def easyscale_run(python: Python, tmp_path: Path) -> EasyScaleRun:
    """``easyscale run`` with arguments, in an empty folder."""

    def run(*arguments: object, folder: Path = tmp_path) -> Run:
        name = f"run-{len(list((folder / 'runs').glob('*')))}"
        output = python("-m", "easyscale", "run", "--name", name, *arguments, folder=folder)
        result = json.loads((folder / "runs" / name / "result.json").read_text())
        return Run(output, result["digest"], result["global_steps"])

    return run
