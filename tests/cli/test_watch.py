"""``easyscale ps`` and ``easyscale watch``: runs that go on, have ended, were killed; torn and damaged records."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli.conftest import Call
from easyscale.core import events
from easyscale.core.events import (
    EndEvent,
    Event,
    FailureEvent,
    LossEvent,
    PlanEvent,
    RescaleEvent,
    StartEvent,
    StepEvent,
)
from easyscale.launch.folder import EventLog

pytestmark = pytest.mark.draws_random_numbers  # rich numbers its styles with them, in this process only

BEGAN = time.time() - 100
START = StartEvent(BEGAN, "train.py", [], 2, {}, {}, 4, "0,1|2,3", 1, 4, 20)
LOSS = LossEvent(BEGAN + 20, 1, "worker 1 was ended by SIGKILL", 1)
PHASES = {"decide": 0.001, "start": 2.0, "drain": 0.05, "rendezvous": 0.006, "restore": 0.02, "begin": 0.001}
RESCALE = RescaleEvent(
    BEGAN + 21, 1, 11, "0,1|2,3", "0|1|2,3", "scale", [2], [], {**PHASES, "first_step": 0.1, "pause": 0.08}
)
END = EndEvent(BEGAN + 60, "finished", 0, 40, 59.0, "abc123")


def steps(count: int, first: int = 0, loss: float = 0.5) -> list[Event]:
    """Two a second."""
    return [
        StepEvent(BEGAN + 30 + n / 2, n, n // 10, 0.5, {"0": {"loss": loss}, "1": {"loss": loss}}, total_steps=40)
        for n in range(first, first + count)
    ]


def record(name: str, *written: Event, torn: str = "") -> Path:
    """A run that nobody writes any more."""
    folder = Path("runs", name)
    (folder / "logs").mkdir(parents=True)
    lines = [events.to_line(event) + "\n" for event in written]
    (folder / events.FILE_NAME).write_text("".join(lines) + torn)
    return folder


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that the commands see stands still, however long other tests take."""
    monkeypatch.setattr(time, "time", lambda: BEGAN + 100)


@pytest.fixture
def alive(call: Call) -> Iterator[Callable[..., EventLog]]:
    """``alive(NAME, EVENT...)``: a run that is being written."""
    with ExitStack() as logs:

        def start(name: str, *written: Event) -> EventLog:
            folder = record(name)
            log = logs.enter_context(EventLog(folder / events.FILE_NAME, pytest.fail))
            for event in written:
                log.write(event)
            return log

        yield start


def watched(call: Call, *arguments: str) -> dict:
    called = call("watch", "--json", *arguments)
    assert (called.exit_code, called.err) == (0, "")
    return json.loads(called.out)


def test_a_run_that_has_ended(call: Call) -> None:
    record("mine", START, *steps(40), LOSS, RESCALE, END)
    known = watched(call, "mine")
    assert (known["state"], known["global_steps"], known["total_steps"], known["digest"]) == (
        "finished",
        40,
        40,
        "abc123",
    )
    assert known["workers"] == [
        {"worker": 0, "virtual_ranks": [0]},
        {"worker": 1, "virtual_ranks": [1]},
        {"worker": 2, "virtual_ranks": [2, 3]},
    ]
    assert (known["seconds"], known["eta_s"], known["lost_workers"]) == (pytest.approx(60), None, 1)
    assert [one["what"] for one in known["history"]] == ["loss", "rescale"]
    assert known["history"][1]["seconds"]["restore"] == 0.02


def test_a_run_that_goes_on(call: Call, alive: Callable[..., EventLog]) -> None:
    alive("mine", START, RESCALE, *steps(21))
    known = watched(call)
    assert (known["name"], known["state"], known["epoch"], known["scalars"]) == ("mine", "running", 2, {"loss": 0.5})
    assert known["steps_per_s"] == pytest.approx(2)
    assert known["eta_s"] == pytest.approx(19 / 2)
    assert known["age_s"] >= 100


def test_ten_steps_forgive_a_loss(call: Call) -> None:
    record("nine", START, LOSS, *steps(9))
    record("ten", START, LOSS, *steps(10))
    assert (watched(call, "nine")["failures"], watched(call, "ten")["failures"]) == (1, 0)


def test_a_killed_launcher_and_a_torn_last_line(call: Call) -> None:
    record("mine", START, *steps(3), torn=events.to_line(END)[:30])
    known = watched(call, "mine")
    assert (known["state"], known["global_steps"]) == ("dead", 3)


