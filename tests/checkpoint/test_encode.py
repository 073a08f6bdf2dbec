"""Objects become JSON and tensors and come back with the very same types, or are refused by name."""

from __future__ import annotations

import collections
import enum
import json
import math
import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoint.states import is_same, tensor
from torch.optim import lr_scheduler

from easyscale.core.errors import RefusedError
from easyscale.train.checkpoint.decode import decode
from easyscale.train.checkpoint.encode import encode


def there_and_back(value: Any) -> Any:
    structure, tensors = encode(value)
    return decode(json.loads(json.dumps(structure, allow_nan=False)), tensors)


def any_double(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


NUMPY_DTYPES = ["?", "i1", "<u2", ">i4", "<i8", "<f2", "<f4", ">f8", "<c8", "<c16", "<M8[ns]", "<m8[s]"]
arrays = st.tuples(st.sampled_from(NUMPY_DTYPES), st.integers(0, 3), st.integers(0, 3), st.sampled_from("CF")).map(
    lambda parts: np.zeros(parts[1:3], parts[0], order=parts[3])
)
keys = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
leaves = (
    keys
    | st.integers(0, 2**64 - 1).map(any_double)
    | st.complex_numbers()
    | st.text(st.characters())
    | st.text(st.characters(categories=["Cs"]))
    | st.binary().map(bytearray)
    | st.lists(st.integers(0, 9)).map(torch.Size)
    | st.sampled_from([torch.float32, torch.complex64, torch.device("cpu"), torch.device("cuda", 1)])
    | st.sampled_from([np.float32(0.1), np.int64(-3), np.bool_(True), np.complex64(1j), np.float64("nan")])
    | st.sampled_from([torch.float32, torch.bfloat16, torch.int8]).map(lambda dtype: tensor(2, 3, dtype=dtype))
    | arrays
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists, dicts = st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)
    return (
        lists
        | lists.map(tuple)
        | dicts
        | dicts.map(collections.OrderedDict)
        | dicts.map(lambda items: collections.defaultdict(list, items))
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.dictionaries(keys, st.integers(), max_size=4).map(collections.Counter)
        | st.sets(keys, max_size=4)
        | st.frozensets(keys, max_size=4)
        | lists.map(lambda items: collections.deque(items, 7))
    )


@pytest.mark.slow
@given(st.recursive(leaves, containers, max_leaves=12))
@settings(deadline=None)
def test_whatever_is_kept_comes_back_the_same(value: Any) -> None:
    assert is_same(there_and_back(value), value)


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        any_double(0x7FF8_0000_DEAD_BEEF),
        -math.inf,
        10**5000,
        -(2**53) - 1,
        "\ud83d\ude00",
        {"$tuple": [1]},
        {"$": {"": 0}},
        {True: "truth", 2: "two", "2": "text", (1, "a"): "pair", None: "nothing"},
        ((), [], {}, set(), frozenset()),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.float64(2.5),
        np.array(5, np.uint8),
        collections.defaultdict(None, {1: 2}),
        collections.Counter({"a": -1, "b": 0}),
        torch.nn.Parameter(torch.ones(2), requires_grad=False),
        torch.ones(2, requires_grad=True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_odd_values_come_back_the_same(value: Any) -> None:
    assert is_same(there_and_back(value), value)


def test_states_of_all_generators_come_back_the_same() -> None:
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    assert is_same(there_and_back(states), states)


def test_one_tensor_in_two_places_comes_back_as_one() -> None:
    weight = torch.ones(3)
    found = there_and_back({"a": weight, "b": [weight]})
    assert found["a"] is found["b"][0]


def test_a_state_dict_keeps_the_versions_that_load_state_dict_looks_at() -> None:
    state = torch.nn.BatchNorm1d(3).state_dict()
    found = there_and_back(state)
    assert is_same(found, state)
    assert found._metadata == state._metadata
    torch.nn.BatchNorm1d(3).load_state_dict(found)


SCHEDULERS: list[Callable[[torch.optim.Optimizer], Any]] = [
    lambda o: lr_scheduler.StepLR(o, 3),
    lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 5]),
    lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
    lambda o: lr_scheduler.OneCycleLR(o, 0.1, 20),
    lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    lambda o: lr_scheduler.ReduceLROnPlateau(o),
    lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    lambda o: lr_scheduler.PolynomialLR(o),
    lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]),
    lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o), lr_scheduler.StepLR(o, 2)]),
]


@pytest.mark.parametrize("make", SCHEDULERS)
def test_the_state_of_every_lr_scheduler_comes_back_the_same(make: Callable[[torch.optim.Optimizer], Any]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1, momentum=0.9)
    state = make(optimizer).state_dict()
    assert is_same(there_and_back(state), state)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
def test_the_state_of_an_optimizer_comes_back_the_same(kind: type[torch.optim.Optimizer]) -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = kind([weight], lr=torch.tensor(0.1))
    weight.grad = torch.full((2, 3), 0.5)
    optimizer.step()
    state = optimizer.state_dict()
    assert is_same(there_and_back(state), state)


def test_the_state_of_a_grad_scaler_comes_back_the_same() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
    scaler.scale(torch.ones(1))
    state = scaler.state_dict()
    assert is_same(there_and_back(state), state)
    assert state["scale"] == 256.0


class Point(NamedTuple):
    x: int


class Number(int):
    pass


class Color(enum.IntEnum):
    RED = 1


class Plain:
    pass


HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)
TOO_DEEP: Any = 0
for _ in range(200):
    TOO_DEEP = [TOO_DEEP]
WITH_ATTRIBUTE: Any = collections.OrderedDict()
WITH_ATTRIBUTE.note = 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"foo": [lambda: 0]}, r"registered\['ema'\]\['foo'\]\[0\] is the function .*lambda"),
        (Plain(), "is a Plain"),
        (Plain, "is the type Plain"),
        (Point(1), "is a Point"),
        (Number(1), "is a Number"),
        (Color.RED, "is a Color"),
        (np.array(["a"]), "dtype <U1"),
        (np.array([None]), "dtype object"),
        (np.str_("a"), "is a str_"),
        (torch.Generator(), "is a Generator"),
        (HOLDS_ITSELF, r"\[0\] contains itself"),
        (TOO_DEEP, "nested more than 100"),
        (WITH_ATTRIBUTE, "attribute 'note'"),
        (collections.defaultdict(lambda: 0), "default comes from the function"),
        (torch.ones(1, requires_grad=True) * 2, "knows how it was computed"),
        (range(3), "is a range"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_kept_is_refused_by_its_place(value: Any, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        encode(value, "registered['ema']")


@pytest.mark.parametrize(
    "structure",
    [
        {"$eval": "1"},
        {"$tensor": "missing"},
        {"$dtype": "load"},
        {"$numpy": ["O", "00"]},
        {"$array": "x", "dtype": "O", "shape": [1], "is_fortran": False},
        {"$defaultdict": [], "factory": "eval"},
        {"$float": "00"},
        {"$dict": [[1]]},
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_nobody_encoded_is_refused(structure: Any) -> None:
    with pytest.raises(RefusedError, match="cannot be read"):
        decode(structure, {"x": torch.zeros(8, dtype=torch.uint8)})
