"""The conformance test of all that keeps a position: stop anywhere, go on in another session, see no difference."""

from __future__ import annotations

import pytest

from data.resumable import EPOCHS, PARTS, Part, Point, Seen, run

pytestmark = [
    pytest.mark.usefixtures("may_move"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


def assert_goes_on(part: Part, data_workers: int, expected: Seen, point: Point) -> None:
    found, _ = run(part, data_workers, point)
    rest = [*expected[point.epoch :]]
    if rest:
        rest[0] = rest[0][point.step :]
    assert found == rest, f"resumed with {data_workers} data workers at {point}"


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if part.rng == "stepwise" or not part.pairs])
def test_a_part_goes_on_wherever_it_was_stopped(name: str) -> None:
    """Scenarios 5, 21 and 26."""
    part = PARTS[name]
    expected, points = run(part, 0, keeps=True)
    assert len(expected) == EPOCHS
    assert all(len(epoch) >= 2 for epoch in expected)
    assert expected[0] != expected[1]
    assert len(points) == 1 + sum(2 + len(epoch) for epoch in expected)
    assert run(part, 0)[0] == expected, "asking for the position changed the values"
    for point in points:
        assert_goes_on(part, 0, expected, point)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if part.pairs])
def test_a_part_goes_on_with_other_data_workers(name: str) -> None:
    part = PARTS[name]
    for before, after in part.pairs:
        expected, points = run(part, before, keeps=True)
        if part.rng == "stepwise":
            assert expected == run(part, 0)[0], f"{before} data workers and none"
        last = len(expected[0])
        stops = [(0, 0, True), (0, 1, True), (0, last, True), (1, 0, False), (1, last - 1, True)]
        for point in points:
            if (point.epoch, point.step, point.is_inside) in stops:
                assert_goes_on(part, after, expected, point)
