"""EasyScale: elastic data-parallel training that gives the same model, in every bit, on any number of workers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from easyscale.core.errors import EasyScaleError as EasyScaleError
    from easyscale.core.errors import RefusedError as RefusedError
    from easyscale.core.errors import UsageError as UsageError
    from easyscale.core.placement import Placement as Placement
    from easyscale.train.data.permutation import PermutationSampler as PermutationSampler
    from easyscale.train.opening import session as session
    from easyscale.train.reduce.hooks import tree_hook as tree_hook
    from easyscale.train.session import Session as Session

_HOME = {
    "EasyScaleError": "easyscale.core.errors",
    "RefusedError": "easyscale.core.errors",
    "UsageError": "easyscale.core.errors",
    "Placement": "easyscale.core.placement",
    "PermutationSampler": "easyscale.train.data.permutation",
    "Session": "easyscale.train.session",
    "session": "easyscale.train.opening",
    "tree_hook": "easyscale.train.reduce.hooks",
}

__all__ = [
    "EasyScaleError",
    "PermutationSampler",
    "Placement",
    "RefusedError",
    "Session",
    "UsageError",
    "session",
    "tree_hook",
]


def __getattr__(name: str) -> Any:
    # on demand, so that the command line does not wait for torch
    if name not in _HOME:
        raise AttributeError(f"module 'easyscale' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
