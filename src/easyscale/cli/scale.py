"""``easyscale scale``: ask a running job to go on with another number of workers."""

from __future__ import annotations

import json
from pathlib import Path

import click

from easyscale.core.errors import RefusedError
from easyscale.core.placement import Placement


@click.command("scale")
@click.argument("name")
@click.option("--workers", type=int, metavar="W", help="Number of worker processes.")
@click.option("--placement", metavar="P", help='Which ESTs each worker runs, such as "0,1,2|3".')
@click.option("--run-dir", default="runs", show_default=True, metavar="DIR", help="Where folders of runs are kept.")
@click.option("--json", "is_json", is_flag=True, help="Print the answer as JSON.")
def scale_command(name: str, workers: int | None, placement: str | None, run_dir: str, is_json: bool) -> int:
    """Ask the job NAME to go on with other workers. It trains on while new ones start.

    The job's numbers do not change.
    """
    from easyscale.launch.control import ask

    if (workers is None) == (placement is None):
        raise RefusedError("easyscale scale takes either --workers or --placement: give one of them")
    wanted = {"workers": workers} if placement is None else {"placement": str(Placement.parse(placement))}
    answer = ask(Path(run_dir), name, {"ask": "scale", **wanted})
    if is_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        click.echo(f"{name}: from {answer['from']} to {answer['to']}, as soon as the workers are ready")
    return 0
