"""Who may know whom: the arrows of pyproject.toml, and what the command line loads before it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.strip()


def test_arrows_point_down() -> None:
    python("import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))")


@pytest.mark.parametrize("module", ["easyscale", "easyscale.core.placement", "easyscale.cli.main"])
def test_importing_loads_no_torch_before_it_is_needed(module: str) -> None:
    heavy = "{'torch', 'numpy', 'sklearn', 'multiprocessing.forkserver'}"
    assert python(f"import sys, {module}; print(sorted({heavy} & sys.modules.keys()))") == "[]"


def test_the_package_says_what_a_user_may_type() -> None:
    code = "import easyscale; print(easyscale.__all__, [n for n in easyscale.__all__ if not hasattr(easyscale, n)])"
    names, missing = python(code).split("] ")
    assert "'session'" in names
    assert missing == "[]"
