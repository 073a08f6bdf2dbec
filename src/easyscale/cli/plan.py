"""``easyscale plan``: what a job would do on given devices, before anything is submitted. Starts no process.

It asks the planner that decides for running jobs, so what it prints is what they would do.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from easyscale.cli.kinds import parsed_counts, parsed_limits, parsed_speeds, written_counts
from easyscale.core.errors import RefusedError

if TYPE_CHECKING:
    from easyscale.schedule.model import JobModel, Plan
    from easyscale.schedule.proposals import Proposal


@dataclass(frozen=True)
class Advice:
    """Everything that the command found.

    Attributes:
        job: what was planned.
        devices: what may be used (kind -> how many).
        sizes: for each number of devices that is faster than all smaller ones its plan; the last is the plan.
        proposals: what to add, the best first.
    """

    job: JobModel
    devices: dict[str, int]
    sizes: tuple[Plan, ...]
    proposals: tuple[Proposal, ...]

    @property
    def plan(self) -> Plan:
        return self.sizes[-1]


@click.command("plan")
@click.option("--ests", type=int, metavar="N", help="Number of ESTs of the job.  [default: the run's]")
@click.option(
    "--capability",
    required=True,
    metavar="KIND=R,...|RUN",
    help="Mini-batches/s of one EST by kind, or the folder of a run that has measured them.",
)
@click.option("--devices", metavar="KIND:N,...", help="Devices that the job may use.  [default: the run's]")
@click.option("--memory", metavar="KIND=N,...", help="The most ESTs that fit on one device.  [default: no limit]")
@click.option(
    "--determinism",
    type=click.Choice(["D0", "D1", "D1+D2"]),
    help="Only with D2 may a plan mix kinds.  [default: D1; for a run whose workers pretend to mix them D1+D2]",
)
@click.option("--sizes", metavar="N,N,...", help="Numbers of devices that are allowed.  [default: all]")
@click.option("--sync", metavar="N=S,...", help="Seconds of synchronising in each step on N devices.  [default: 0]")
@click.option("--free", metavar="KIND:N,...", help="What could be added.  [default: of each kind as many as there are]")
@click.option("--proposals", "best", type=click.IntRange(min=0), default=3, show_default=True, help="How many to show.")
@click.option("--json", "is_json", is_flag=True, help="Print the result as JSON.")
def plan_command(
    ests: int | None,
    capability: str,
    devices: str | None,
    memory: str | None,
    determinism: str | None,
    sizes: str | None,
    sync: str | None,
    free: str | None,
    best: int,
    is_json: bool,
) -> int:
    """Say how a job's ESTs would be divided over devices, how fast that would be, and which devices to add.

    For example: easyscale plan --ests 16 --capability V100=3.1,P100=2.4,T4=1.0 --devices V100:2,P100:1
    --determinism D1+D2, or, from what a run has measured: easyscale plan --capability runs/mine
    """
    from easyscale.cli.plan_report import print_report, to_json
    from easyscale.schedule.model import JobModel

    known = _from_table(capability) if "=" in capability else _from_run(capability)
    ests = known.num_ests if ests is None else ests
    devices = known.devices if devices is None else devices
    if ests is None or devices is None:
        raise RefusedError(f"--capability {capability} does not say for what: give --ests and --devices too")
    determinism = determinism or ("D1+D2" if known.is_mixed else "D1")
    job = JobModel(
        ests,
        known.capability,
        {} if memory is None else parsed_limits("--memory", memory),
        "D2" in determinism,
        None if sizes is None else _parsed_sizes(sizes),
        known.sync if sync is None else _parsed_sync(sync),
    )
    advice = _advice(
        job, _known(job, "--devices", devices), None if free is None else _known(job, "--free", free), best
    )
    if is_json:
        click.echo(json.dumps(to_json(advice, determinism), indent=2))
    else:
        print_report(advice, determinism)
    return 0


@dataclass(frozen=True)
class _Known:
    """What is known before options are read; what is None has to be given."""

    capability: dict[str, float]
    sync: tuple[tuple[int, float], ...] = ()
    num_ests: int | None = None
    devices: str | None = None
    is_mixed: bool = False


def _from_table(text: str) -> _Known:
    return _Known(parsed_speeds("--capability", text))


def _from_run(folder: str) -> _Known:
    """What a run has measured, and where its planner left it."""
    from easyscale.core import events
    from easyscale.launch.history import HistoryReader
    from easyscale.launch.profiles import read_profile

    profile = read_profile(Path(folder))
    reader = HistoryReader(profile.folder / events.FILE_NAME)
    reader.read()
    plan = reader.history.plan
    if plan is None:
        return _Known(profile.capability, profile.sync_s_by_devices)
    counts = Counter(str(worker["kind"]) for worker in plan.workers)
    num_ests = sum(int(worker["ests"]) for worker in plan.workers)
    return _Known(
        profile.capability, profile.sync_s_by_devices, num_ests, written_counts(dict(counts)), len(counts) > 1
    )


def _advice(job: JobModel, devices: dict[str, int], free: dict[str, int] | None, best: int) -> Advice:
    from easyscale.schedule.planner import plans_by_size
    from easyscale.schedule.proposals import proposals

    sizes = plans_by_size(job, devices)
    if not sizes:
        raise RefusedError(_why_none(job, devices))
    total = sum(devices.values())
    if free is None:
        more = proposals(job, devices, dict.fromkeys(sorted(job.capability_by_kind), total), total, best)
    else:
        more = proposals(job, devices, free, None, best)
    return Advice(job, devices, sizes, more)


def _why_none(job: JobModel, devices: dict[str, int]) -> str:
    asked = f"{job.num_ests} ESTs do not fit on {written_counts(devices)}"
    rooms = {kind.name: kind.limit * devices.get(kind.name, 0) for kind in job.kinds}
    room = sum(rooms.values()) if job.can_mix_kinds else max(rooms.values(), default=0)
    if room < job.num_ests:
        together = "" if job.can_mix_kinds else " of one kind"
        return f"{asked}: there is room for {room} on devices{together}, so add devices or allow more with --memory"
    allowed = ", ".join(map(str, job.allowed_sizes or ()))
    return f"{asked} with {allowed} devices, which --sizes allows: add devices or allow other numbers"


def _known(job: JobModel, option: str, text: str) -> dict[str, int]:
    counts = parsed_counts(option, text)
    unknown = [kind for kind in counts if kind not in job.capability_by_kind]
    if unknown:
        raise RefusedError(
            f"{option} names {', '.join(unknown)}, for which --capability gives no speed: add it there, or choose from "
            f"{', '.join(job.capability_by_kind)}"
        )
    return counts


def _parsed_sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise RefusedError(f"--sizes {text!r} is not numbers of devices: write it as --sizes 1,2,4") from None


def _parsed_sync(text: str) -> tuple[tuple[int, float], ...]:
    try:
        points = [part.split("=") for part in text.split(",")]
        return tuple((int(devices), float(seconds)) for devices, seconds in points)
    except ValueError:
        raise RefusedError(
            f"--sync {text!r} is not seconds by number of devices: write it as --sync 1=0,8=0.05"
        ) from None
