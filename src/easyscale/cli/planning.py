"""Options of ``run`` about kinds of devices and the planner, and what they mean together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from easyscale.cli.kinds import parsed_counts, parsed_limits, parsed_speeds
from easyscale.core.errors import RefusedError
from easyscale.core.job import ScriptSpec
from easyscale.core.placement import Placement

if TYPE_CHECKING:
    from easyscale.launch.devices import Devices
    from easyscale.launch.elasticity import Elasticity

Command = TypeVar("Command", bound=Callable[..., Any])

_NAMES = (
    *("plan", "plan_gain", "plan_cooldown", "capability", "memory", "device_kinds", "emulate_speed"),
    "emulate_slowdown",
)


def planning_options(command: Command) -> Command:
    """When ESTs move by themselves, and on which devices."""
    for option in reversed(
        (
            click.option(
                "--plan",
                type=click.Choice(["auto", "off"]),
                help="Move ESTs to where they are faster.  [default: auto with kinds or capabilities, else off]",
            ),
            click.option(
                "--plan-gain",
                type=float,
                default=0.1,
                show_default=True,
                metavar="G",
                help="Least speed-up that is worth a move (0.1: ten per cent).",
            ),
            click.option(
                "--plan-cooldown",
                type=int,
                default=10,
                show_default=True,
                metavar="STEPS",
                help="Global steps between two moves, at least.",
            ),
            click.option(
                "--capability",
                metavar="KIND=R,...|RUN",
                help="Mini-batches/s of one EST by kind, or the folder of a run that has measured them.",
            ),
            click.option("--memory", metavar="KIND=N,...", help="The most ESTs that fit on a device of the kind."),
            click.option("--device-kinds", metavar="KIND:N,...", help="Emulated: the kinds of the workers' devices."),
            click.option("--emulate-speed", metavar="KIND=S,...", help="Emulated: how fast workers of a kind are."),
            click.option(
                "--emulate-slowdown",
                metavar="STEP:WORKER=S,...",
                help="Emulated: from this global step on this worker has so much of its speed.",
            ),
        )
    ):
        command = option(command)
    return command


def default_workers(workers: str | None, placement: str | None, given: dict[str, Any]) -> str | None:
    """One worker for each device that was named, if nobody said anything else."""
    if workers is not None or placement is not None or given["device_kinds"] is None:
        return workers
    return str(sum(parsed_counts("--device-kinds", given["device_kinds"]).values()))


def planned(
    rules: Elasticity,
    placement: Placement,
    given: dict[str, Any],
    script: ScriptSpec,
    run_dir: Path,
    *,
    may_place: bool,
) -> tuple[Elasticity, Placement]:
    """Takes the options of ``planning_options`` out of ``given``.

    Args:
        may_place: whether the planner may choose where the job begins: nobody said it, and the number of ESTs is known.

    Returns:
        What the run may do, and where it begins.
    """
    from easyscale.schedule.replan import PlanRules, best_placement

    plan, gain, cooldown, capability, memory, kinds, speed, slowdown = (given.pop(name) for name in _NAMES)
    devices = _devices(kinds, speed, slowdown)
    if devices.kinds and rules.max_workers > len(devices.kinds):
        raise RefusedError(
            f"--device-kinds {kinds} names {len(devices.kinds)} devices, but up to {rules.max_workers} workers were "
            f"asked for: name one device for each"
        )
    rules = replace(rules, devices=devices)
    is_on = plan == "auto" or (plan is None and (kinds is not None or capability is not None))
    if not is_on:
        if capability is not None:
            raise RefusedError("--capability is for the planner, but --plan off was given: leave one of them out")
        return rules, placement
    if rules.schedule:
        raise RefusedError("--rescale says when ESTs move, and the planner decides that itself: add --plan off")
    if not gain > 0 or cooldown < 0:
        raise RefusedError("--plan-gain must be more than 0 and --plan-cooldown 0 or more")
    used = devices.kinds[: placement.num_workers] or _any(placement.num_workers)
    table = _table(capability, script, run_dir, set(used))
    limits = {} if memory is None else parsed_limits("--memory", memory)
    plan_rules = PlanRules(gain, cooldown, table, limits, rules.min_workers)
    if may_place:
        placement = best_placement(plan_rules, used, placement)
    return replace(rules, plan=plan_rules), placement


def _any(count: int) -> tuple[str, ...]:
    from easyscale.launch.devices import ANY_KIND

    return (ANY_KIND,) * count


def _table(capability: str | None, script: ScriptSpec, run_dir: Path, kinds: set[str]) -> dict[str, float]:
    """From a table, the folder of a run, or the newest run of the same script."""
    from easyscale.launch.profiles import newest_profile, read_profile

    if capability is None:
        found = newest_profile(run_dir, script.path, script.args, kinds)
        return {} if found is None else found.capability
    table = (
        parsed_speeds("--capability", capability) if "=" in capability else read_profile(Path(capability)).capability
    )
    for kind, speed in table.items():
        if not 0 < speed < float("inf"):
            raise RefusedError(f"--capability gives {kind} {speed} mini-batches/s: give more than 0")
    return table


def _devices(kinds: str | None, speed: str | None, slowdown: str | None) -> Devices:
    from easyscale.launch.devices import Devices

    counts = {} if kinds is None else parsed_counts("--device-kinds", kinds)
    names = tuple(kind for kind, count in counts.items() for _ in range(count))
    if kinds is not None and not names:
        raise RefusedError(f"--device-kinds {kinds} names no device: write it as --device-kinds V100:1,T4:2")
    speeds = {} if speed is None else parsed_speeds("--emulate-speed", speed)
    unknown = sorted(set(speeds) - set(names))
    if unknown:
        raise RefusedError(f"--emulate-speed names {', '.join(unknown)}: name the kind in --device-kinds too")
    for kind, value in speeds.items():
        if not 0 < value < float("inf"):
            raise RefusedError(f"--emulate-speed gives {kind} {value}: give more than 0, 1 for the machine's own speed")
    fastest = max(speeds.values(), default=1.0)
    relative = {kind: value / max(1.0, fastest) for kind, value in speeds.items()}
    return Devices(names, relative, () if slowdown is None else _slowdowns(slowdown))


def _slowdowns(text: str) -> tuple[tuple[int, int, float], ...]:
    found = []
    for part in text.split(","):
        where, _, speed = part.partition("=")
        step, _, worker = where.partition(":")
        try:
            found.append((int(step), int(worker), float(speed)))
        except ValueError:
            raise RefusedError(
                f"--emulate-slowdown {text!r} is not understood: write it as --emulate-slowdown 100:2=0.25"
            ) from None
        if not 0 < found[-1][2] <= 1:
            raise RefusedError(f"--emulate-slowdown {text}: give a share of the worker's speed, above 0 and up to 1")
    return tuple(found)
