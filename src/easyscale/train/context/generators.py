"""The three generators of a process, one by one: was it drawn from, set its words, put it back.

Runs in the worker and in data worker processes. All three are a Mersenne Twister. Asking "was it drawn from" must cost
next to nothing, since it is asked for every mini-batch, and so must setting one, which is done for every turn and every
sample; but
what Python and NumPy offer for it takes longer than loading a small sample, and a tenth of a large one where that has
emptied the caches. So both are read and written where they lie in memory. Whether that is where we think is tried out
first, and where it is not the slow way is taken, to the same effect.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from easyscale.core.errors import UsageError
from easyscale.train.context.philox import WORDS, Words

_MARK_WORDS = 2  # beside the position: all words change when all have been used and the position begins anew
_TEMPLATE_OFFSET = 24  # bytes of torch's state before its words: seed (8), left (4), seeded (4), next (8)


def _template() -> NDArray[np.uint8]:
    generator = torch.Generator()
    generator.manual_seed(0)
    return generator.get_state().numpy().copy()


_FRESH = _template()
_FRESH_TENSOR = torch.from_numpy(_FRESH)
_FRESH_WORDS = _FRESH[_TEMPLATE_OFFSET : _TEMPLATE_OFFSET + 8 * WORDS].view(np.uint64)


def torch_state(words: Words) -> torch.Tensor:
    """State of torch's CPU generator with these words; valid until the next call.

    The state right after ``manual_seed`` says "no word used yet": only the words themselves are replaced.
    """
    _FRESH_WORDS[:] = words
    return _FRESH_TENSOR


class Generator(Protocol):
    """One of the process's generators."""

    lane: int
    """Which of a key's words it takes."""

    def mark(self) -> Any:
        """Something that differs once the generator has been drawn from or set."""

    def seed(self, words: Words) -> None:
        """Set its words, none of them used yet."""

    def capture(self) -> Any:
        """The state, cheaply, for ``restore``."""

    def restore(self, state: Any) -> None: ...


class _Python:
    """``random``: in memory the position comes first."""

    lane = 0

    def __init__(self) -> None:
        self._generator: Any = getattr(random.random, "__self__", None)
        self._memory = _memory_of_python(self._generator)

    def mark(self) -> Any:
        if self._memory is None:
            return random.getstate()
        return self._memory[: 1 + _MARK_WORDS].tobytes(), self._generator.gauss_next

    def seed(self, words: Words) -> None:
        if self._memory is None:
            random.setstate((random.Random.VERSION, (*words.tolist(), WORDS), None))
            return
        self._memory[0] = WORDS
        self._memory[1:] = words
        self._generator.gauss_next = None

    def capture(self) -> Any:
        if self._memory is None:
            return random.getstate()
        return self._memory.copy(), self._generator.gauss_next

    def restore(self, state: Any) -> None:
        if self._memory is None:
            random.setstate(state)
        else:
            self._memory[:], self._generator.gauss_next = state


class _Numpy:
    """``numpy.random``: in memory the position comes last, and half of a pair of normal numbers lies elsewhere."""

    lane = 1

    def __init__(self) -> None:
        self._get: Any = getattr(np.random, "get_bit_generator", None)
        self._generator: Any = None if self._get is None else self._get()
        self._memory: Any = _memory_of_numpy(self._generator)
        self._left_over: Any = _left_over_of_numpy()

    def _is_in_reach(self) -> bool:
        if self._memory is None or self._left_over is None:
            return False
        if self._get() is not self._generator:
            raise UsageError("np.random.set_bit_generator was called while data is loaded: call it before the session")
        return True

    def mark(self) -> Any:
        if not self._is_in_reach():
            state: Any = np.random.get_state()
            return state[1].tobytes(), state[2:]
        return self._memory[-1 - _MARK_WORDS :].tobytes(), self._left_over.tobytes()

    def seed(self, words: Words) -> None:
        if not self._is_in_reach():
            np.random.set_state(("MT19937", words, WORDS, 0, 0.0))
            return
        self._memory[:-1] = words
        self._memory[-1] = WORDS
        self._left_over[:] = 0

    def capture(self) -> Any:
        if not self._is_in_reach():
            return np.random.get_state()
        return self._memory.copy(), self._left_over.copy()

    def restore(self, state: Any) -> None:
        if not self._is_in_reach():
            np.random.set_state(state)
            return
        self._memory[:], self._left_over[:] = state


class _Torch:
    """PyTorch's generator of the CPU."""

    lane = 2

    def mark(self) -> Any:
        return torch.get_rng_state().numpy().tobytes()

    def seed(self, words: Words) -> None:
        torch.default_generator.set_state(torch_state(words))

    def capture(self) -> Any:
        return torch.get_rng_state()

    def restore(self, state: Any) -> None:
        torch.set_rng_state(state)


@functools.lru_cache(maxsize=1)
def generators() -> tuple[Generator, ...]:
    """Python's, NumPy's and PyTorch's (CPU) default generators."""
    return _Python(), _Numpy(), _Torch()


def device_mark() -> Any:
    """Of the GPU's generator, which no dataset may draw from; None where CUDA is not in use."""
    if not torch.cuda.is_initialized():
        return None
    return torch.cuda.default_generators[torch.cuda.current_device()].get_offset()


def _at(address: int, words: int) -> Words:
    """What lies in memory there, to read and to write."""
    return np.ctypeslib.as_array((ctypes.c_uint32 * words).from_address(address))


def _memory_of_python(generator: Any) -> Words | None:
    """CPython's ``Random``: its position, followed by its words; None if they are not where they always were."""
    size = object.__basicsize__ + 4 * (1 + WORDS)
    if type(generator) is not random.Random or random.Random.__basicsize__ < size:
        return None
    memory = _at(id(generator) + object.__basicsize__, 1 + WORDS)
    words = generator.getstate()[1]  # and then the position
    return memory if memory.tolist() == [words[-1], *words[:-1]] else None


def _memory_of_numpy(generator: Any) -> Words | None:
    """NumPy's words, followed by the position."""
    if type(generator).__name__ != "MT19937":
        return None
    memory = _at(generator.ctypes.state_address, WORDS + 1)
    state: Any = np.random.get_state()
    return memory if memory.tolist() == [*state[1].tolist(), state[2]] else None


def _left_over_of_numpy() -> Words | None:
    """Whether NumPy has a normal number left over, and which: a C ``int``, four bytes of nothing, a ``double``.

    Where they lie in a ``RandomState`` is seen by giving one of our own a number left over.
    """
    ours, theirs = np.random.RandomState(0), getattr(np.random.get_state, "__self__", None)
    if type(theirs) is not np.random.RandomState:
        return None
    state: Any = ours.get_state()
    number, size = 1.2345678901234567, np.random.RandomState.__basicsize__
    ours.set_state((*state[:3], 1, number))
    there = ctypes.string_at(id(ours), size).find(struct.pack("d", number))
    if there < 8 or there % 8:
        return None
    mine = _at(id(ours) + there - 8, 4)
    seen = [int(mine[0])]
    ours.set_state((*state[:3], 0, 0.0))
    seen.append(int(mine[0]))
    return _at(id(theirs) + there - 8, 4) if seen == [1, 0] and not mine[2:].any() else None
