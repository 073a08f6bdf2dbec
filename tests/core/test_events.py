"""Events survive a round trip, a diverged loss and a writer that died in the middle of a line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from easyscale.core import events
from easyscale.core.errors import EasyScaleError
from easyscale.core.events import EndEvent, Event, FailureEvent, PlanEvent, StartEvent, StepEvent

START = StartEvent(1.0, "train.py", ["--x"], 2, {"seed": 3}, {"python": "3.11"}, 4, "0,1|2,3")
STEP = StepEvent(2.0, 1, 0, 0.5, {"0": {"loss": 1.5}}, "ab", {"weight": "cd"})
PLAN = PlanEvent(2.5, 7, "move", "worker 1 is slow", "0,1|2", [{"worker": 0, "ests": 2}], {"T4": 1.5}, 2.0, 0.1)
FAILURE = FailureEvent(3.0, "worker 1 is gone", "died", 1)
END = EndEvent(4.0, "failed", 1, 1, 3.0)


@pytest.mark.parametrize("event", [START, STEP, PLAN, FAILURE, END], ids=lambda event: type(event).__name__)
def test_an_event_reads_as_it_was_written(event: Event) -> None:
    assert events.from_line(events.to_line(event)) == event


def test_a_line_says_time_and_type_first() -> None:
    assert list(json.loads(events.to_line(END)))[:2] == ["t", "type"]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_diverged_loss_is_strict_json(value: float) -> None:
    line = events.to_line(StepEvent(2.0, 1, 0, 0.5, {"0": {"loss": value}}))
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    read = events.from_line(line)
    assert isinstance(read, StepEvent)
    assert repr(read.log["0"]["loss"]) == repr(value)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(events.to_line(START) + "\n" + events.to_line(STEP) + "\n" + events.to_line(END)[:20])
    assert list(events.read(path)) == [START, STEP]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(events.to_line(START) + "\n\0\0\0\n" + events.to_line(END) + "\n")
    with pytest.raises(EasyScaleError, match=r"events\.jsonl, line 2: not an event"):
        list(events.read(path))


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"type":"step"}', '{"type":"tea","t":1}', '"start"'])
def test_what_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(EasyScaleError, match="not an event"):
        events.from_line(line)
