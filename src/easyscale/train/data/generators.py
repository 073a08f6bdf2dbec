"""The three generators that a dataset draws from, one by one: was it drawn from, set it from a key, put it back.

Runs in the worker and in data worker processes. Asking "was it drawn from" must cost next to nothing, since it is asked
for every mini-batch, but Python's and NumPy's generators give their state only as a copy that takes longer than a small
mini-batch. Both are a Mersenne Twister with its words and its position in memory. Whether they lie where we think is
tried out first, and where they do not the slow way is taken.
"""

from __future__ import annotations

import ctypes
import functools
import random
from typing import Any, Protocol

import numpy as np
import torch

from easyscale.core.errors import UsageError
from easyscale.train.context.rng import torch_state

_WORDS = 624
_STATE_BYTES = 4 * _WORDS + 4  # and the position
_MARK_BYTES = 12  # two words and the position: the words change when all have been used and the position begins anew


class Generator(Protocol):
    """One of the process's generators."""

    material: int
    """Bytes that ``seed`` takes."""

    def mark(self) -> Any:
        """Something that differs once the generator has been drawn from or set."""

    def seed(self, material: bytes) -> None: ...

    def capture(self) -> Any:
        """The state, cheaply, for ``restore``."""

    def restore(self, state: Any) -> None: ...


class _Python:
    """``random``: in memory the position comes first."""

    material = 32

    def __init__(self) -> None:
        self._generator: Any = getattr(random.random, "__self__", None)
        self._address = _address_in(self._generator)

    def mark(self) -> Any:
        if self._address is None:
            return random.getstate()
        return ctypes.string_at(self._address, _MARK_BYTES), self._generator.gauss_next

    def seed(self, material: bytes) -> None:
        random.seed(int.from_bytes(material, "little"))

    def capture(self) -> Any:
        if self._address is None:
            return random.getstate()
        return ctypes.string_at(self._address, _STATE_BYTES), self._generator.gauss_next

    def restore(self, state: Any) -> None:
        if self._address is not None:
            raw, gauss_next = state
            position, *words = np.frombuffer(raw, dtype=np.uint32).tolist()
            state = (random.Random.VERSION, (*words, position), gauss_next)
        random.setstate(state)


class _Numpy:
    """``numpy.random``: in memory the position comes last.

    Half of a pair of normal numbers may be left over and drawn without moving the position. Only a full copy of the
    state tells of it, which is made only where the position has moved since nothing was left.
    """

    material = 32

    def __init__(self) -> None:
        self._get: Any = getattr(np.random, "get_bit_generator", None)
        self._generator: Any = None if self._get is None else self._get()
        self._address = self._find()
        self._clean: bytes | None = None

    def _find(self) -> int | None:
        if type(self._generator).__name__ != "MT19937":
            return None
        address: int = self._generator.ctypes.state_address
        state: Any = np.random.get_state()
        words, position = state[1:3]
        found = np.frombuffer(ctypes.string_at(address, _STATE_BYTES), dtype=np.uint32).tolist()
        return address if found == [*words.tolist(), position] else None

    def _has_left_over(self) -> bool:
        if self._address is None:
            return True
        if self._get() is not self._generator:
            raise UsageError("np.random.set_bit_generator was called while data is loaded: call it before the session")
        here = ctypes.string_at(self._address + _STATE_BYTES - _MARK_BYTES, _MARK_BYTES)
        if here == self._clean:
            return False
        state: Any = np.random.get_state()
        has_left_over = bool(state[3])
        self._clean = None if has_left_over else here
        return has_left_over

    def mark(self) -> Any:
        if not self._has_left_over():
            return self._clean
        state: Any = np.random.get_state()
        return state[1].tobytes(), state[2:]

    def seed(self, material: bytes) -> None:
        np.random.seed(np.frombuffer(material, dtype="<u4"))

    def capture(self) -> Any:
        if self._has_left_over():
            return np.random.get_state()
        assert self._address is not None
        return ctypes.string_at(self._address, _STATE_BYTES)

    def restore(self, state: Any) -> None:
        if isinstance(state, bytes):
            numbers = np.frombuffer(state, dtype=np.uint32)
            state = ("MT19937", numbers[:-1], int(numbers[-1]), 0, 0.0)
        np.random.set_state(state)


class _Torch:
    """PyTorch's generator of the CPU."""

    material = 4 * _WORDS

    def mark(self) -> Any:
        return torch.get_rng_state().numpy().tobytes()

    def seed(self, material: bytes) -> None:
        torch.set_rng_state(torch_state(material))

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


def _address_in(generator: Any) -> int | None:
    """Where CPython's ``Random`` keeps its position, followed by its words; None if not where it always was."""
    if type(generator) is not random.Random or random.Random.__basicsize__ < object.__basicsize__ + _STATE_BYTES:
        return None
    address = id(generator) + object.__basicsize__
    words = generator.getstate()[1]  # and then the position
    found = np.frombuffer(ctypes.string_at(address, _STATE_BYTES), dtype=np.uint32).tolist()
    return address if found == [words[-1], *words[:-1]] else None