def test_a_torn_line_counts_when_it_is_whole(call: Call, alive: Callable[..., EventLog]) -> None:
    from easyscale.launch.runs import find

    record("mine", START, torn=events.to_line(END)[:30])
    run = find(Path("runs"), "mine")
    run.look()
    assert run.state == "dead"
    with Path("runs/mine", events.FILE_NAME).open("a") as file:
        file.write(events.to_line(END)[30:] + "\n")
    run.look()
    assert run.state == "finished"


def test_the_script_s_number_of_ests_comes_from_the_result(call: Call) -> None:
    start = StartEvent(BEGAN, "train.py", [], 2, {}, {})
    folder = record("mine", start, *steps(3), END)
    assert watched(call, "mine")["num_ests"] is None
    (folder / "result.json").write_text('{"num_ests": 4, "placements": ["0,1|2,3"], "error": null}')
    assert watched(call, "mine")["num_ests"] == 4


def test_the_page_has_no_escape_codes_elsewhere_than_on_a_terminal(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    failure = FailureEvent(BEGAN + 30, "worker 0 was ended by SIGKILL", "died", 0)
    record("mine", START, *steps(3), LOSS, RESCALE, failure, EndEvent(BEGAN + 60, "failed", 1, 3, 59.0))
    for command in (("watch", "mine"), ("ps",)):
        called = call(*command)
        assert (called.exit_code, called.err) == (0, "")
        assert "\x1b" not in called.out
    page = call("watch", "mine").out
    for words in (
        "mine  failed  4 ESTs on 3 workers  generation 1  1:00",
        "step 3/40  epoch 0",
        "loss 0.5",
        "2 steps/s",
        "workers lost: 1; failures in a row: 1 of 20",
        "worker 0 was ended by SIGKILL",
        "2  2, 3",
        "loss: worker 1 was ended by SIGKILL",
        "0,1|2,3 → 0|1|2,3 (scale)",
        "decide 1, start 2,000, drain 50, rendezvous 6, restore 20, begin 1, first step 100, pause 80 ms",
    ):
        assert words in page


PLAN = PlanEvent(
    BEGAN + 40,
    14,
    "move",
    "worker 2 (T4) is slow, 0.25 of its speed before: 40% faster is expected",
    "0,1,2|3",
    [
        {"worker": 0, "kind": "V100", "ests": 3, "capability": 4.5},
        {"worker": 1, "kind": "T4", "ests": 1, "capability": 1.5},
    ],
    {"V100": 4.5, "T4": 1.5},
    1.5,
    0.25,
    1.1,
)


def test_the_plan_and_why_it_was_made(call: Call) -> None:
    record("mine", START, *steps(3), PLAN)
    known = watched(call, "mine")["plan"]
    assert (known["decision"], known["waste"], known["capability"]) == ("move", 0.25, {"V100": 4.5, "T4": 1.5})
    page = call("watch", "mine").out
    for words in (
        "plan 0,1,2|3: 1.5 steps/s, 25% waste; 1.1 steps/s measured when it was decided",
        "move at step 14: worker 2 (T4) is slow, 0.25 of its speed before: 40% faster is expected",
        "V100  4.5",
    ):
        assert words in page


def test_a_plan_from_what_a_run_has_measured(call: Call) -> None:
    folder = record("mine", START, *steps(3), PLAN)
    (folder / "profile.json").write_text('{"capability": {"V100": 4.5, "T4": 1.5}, "sync_s_by_devices": [[2, 0.5]]}')
    called = call("plan", "--capability", "runs/mine", "--json")
    assert (called.exit_code, called.err) == (0, "")
    found = json.loads(called.out)
    assert (found["num_ests"], found["devices"], found["determinism"]) == (4, {"V100": 1, "T4": 1}, "D1+D2")
    assert found["plan"]["step_s"] == pytest.approx(3 / 4.5 + 0.5)
    (folder / "profile.json").write_text("{")
    called = call("plan", "--capability", "runs/mine")
    assert (called.exit_code, called.out) == (2, "")
    assert "runs/mine/profile.json is no profile of this version" in called.err


def test_the_list(call: Call, alive: Callable[..., EventLog]) -> None:
    for number in range(12):
        record(f"old-{number:02}", StartEvent(BEGAN - 7200 - number, "train.py", [], 1, {}, {}, 2, "0,1"), END)
    alive("new", START, *steps(4))
    Path("runs", "notes").mkdir()
    out = call("ps").out.splitlines()
    assert out[0].split() == ["name", "state", "workers", "placement", "step", "last", "logged", "age"]
    assert re.fullmatch(r"new +running +2 +0,1\|2,3 +4/40 +loss 0.5 +\d+m ?", out[1])
    assert re.fullmatch(r"old-00 +finished +1 +0,1 +40 +\dh ?", out[2].rstrip())
    assert (len(out), out[-1]) == (1 + 1 + 10 + 1, "and 2 older: easyscale ps --all")
    assert len(call("ps", "--all").out.splitlines()) == 1 + 13
    assert [one["name"] for one in json.loads(call("ps", "--json").out)][:2] == ["new", "old-00"]


def test_a_damaged_record_does_not_hide_the_others(call: Call) -> None:
    record("good", START, END)
    record("bad", START, torn="\0\0\0\n")
    called = call("ps")
    assert called.exit_code == 0
    assert [line.split()[:2] for line in called.out.splitlines()[1:]] == [["bad", "unreadable"], ["good", "finished"]]
    called = call("watch", "bad")
    assert called.exit_code == 1
    assert "runs/bad/events.jsonl, line 2: not an event" in called.err


def test_no_runs(call: Call) -> None:
    assert call("ps").out == "no runs in runs\n"
    assert json.loads(call("ps", "--json").out) == []


def test_a_diverged_loss_is_strict_json(call: Call) -> None:
    record("mine", START, *steps(2, loss=float("inf")))
    for command in (("watch", "mine", "--json"), ("ps", "--json")):
        json.loads(call(*command).out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mine",), "there is no run named 'mine' in runs"),
        (("notes",), "runs/notes is not the folder of a run: there is no events.jsonl in it"),
        ((), "no run in runs is running: give a NAME"),
        (("--run-dir", "elsewhere"), "no run in elsewhere is running"),
    ],
)
def test_what_is_no_run_is_said(call: Call, arguments: tuple[str, ...], words: str) -> None:
    Path("runs", "notes").mkdir(parents=True)
    record("old", START, END)
    called = call("watch", *arguments)
    assert (called.exit_code, called.out) == (2, "")
    assert words in called.err


