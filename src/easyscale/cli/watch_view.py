"""Runs as tables: the list of ``ps``, the page of ``watch``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from easyscale.cli.status import duration

PHASES = ("decide", "start", "drain", "rendezvous", "restore", "begin", "first_step", "pause")
_NEWEST = 12
_STYLES = {"running": "green", "starting": "cyan", "failed": "red", "dead": "red", "unreadable": "red"}


def print_list(runs: Sequence[dict[str, Any]], hidden: int) -> None:
    """A line for each run."""
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "state", "workers", "placement", "step", "last logged", "age"):
        table.add_column(heading, no_wrap=True, max_width=40 if heading == "placement" else None)
    for one in runs:
        if one["state"] == "unreadable":
            table.add_row(one["name"], _state(one), "", "", "", one["error"], "")
            continue
        scalars = _scalars(list(one["scalars"].items())[:1])
        cells = (str(one["num_workers"]), one["placement"] or "", _steps(one), scalars, age(one["age_s"]))
        table.add_row(one["name"], _state(one), *map(Text, cells))
    console = _console()
    console.print(table)
    if hidden:
        console.print(f"and {hidden} older: easyscale ps --all", highlight=False)


def print_snapshot(known: dict[str, Any]) -> None:
    """All that is known of a run, once."""
    _console().print(view(known, newest=None))


def view(known: dict[str, Any], newest: int | None = _NEWEST) -> RenderableType:
    """A page about a run.

    Args:
        newest: how many lines of the history are shown; None shows all.
    """
    parts: list[RenderableType] = [_title(known), _progress(known), _budget(known)]
    if known["error"]:
        parts.append(Text(known["error"], "red"))
    if known["checkpoint"]:
        parts.append(Text(f"checkpoint {known['checkpoint']}"))
    if known["digest"]:
        parts.append(Text(f"digest {known['digest']}"))
    if known["plan"]:
        parts.append(_plan(known["plan"]))
    if known["workers"]:
        parts += [Text(), _workers(known)]
    history = known["history"]
    shown = history if newest is None else history[-newest:]
    if shown:
        parts += [Text(), _history(shown)]
    if len(shown) < len(history):
        parts.append(Text(f"and {len(history) - len(shown)} earlier"))
    return Group(*parts)


def age(seconds: float) -> str:
    """Short: 42s, 5m, 3h, 2d."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def _console() -> Console:
    """Elsewhere than on a terminal: no escape codes, whatever the environment asks for, and room for long lines."""
    if sys.stdout.isatty():
        return Console()
    return Console(force_terminal=False, no_color=True, width=160)


def _state(known: dict[str, Any]) -> Text:
    return Text(known["state"], _STYLES.get(known["state"], ""))


def _title(known: dict[str, Any]) -> Text:
    ests = f"{known['num_ests']} ESTs on " if known["num_ests"] else ""
    noun = "worker" if known["num_workers"] == 1 else "workers"
    line = Text.assemble((known["name"], "bold"), "  ", _state(known), f"  {ests}{known['num_workers']} {noun}")
    line.append(f"  generation {known['generation']}  {duration(known['seconds'])}")
    if known["wanted"]:
        line.append(f"  on the way to {known['wanted']}", "yellow")
    return line


def _progress(known: dict[str, Any]) -> Table:
    line = Table.grid(padding=(0, 2))
    epoch = "" if known["epoch"] is None else f"  epoch {known['epoch']}"
    cells: list[Text | ProgressBar] = [Text(f"step {_steps(known)}{epoch}")]
    if known["total_steps"]:
        cells.append(ProgressBar(total=known["total_steps"], completed=known["global_steps"], width=24))
    cells.append(Text(_scalars(known["scalars"].items()), "cyan"))
    if known["steps_per_s"]:
        cells.append(Text(f"{known['steps_per_s']:.3g} steps/s"))
    if known["eta_s"] is not None:
        cells.append(Text(f"{duration(known['eta_s'])} to go"))
    line.add_row(*cells)
    return line


def _budget(known: dict[str, Any]) -> Text:
    most = "" if known["max_failures"] is None else f" of {known['max_failures']}"
    return Text(f"workers lost: {known['lost_workers']}; failures in a row: {known['failures']}{most}")


def _plan(plan: dict[str, Any]) -> Text:
    """What is expected, what was measured, and why the planner decided what it did last."""
    line = Text(f"plan {plan['placement']}: {plan['steps_per_s']:.3g} steps/s, {plan['waste']:.0%} waste")
    if plan["measured_steps_per_s"] is not None:
        line.append(f"; {plan['measured_steps_per_s']:.3g} steps/s measured when it was decided")
    return line.append(f"\n{plan['decision']} at step {plan['global_step']}: {plan['reason']}", "dim")


def _workers(known: dict[str, Any]) -> Table:
    planned = {one["worker"]: one for one in known["plan"]["workers"]} if known["plan"] else {}
    table = Table(box=None, pad_edge=False)
    table.add_column("worker", justify="right")
    table.add_column("ESTs")
    for heading in ("kind", "mini-batches/s") if planned else ():
        table.add_column(heading)
    for one in known["workers"]:
        about = planned.get(one["worker"])
        more = (about["kind"], f"{about['capability']:.3g}") if about else ()
        table.add_row(str(one["worker"]), ", ".join(map(str, one["virtual_ranks"])), *more)
    return table


def _history(changes: Sequence[dict[str, Any]]) -> Table:
    """A rescale with its phases; a loss or failure with its sentence."""
    table = Table(box=None, pad_edge=False)
    for heading in ("after", "step", "what"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for one in changes:
        after = duration(one["after_s"])
        if one["what"] == "rescale":
            what = Text(f"{one['before']} → {one['placement']} ({one['reason']})\n")
            table.add_row(after, str(one["global_step"]), what.append(_phases(one["seconds"]), "dim"))
        else:
            table.add_row(after, "", Text(f"{one['what']}: {one['message']}", "red"))
    return table


def _phases(seconds: dict[str, float]) -> str:
    times = [f"{phase.replace('_', ' ')} {1000 * seconds[phase]:,.0f}" for phase in PHASES if phase in seconds]
    return f"{', '.join(times)} ms"


def _steps(known: dict[str, Any]) -> str:
    return f"{known['global_steps']}{'/' + str(known['total_steps']) if known['total_steps'] else ''}"


def _scalars(items: Any) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in items)
