"""Generators that belong to a dataset: NumPy's recommended style, ``self.rng = np.random.default_rng()``. Runs where
mini-batches are loaded.

They are found once in a process, in the attributes of the dataset, its transforms and ``collate_fn``, and set for every
sample like the process's own generators. One in a module's global variable is not found.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from easyscale.core.errors import RefusedError
from easyscale.train.context.generators import torch_state
from easyscale.train.context.philox import WORDS, Words

_DEPTH = 6
_MOST_ITEMS = 100  # of a container: longer ones hold samples
_CLOSED = (str, bytes, int, float, torch.Tensor, np.ndarray, ModuleType, type)


class Own:
    """A generator of the dataset's own, of whatever kind."""

    def __init__(self, generator: Any, lane: int) -> None:
        self.lane = lane
        self._generator = generator
        if isinstance(generator, torch.Generator) and generator.device.type != "cpu":
            raise RefusedError(
                f"the dataset has a generator of its own on {generator.device}, which cannot be set for every sample: "
                "use one on the CPU"
            )

    def mark(self) -> Any:
        """They are set always, so nobody asks."""
        return None

    def seed(self, words: Words) -> None:
        """Set it from 624 words."""
        generator = self._generator
        if isinstance(generator, random.Random):
            generator.setstate((random.Random.VERSION, (*words.tolist(), WORDS), None))
        elif isinstance(generator, np.random.RandomState):
            generator.seed(words[:8])
        elif isinstance(generator, np.random.Generator):
            kind: Any = type(generator.bit_generator)
            generator.bit_generator.state = kind(np.random.SeedSequence(words[:8].tolist())).state
        else:
            generator.set_state(torch_state(words))

    def capture(self) -> Any:
        generator = self._generator
        if isinstance(generator, random.Random):
            return generator.getstate()
        if isinstance(generator, np.random.Generator):
            return generator.bit_generator.state
        return generator.get_state()

    def restore(self, state: Any) -> None:
        generator = self._generator
        if isinstance(generator, random.Random):
            generator.setstate(state)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.set_state(state)


def own_generators(first_lane: int, *roots: Any) -> list[Own]:
    """All that are found in ``roots`` and their attributes, in a fixed order."""
    found: dict[int, Any] = {}
    for root in roots:
        for generator in _search(root, _DEPTH, set()):
            found.setdefault(id(generator), generator)
    return [Own(generator, first_lane + number) for number, generator in enumerate(found.values())]


def _search(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    if depth == 0 or id(value) in seen or isinstance(value, _CLOSED):
        return
    seen.add(id(value))
    if isinstance(value, random.Random | np.random.RandomState | np.random.Generator | torch.Generator):
        yield value
        return
    for part in _parts(value):
        yield from _search(part, depth - 1, seen)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, list | tuple | dict | set):
        return [] if len(value) > _MOST_ITEMS else list(value.values() if isinstance(value, dict) else value)
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, FunctionType):
        cells = value.__closure__ or ()
        return [*(cell.cell_contents for cell in cells if _is_full(cell)), *(value.__defaults__ or ())]
    return list(getattr(value, "__dict__", {}).values())


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