def test_of_two_that_run_one_is_to_be_named(call: Call, alive: Callable[..., EventLog]) -> None:
    alive("one", START)
    alive("two", START)
    assert "2 runs in runs are running: give the NAME of one of one, two" in call("watch").err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def test_on_a_terminal_a_run_is_shown_until_it_ends(
    call: Call, alive: Callable[..., EventLog], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from easyscale.cli.watch import watch_command

    log = alive("mine", START, *steps(2))
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("easyscale.cli.watch.time.sleep", lambda _: log.write(END))
    assert watch_command.main(["mine"], standalone_mode=False) == 0
    shown = terminal.getvalue()
    assert shown.index("running") < shown.index("finished")
    assert "\x1b" in shown


def test_ctrl_c_ends_the_looking_without_a_word(
    call: Call, alive: Callable[..., EventLog], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    alive("mine", START, *steps(2))
    monkeypatch.setattr("easyscale.cli.watch.time.sleep", interrupt)
    errors = io.StringIO()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("sys.stderr", errors)
    from easyscale.cli.main import main

    assert main(["watch", "mine"]) == 130
    assert errors.getvalue() == ""
    assert terminal.getvalue().rstrip("\n").endswith("\x1b[?25h"), "the cursor is back"


def test_a_dumb_terminal_gets_a_snapshot(
    call: Call, alive: Callable[..., EventLog], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from easyscale.cli.main import main

    monkeypatch.setenv("TERM", "dumb")
    alive("mine", START, *steps(2))
    monkeypatch.setattr("sys.stdout", terminal)
    assert main(["watch", "mine"]) == 0
    assert "\x1b" not in terminal.getvalue()


def test_a_folder_without_events_is_a_run_that_starts_and_after_a_minute_a_dead_one(call: Call) -> None:
    (Path("runs", "mine") / "logs").mkdir(parents=True)
    assert watched(call, "mine")["state"] == "starting"
    os.utime("runs/mine", (BEGAN - 100, BEGAN - 100))
    assert watched(call, "mine")["state"] == "dead"
