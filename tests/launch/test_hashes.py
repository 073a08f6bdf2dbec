"""A script's sets of strings have one order in every run: Python would draw another one for every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_sets_of_strings_have_one_order_in_all_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(list({f'name{number}' for number in range(50)}))\n")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
    printed = [
        subprocess.run(
            [sys.executable, "-m", "easyscale", "run", "--name", name, "train.py"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True,
        ).stdout
        for name in ("first", "second")
    ]  # fmt: skip
    assert printed[0].startswith("['name")
    assert printed[0] == printed[1]
