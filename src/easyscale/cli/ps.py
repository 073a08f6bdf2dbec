"""``easyscale ps``: which runs there are, and how far each is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

_RECENT = 10


@click.command("ps")
@click.option("--all", "is_all", is_flag=True, help="Every run, not only those that run and the ten newest others.")
@click.option("--run-dir", default="runs", show_default=True, metavar="DIR", help="Where folders of runs are kept.")
@click.option("--json", "is_json", is_flag=True, help="Print a list as JSON.")
def ps_command(is_all: bool, run_dir: str, is_json: bool) -> int:
    """List runs, the newest first: state, workers, steps, what was logged last.

    A run whose launcher was killed is "dead".
    """
    from easyscale.cli.watch_facts import to_json
    from easyscale.cli.watch_view import print_list

    known = _known(Path(run_dir))
    over = [one["name"] for one in known if one["state"] not in ("starting", "running")]
    hidden = set() if is_all else set(over[_RECENT:])
    shown = [one for one in known if one["name"] not in hidden]
    if is_json:
        click.echo(to_json(shown))
    elif not shown:
        click.echo(f"no runs in {run_dir}")
    else:
        print_list(shown, len(hidden))
    return 0


def _known(run_dir: Path) -> list[dict[str, Any]]:
    from easyscale.cli.watch_facts import facts
    from easyscale.launch.runs import look_at_all

    return [
        facts(run) if wrong is None else {"name": run.name, "state": "unreadable", "error": wrong}
        for run, wrong in look_at_all(run_dir)
    ]
