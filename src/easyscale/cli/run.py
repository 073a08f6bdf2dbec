"""``easyscale run``: train a script on worker processes of this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from easyscale.cli import options
from easyscale.cli.planning import default_workers, planned, planning_options

if TYPE_CHECKING:
    from easyscale.launch.run import RunResult


@click.command("run", context_settings=options.SCRIPT_CONTEXT)
@click.option("--ests", type=int, metavar="N", help="Number of ESTs.  [default: the script's num_ests, or W]")
@click.option("--workers", metavar="W", help="Number of worker processes, or a range such as 1:4.  [default: 1]")
@click.option("--placement", metavar="P", help='Which ESTs each worker runs, such as "0,1,2|3".')
@click.option("--rescale", metavar="STEP:W,...", help="Change the workers at these global steps, such as 10:4,20:1.")
@options.job_options
@click.option("--max-failures", type=int, default=20, show_default=True, help="Workers that may be lost in a row.")
@click.option(
    "--hang-timeout",
    type=float,
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds after which a worker that says nothing is killed.",
)
@planning_options
@options.checkpoint_options
@click.option("--name", metavar="NAME", help="Name of the run.  [default: from script and time]")
@click.option("--run-dir", default="runs", show_default=True, metavar="DIR", help="Where folders of runs are kept.")
@click.option("--quiet", is_flag=True, help="Show the script's output and errors, nothing else.")
@click.option("--json", "is_json", is_flag=True, help="Print the result as JSON; the script's output goes to stderr.")
@options.script_arguments
def run_command(
    ests: int | None,
    workers: str | None,
    placement: str | None,
    rescale: str | None,
    max_failures: int,
    hang_timeout: float,
    grace: float,
    name: str | None,
    run_dir: str,
    quiet: bool,
    is_json: bool,
    script: str,
    args: tuple[str, ...],
    **more: Any,
) -> int:
    """Run SCRIPT with its ARGS as a job of ESTs on worker processes.

    The job's numbers depend on the number of ESTs, never on the number of workers, which may change while it runs:
    workers that are lost are replaced.
    """
    from easyscale.cli.console import RunConsole
    from easyscale.launch.folder import RunFolder
    from easyscale.launch.forkserver import running_forkserver
    from easyscale.launch.run import run
    from easyscale.launch.spec import RunSpec

    workers = default_workers(workers, placement, more)
    chosen = options.chosen_placement(ests, workers, placement)
    checkpoint = options.checkpoint(more, name or script)
    program = options.existing_script(script, args)
    rules = options.elasticity(options.range_of_workers(workers), chosen, rescale, max_failures, hang_timeout)
    may_place = placement is None and ests is not None
    rules, chosen = planned(rules, chosen, more, program, Path(run_dir), may_place=may_place)
    spec = RunSpec(
        script=program,
        placement=chosen,
        is_num_ests_explicit=ests is not None or placement is not None,
        overrides=options.overrides_of(more, chosen.num_ests),
        elasticity=rules,
        checkpoint=checkpoint,
        grace_s=grace,
    )
    folder = RunFolder.create(Path(run_dir), name, script)
    console = RunConsole(is_quiet=quiet, is_stdout_taken=is_json)
    with running_forkserver():
        result = run(spec, folder, console)
    console.clear()
    print_end(result, is_quiet=quiet)
    if is_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    return result.exit_code


def print_end(result: RunResult, *, is_quiet: bool) -> None:
    """The last lines of a run, on standard error."""
    if result.state == "finished":
        if not is_quiet:
            print(f"finished: {_summary(result)}, {result.folder.path}", file=sys.stderr)
        return
    if result.failure is None:
        print(f"easyscale: {result.error} after {_count(result.global_steps, 'global step')}", file=sys.stderr)
        return
    print_failure(result)


def print_failure(result: RunResult) -> None:
    """The user's traceback, or one sentence, and where it happened."""
    cause = result.failure
    if cause is None:
        return
    if cause.kind == "error":
        print(cause.details, file=sys.stderr, end="")
    else:
        print(f"easyscale: {cause.message}", file=sys.stderr)
        print(cause.details, file=sys.stderr, end="")
    if cause.where:
        print(f"easyscale: {cause.where}", file=sys.stderr)


def _summary(result: RunResult) -> str:
    workers = _count(result.num_workers, "worker")
    if result.num_ests is None:
        return f"the script opened no session, {workers}"
    digest = f", digest {result.digest[:12]}…" if result.digest else ""
    steps = _count(result.global_steps, "global step")
    return f"{steps}, {_count(result.num_ests, 'EST')} on {workers}{digest}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
