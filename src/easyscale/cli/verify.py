"""``easyscale verify``: run a script under several placements and prove that every step gives the same bits."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from easyscale.cli import disturbance, options
from easyscale.cli.disturbance import start_among
from easyscale.cli.proof import Elastic, Plan, Proof, Variant
from easyscale.cli.run import print_end
from easyscale.core.errors import RefusedError
from easyscale.core.job import ScriptSpec
from easyscale.core.placement import Placement

if TYPE_CHECKING:
    from easyscale.launch.run import RunResult

_DDP = {"rng": "ddp", "reduction": "ring"}


@click.command("verify", context_settings=options.SCRIPT_CONTEXT)
@click.option("--ests", type=int, metavar="N", help="Number of ESTs.  [default: the placement's, or 4]")
@click.option("--workers", metavar="W,W,...", help="Numbers of workers to try.  [default: 1, 2 and one per EST]")
@click.option("--placement", "placements", multiple=True, metavar="P", help='Another one, such as "0,1,2|3"; repeat.')
@click.option("--rescale", metavar="STEP:W,...", help="Also a run that changes its workers before these global steps.")
@click.option("--kill", metavar="STEP,...", help="In that run, kill a worker (SIGKILL) in each of these global steps.")
@click.option("--stop", metavar="STEP,...", help="In that run, halt a worker (SIGSTOP) in each of these global steps.")
@click.option(
    "--hang-timeout",
    type=float,
    default=5.0,
    show_default=True,
    metavar="S",
    help="Seconds after which a worker that says nothing is killed.",
)
@click.option("--against", type=click.Choice(["ddp"]), help="Also under plain DDP (--rng ddp --reduction ring).")
@options.job_options
@click.option("--run-dir", metavar="DIR", help="Keep folders of the runs here.  [default: a temporary folder]")
@click.option("--keep", is_flag=True, help="Keep the temporary folder.")
@click.option("--json", "is_json", is_flag=True, help="Print the result as JSON.")
@options.script_arguments
def verify_command(
    ests: int | None,
    workers: str | None,
    placements: tuple[str, ...],
    rescale: str | None,
    kill: str | None,
    stop: str | None,
    hang_timeout: float,
    against: str | None,
    run_dir: str | None,
    keep: bool,
    is_json: bool,
    script: str,
    args: tuple[str, ...],
    **job: Any,
) -> int:
    """Run SCRIPT with its ARGS under each placement and compare all tensors after every global step.

    With --rescale, --kill or --stop also in one run to which all that happens: it begins on the first placement of
    two or more workers, replaces those that are lost, and must give the same tensors after every global step.

    Exit code 0 when all are equal and all that was asked for happened, 1 when not.
    """
    from easyscale.cli.proof_report import print_report, to_json
    from easyscale.launch.forkserver import running_forkserver

    asked = disturbance.parse(rescale, kill, stop)
    chosen = _placements(ests, workers, placements)
    elastic = Elastic(asked, disturbance.elasticity(asked, start_among(chosen), hang_timeout)) if asked else None
    plan = _plan(chosen, against, elastic, job, options.existing_script(script, args))
    folder, is_kept = _folder(run_dir, script, keep)
    proof = Proof(plan)
    try:
        with running_forkserver():
            proof.run(folder)
        is_kept = is_kept or (proof.failed is not None and proof.failed[1].state == "failed")
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
    if proof.failed is not None:
        return _report_failure(*proof.failed)
    if is_json:
        click.echo(json.dumps(to_json(proof), indent=2))
    else:
        print_report(proof)
    if is_kept:
        print(f"folders of the runs: {folder}", file=sys.stderr)
    return 0 if proof.is_proved else 1


def _report_failure(variant: Variant, result: RunResult) -> int:
    print_end(result, is_quiet=True)
    if result.state == "failed":
        print(f"easyscale: nothing was proved, the run on {variant} failed", file=sys.stderr)
    return result.exit_code


def _plan(
    chosen: list[Placement],
    against: str | None,
    elastic: Elastic | None,
    job: dict[str, Any],
    script: ScriptSpec,
) -> Plan:
    if against == "ddp":
        for name, needed in _DDP.items():
            if job.get(name) not in (None, needed):
                raise RefusedError(f"--against ddp needs --{name} {needed}, not {job[name]}: leave --{name} out")
        job = {**job, **_DDP}
    elif len(chosen) < 2 and elastic is None:
        raise RefusedError(
            f"placement {chosen[0]} is the only one: give more --workers or --placement to compare it with, or "
            f"--against ddp, or what shall happen in an elastic run (--rescale, --kill, --stop)"
        )
    overrides = options.overrides_of(job, chosen[0].num_ests)
    return Plan(script, tuple(chosen), overrides, is_against_ddp=against == "ddp", elastic=elastic)


def _placements(ests: int | None, workers: str | None, placements: tuple[str, ...]) -> list[Placement]:
    num_ests = ests if ests is not None or not placements else Placement.parse(placements[0]).num_ests
    given = [options.parsed_placement(text, num_ests) for text in placements]
    num_ests = 4 if num_ests is None else num_ests
    if workers is not None:
        counts = [options.number_of_workers(text) for text in workers.split(",")]
    else:
        counts = [1] if given else sorted({1, min(2, num_ests), num_ests})
    even = [Placement.even(num_ests, count) for count in counts]
    if workers is None:
        even = [placement for placement in even if placement not in given]
    return even + given


def _folder(run_dir: str | None, script: str, keep: bool) -> tuple[Path, bool]:
    """Where the runs write, and whether it stays: a temporary one does only if asked to or if a run failed."""
    from easyscale.launch.folder import make_unique_folder

    if run_dir is not None:
        return make_unique_folder(Path(run_dir), script, prefix="verify-"), True
    return Path(tempfile.mkdtemp(prefix="easyscale-verify-")), keep
