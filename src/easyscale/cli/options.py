"""Options that several verbs share, and what they mean together. Everything wrong is said before a process starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from easyscale.core.errors import RefusedError
from easyscale.core.job import JobSpec, ScriptSpec
from easyscale.core.placement import Placement

Command = TypeVar("Command", bound=Callable[..., Any])

SCRIPT_CONTEXT = {"allow_interspersed_args": False}
"""What follows the script is the script's, dashes and all."""


def job_options(command: Command) -> Command:
    """What belongs to the job, and so may change its bits."""
    for option in reversed(
        (
            click.option("--seed", type=int, help="Root of every random number.  [default: the script's, or 0]"),
            click.option("--rng", type=click.Choice(["stepwise", "ddp"]), help="How random streams of ESTs are made."),
            click.option(
                "--reduction",
                type=click.Choice(["tree", "ring"]),
                help="Order in which gradients are summed.",
            ),
            click.option("--determinism", metavar="LEVEL", help="Determinism level: D0 or D1."),
            click.option(
                "--threads",
                type=int,
                default=1,
                show_default=True,
                help="Threads of a worker (changes bits).",
            ),
            click.option("--stage", type=click.Choice(["device", "host"]), help="Where partial gradient sums wait."),
        )
    ):
        command = option(command)
    return command


def script_arguments(command: Command) -> Command:
    """The user's program and its own arguments."""
    command = click.argument("args", nargs=-1, type=click.UNPROCESSED)(command)
    return click.argument("script")(command)


def overrides_of(job: dict[str, Any], num_ests: int) -> dict[str, Any]:
    """What the user gave, checked: it wins over the script's own words. Threads always count."""
    overrides = {name: value for name, value in job.items() if value is not None}
    JobSpec(num_ests=num_ests, **overrides)
    return overrides


def existing_script(path: str, args: tuple[str, ...]) -> ScriptSpec:
    if Path(path).is_dir():
        raise RefusedError(f"{path} is a folder: give the Python file to run")
    if not Path(path).is_file():
        raise RefusedError(f"script {path} does not exist (looked in {Path.cwd()}): give the Python file to run")
    return ScriptSpec(path, args)


def number_of_workers(text: str) -> int:
    if ":" in text:
        raise RefusedError(
            f"--workers {text} asks for a range, but this version runs a job on a fixed number of workers: "
            f"give one number"
        )
    try:
        return int(text)
    except ValueError:
        raise RefusedError(f"--workers {text!r} is not a number: write it as --workers 2") from None


def parsed_placement(text: str, num_ests: int | None) -> Placement:
    """The placement written in ``text``, of ``num_ests`` ESTs if that is given."""
    placement = Placement.parse(text)
    if num_ests is not None and placement.num_ests != num_ests:
        raise RefusedError(
            f"--placement {text} holds {placement.num_ests} ESTs but --ests says {num_ests}: make them agree or "
            f"leave --ests out"
        )
    return placement


def chosen_placement(num_ests: int | None, workers: str | None, placement: str | None) -> Placement:
    """Where the ESTs run, from whichever of the three the user gave."""
    num_workers = None if workers is None else number_of_workers(workers)
    if placement is None:
        return Placement.even(num_ests if num_ests is not None else num_workers or 1, num_workers or 1)
    chosen = parsed_placement(placement, num_ests)
    if num_workers is not None and chosen.num_workers != num_workers:
        raise RefusedError(
            f"--placement {placement} has {chosen.num_workers} workers but --workers says {num_workers}: make them "
            f"agree or leave --workers out"
        )
    return chosen
