"""Options that several verbs share, and what they mean together. Everything wrong is said before a process starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from easyscale.core.errors import RefusedError
from easyscale.core.job import CheckpointSpec, Fault, JobSpec, ScriptSpec
from easyscale.core.placement import Placement

if TYPE_CHECKING:
    from easyscale.launch.elasticity import Elasticity

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


def checkpoint_options(command: Command) -> Command:
    """Where and when a run writes checkpoints."""
    for option in reversed(
        (
            click.option("--checkpoint-dir", metavar="DIR", help="Write checkpoints into this folder."),
            click.option("--checkpoint-every", type=int, metavar="STEPS", help="After so many global steps."),
            click.option("--checkpoint-minutes", type=float, metavar="M", help="After so many minutes."),
            click.option("--keep", type=int, metavar="N", help="Checkpoints to keep, 0 for all.  [default: 3]"),
            click.option("--resume", is_flag=True, help="Go on from the newest checkpoint, if there is one."),
            click.option("--allow-other-torch", is_flag=True, help="Also from one of another torch (bits may differ)."),
            click.option(
                "--grace",
                type=float,
                default=30.0,
                show_default=True,
                metavar="S",
                help="Seconds for a last checkpoint when the run is asked to end.",
            ),
        )
    ):
        command = option(command)
    return command


def checkpoint(given: dict[str, Any], owner: str) -> CheckpointSpec | None:
    """Takes the options of ``checkpoint_options`` out of ``given``."""
    names = ("checkpoint_dir", "checkpoint_every", "checkpoint_minutes", "keep", "resume", "allow_other_torch")
    folder, every, minutes, keep, resume, allow = (given.pop(name) for name in names)
    if folder is None:
        for name, value in zip(names[1:], (every, minutes, keep, resume, allow), strict=True):
            if value not in (None, False):
                raise RefusedError(f"--{name.replace('_', '-')} needs a folder: give --checkpoint-dir DIR too")
        return None
    if (every is not None and every < 1) or (minutes is not None and minutes <= 0) or (keep is not None and keep < 0):
        raise RefusedError(
            "--checkpoint-every must be 1 or more, --checkpoint-minutes more than 0 and --keep 0 or more"
        )
    path = str(Path(folder).absolute())
    return CheckpointSpec(path, every or 0, minutes or 0.0, 3 if keep is None else keep, resume, allow, owner)


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
    try:
        return int(text)
    except ValueError:
        raise RefusedError(f"--workers {text!r} is not a number: write it as --workers 2") from None


def range_of_workers(text: str | None) -> tuple[int, int] | None:
    """``2`` is 2 to 2, ``1:4`` is 1 to 4."""
    if text is None:
        return None
    low, is_range, high = text.partition(":")
    try:
        found = int(low), int(high if is_range else low)
    except ValueError:
        raise RefusedError(
            f"--workers {text!r} is not a number, nor a range: write it as --workers 2, or --workers 1:4"
        ) from None
    if not 1 <= found[0] <= found[1]:
        raise RefusedError(f"--workers {text} is no range: write the smaller number first, 1 or more")
    return found


def elasticity(
    workers: tuple[int, int] | None,
    placement: Placement,
    rescale: str | None,
    max_failures: int,
    hang_timeout: float,
    faults: tuple[Fault, ...] = (),
) -> Elasticity:
    """What may change while the job runs."""
    from easyscale.launch.elasticity import Elasticity

    schedule = rescale_schedule(rescale)
    low, high = workers or (placement.num_workers, placement.num_workers)
    counts = [placement.num_workers, low, high, *(count for _, count in schedule)]
    if max_failures < 0 or hang_timeout <= 0:
        raise RefusedError("--max-failures must be 0 or more and --hang-timeout more than 0 seconds")
    return Elasticity(min(counts), max(counts), schedule, True, max_failures, hang_timeout, faults)


def rescale_schedule(text: str | None) -> tuple[tuple[int, int], ...]:
    """``10:4,20:1`` is 4 workers before global step 10 and 1 before global step 20."""
    if text is None:
        return ()
    try:
        pairs = [(int(step), int(count)) for step, count in (part.split(":") for part in text.split(","))]
    except ValueError:
        raise RefusedError(f"--rescale {text!r} is not understood: write it as --rescale 10:4,20:1") from None
    steps = [step for step, _ in pairs]
    if steps != sorted(set(steps)) or steps[0] < 1 or min(count for _, count in pairs) < 1:
        raise RefusedError(f"--rescale {text}: give rising global steps from 1 on, each with 1 worker or more")
    return tuple(pairs)


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
    bounds = range_of_workers(workers)
    if placement is None:
        low, high = bounds or (1, 1)
        if num_ests is None:
            return Placement.even(high, high)
        return Placement.even(num_ests, max(low, min(high, num_ests)))
    chosen = parsed_placement(placement, num_ests)
    if bounds is not None and not bounds[0] <= chosen.num_workers <= bounds[1]:
        raise RefusedError(
            f"--placement {placement} has {chosen.num_workers} workers but --workers says {workers}: make them "
            f"agree or leave --workers out"
        )
    return chosen
