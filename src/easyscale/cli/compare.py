"""``easyscale compare``: are two runs, or two files of tensors, equal in every bit?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from easyscale.core.errors import RefusedError


@click.command("compare")
@click.argument("left", metavar="A")
@click.argument("right", metavar="B")
@click.option("--json", "is_json", is_flag=True, help="Print the result as JSON.")
def compare_command(left: str, right: str, is_json: bool) -> int:
    """Compare the runs A and B: folders, events.jsonl files, or .safetensors files.

    Exit code 0 when they are equal, 1 when not.
    """
    paths = Path(left), Path(right)
    for path in paths:
        if not path.exists():
            raise RefusedError(f"{path} does not exist: give the folder of a run, or a file that one wrote")
    kinds = {path.suffix == ".safetensors" for path in paths}
    if len(kinds) > 1:
        raise RefusedError(f"{left} and {right} are of different kinds: compare two runs or two .safetensors files")
    return _compare_tensors(*paths, is_json) if kinds.pop() else _compare_runs(*paths, is_json)


def _compare_runs(left: Path, right: Path, is_json: bool) -> int:
    from easyscale.cli import records

    comparison = records.compare(records.load(left), records.load(right))
    if is_json:
        click.echo(json.dumps(comparison.to_json(), indent=2))
    elif comparison.is_equal:
        click.echo(f"equal: {comparison.compared}")
    else:
        click.echo(f"different: {comparison.reason} (compared: {comparison.compared})")
    return 0 if comparison.is_equal else 1


def _compare_tensors(left: Path, right: Path, is_json: bool) -> int:
    from easyscale.cli import tensors

    difference = tensors.first_difference(left, right)
    compared = f"{tensors.count_tensors(left)} tensors"
    if is_json:
        found = None if difference is None else difference.to_json()
        click.echo(json.dumps({"equal": difference is None, "compared": compared, "difference": found}, indent=2))
    else:
        click.echo(f"equal: {compared}" if difference is None else f"different: {difference}")
    return 0 if difference is None else 1
