"""``reduction="ring"`` promises the bits of gloo's all-reduce: the experiment that found its order, as a test.

Gloo's source says nothing of the kind in its interface, so a new torch may change it; then this file fails first.
"""

from __future__ import annotations

import pytest
import torch

from consistency.fleet import Fleet
from easyscale.train.reduce.order import GLOO_MAX_SEGMENT_BYTES, ring_chunks, ring_order
from reduce.gloo_ring import Case, bit_hash, part

pytestmark = pytest.mark.slow

_ELEMENT_SIZE = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
_SMALL = [*range(1, 71), 97, 101, 127, 211, 499, 997, 1009, 4099, 10007, 65537]


def predicted(case: Case, num_ranks: int) -> torch.Tensor:
    """The sum over ranks in the order that the product says gloo has."""
    name, elements = case
    parts = [part(case, rank) for rank in range(num_ranks)]
    total = torch.empty_like(parts[0])
    for chunk, (start, stop) in enumerate(ring_chunks(elements, _ELEMENT_SIZE[name], num_ranks)):
        first, *others = ring_order(chunk, num_ranks)
        running = parts[first][start:stop]
        for rank in others:
            running = parts[rank][start:stop] + running
        total[start:stop] = running
    return total


def assert_predicted(fleet: Fleet, num_ranks: int, cases: list[Case]) -> None:
    arguments = [
        {"rank": rank, "size": num_ranks, "store_path": fleet.store_path(), "cases": cases} for rank in range(num_ranks)
    ]
    found_by_rank = fleet.call("reduce.gloo_ring:all_reduce", arguments)
    expected = [bit_hash(predicted(case, num_ranks)) for case in cases]
    for rank, found in enumerate(found_by_rank):
        wrong = [case for case, a, b in zip(cases, found, expected, strict=True) if a != b]
        assert not wrong, f"rank {rank} of {num_ranks}: gloo adds in another order for {wrong[:8]}"


def borders(name: str, num_ranks: int) -> list[int]:
    """Sizes where a chunk begins to have more than two segments, and some beyond."""
    segment = GLOO_MAX_SEGMENT_BYTES // _ELEMENT_SIZE[name]
    two, three = 2 * num_ranks * segment, 3 * num_ranks * segment
    return [two - 1, two, two + 1, two + 2 * num_ranks + 1, three + 1]


@pytest.mark.parametrize("num_ranks", range(2, 9))
def test_order_is_that_of_gloo(gloo_fleet: Fleet, num_ranks: int) -> None:
    assert_predicted(gloo_fleet, num_ranks, [("float32", elements) for elements in _SMALL])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("num_ranks", range(2, 9))
def test_order_is_that_of_gloo_in_other_dtypes(gloo_fleet: Fleet, num_ranks: int, name: str) -> None:
    assert_predicted(gloo_fleet, num_ranks, [(name, elements) for elements in _SMALL])


@pytest.mark.parametrize("num_ranks", [3, 5])
def test_order_is_that_of_gloo_in_a_large_buffer(gloo_fleet: Fleet, num_ranks: int) -> None:
    elements = 2 * num_ranks * GLOO_MAX_SEGMENT_BYTES // 4 + 1
    assert_predicted(gloo_fleet, num_ranks, [("float32", elements)])


@pytest.mark.slow
@pytest.mark.parametrize("name", _ELEMENT_SIZE)
@pytest.mark.parametrize("num_ranks", [3, 4])
def test_order_is_that_of_gloo_around_segment_borders(gloo_fleet: Fleet, num_ranks: int, name: str) -> None:
    assert_predicted(gloo_fleet, num_ranks, [(name, elements) for elements in borders(name, num_ranks)])


def test_the_test_sees_another_order(gloo_fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        globals(), "ring_order", lambda chunk, num_ranks: [(chunk + hop) % num_ranks for hop in range(num_ranks)]
    )
    with pytest.raises(AssertionError, match="adds in another order"):
        assert_predicted(gloo_fleet, 3, [("float32", 97)])
