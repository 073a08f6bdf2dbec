"""The status line lives beside the script's output without touching it, and only on a terminal."""

from __future__ import annotations

import io

import pytest

from easyscale.cli.console import RunConsole
from easyscale.cli.status import mean_scalars
from easyscale.core.events import StepEvent

pytestmark = pytest.mark.draws_random_numbers  # rich numbers its styles with them, in this process only

STEP = StepEvent(1.0, 11, 2, 0.1, {"0": {"loss": 1.0, "accuracy": 0.5}, "1": {"loss": 2.0}})
ERASE = "\r\x1b[2K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output and error, as they are in a terminal. Called in the test: pytest sets its own before."""
    both = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stderr", both)
    monkeypatch.setattr("sys.stdout", both)
    return both


def test_the_status_line_shows_step_epoch_and_means(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    console = RunConsole(label="1/2")
    console.step(STEP, total_steps=100)
    shown = terminal.getvalue()
    assert shown.startswith(ERASE)
    assert "\n" not in shown
    for words in ("1/2", "step 12/100", "epoch 2", "loss 1.5", "accuracy 0.5"):
        assert words in shown


def test_output_replaces_the_status_line_and_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    console = RunConsole()
    console.tick()
    before = terminal.getvalue()
    assert "starting" in before
    console.output("stdout", "hello\n")
    assert terminal.getvalue() == before + ERASE + "hello\n"


def test_the_status_line_waits_for_the_end_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    console = RunConsole()
    console.output("stdout", "progress: ")
    console.step(STEP, total_steps=None)
    assert terminal.getvalue() == "progress: "
    console.output("stdout", "done\n")
    console.step(STEP, total_steps=None)
    assert terminal.getvalue().startswith("progress: done\n" + ERASE)


@pytest.mark.parametrize("kind", [{"is_quiet": True}, {}])
def test_there_is_none_when_quiet_or_elsewhere(monkeypatch: pytest.MonkeyPatch, kind: dict[str, bool]) -> None:
    terminal = open_terminal(monkeypatch)
    if not kind:
        terminal.isatty = lambda: False  # type: ignore[method-assign]
    console = RunConsole(**kind)
    console.step(STEP, total_steps=100)
    console.tick()
    console.clear()
    assert terminal.getvalue() == ""


def test_a_dumb_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    RunConsole().step(STEP, total_steps=100)
    assert terminal.getvalue() == ""


def test_a_diverged_loss_has_no_mean() -> None:
    event = StepEvent(1.0, 0, 0, 0.1, {"0": {"loss": float("inf")}, "1": {"loss": 2.0}})
    ((name, value),) = mean_scalars(event)
    assert name == "loss"
    assert value != value
