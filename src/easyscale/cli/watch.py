"""``easyscale watch``: one run, live on a terminal; a snapshot anywhere else."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from easyscale.launch.runs import Run

_LOOK_S = 0.5


@click.command("watch")
@click.argument("name", required=False)
@click.option("--run-dir", default="runs", show_default=True, metavar="DIR", help="Where folders of runs are kept.")
@click.option("--json", "is_json", is_flag=True, help="Print a snapshot as JSON.")
def watch_command(name: str | None, run_dir: str, is_json: bool) -> int:
    """Show the run NAME until it ends: ESTs on workers, speed, losses, where the time of each rescale went.

    Without NAME the only one that is running. Looking changes nothing, and Ctrl-C ends the looking alone.
    """
    from easyscale.cli.watch_facts import to_json
    from easyscale.cli.watch_view import print_snapshot
    from easyscale.launch.runs import find

    try:
        run = find(Path(run_dir), name)
        run.look()
        if is_json:
            click.echo(to_json(_known(run)))
        elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not run.is_over:
            _live(run)
        else:
            print_snapshot(_known(run))
    except KeyboardInterrupt:
        return 130
    return 0


def _known(run: Run) -> dict[str, Any]:
    from easyscale.cli.watch_facts import change_facts, facts

    return {**facts(run), "history": [change_facts(event, run.began_at) for event in run.history.changes]}


def _live(run: Run) -> None:
    from rich.live import Live

    from easyscale.cli.watch_view import view

    with Live(view(_known(run)), auto_refresh=False) as live:
        while not run.is_over:
            time.sleep(_LOOK_S)  # nothing tells of a file that grows, on every file system
            run.look()
            live.update(view(_known(run)), refresh=True)
