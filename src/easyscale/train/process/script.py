"""Runs a file as ``python FILE ARGS`` does: same ``__main__``, ``sys.argv``, ``sys.path``, same code path for pickles.

Runs in the worker process. The module stays ``__main__`` after the script ended, as under ``python``, because objects
defined in it live on.
"""

from __future__ import annotations

import io
import os
import sys
import types
from importlib.machinery import SourceFileLoader

from easyscale.core.job import ScriptSpec


def run_as_main(path: str, script: ScriptSpec, search_path: list[str]) -> None:
    """Run the script at the absolute ``path`` to its end; what it raises is raised here."""
    own_folder = [] if getattr(sys.flags, "safe_path", False) else [os.path.dirname(os.path.realpath(path))]  # noqa: PTH120
    sys.path[:] = [*own_folder, *search_path]
    sys.argv[:] = [script.path, *script.args]
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = SourceFileLoader("__main__", path)
    module.__dict__["__builtins__"] = __builtins__
    module.__dict__["__cached__"] = None
    sys.modules["__main__"] = module
    with io.open_code(path) as source:
        code = compile(source.read(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def absolute_path(script: ScriptSpec) -> str:
    """The name under which the script's frames appear."""
    return os.path.abspath(script.path)  # noqa: PTH100 - resolves no link, as python
