"""``easyscale simulate``: a cluster's days in seconds, with the scheduler that production runs. Starts no process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from easyscale.core.errors import RefusedError

if TYPE_CHECKING:
    from easyscale.sim.experiment import Outcome


@click.command("simulate")
@click.option("--trace", "traces", multiple=True, metavar="FILE", help="Jobs as CSV; several files are put together.")
@click.option("--generate", type=int, metavar="JOBS", help="Draw this many jobs instead of reading a trace.")
@click.option("--days", type=float, default=1.0, show_default=True, help="With --generate: they arrive in this time.")
@click.option("--cluster", default="V100:32,P100:16,T4:16", show_default=True, metavar="KIND:N,...")
@click.option("--policy", default="easyscale", show_default=True, metavar="P[,P...]", help="One or several to compare.")
@click.option(
    "--step-times", metavar="FILE", help="CSV: model,batch_size,gpu,step_time_s; for traces that name models."
)
@click.option("--mode", help="With --step-times: which value of its column 'mode'.")
@click.option(
    "--fixed-share", type=float, default=0.0, show_default=True, help="Share of a step's time the batch leaves."
)
@click.option("--columns", metavar="NAME=COLUMN,...", help="Which column of a foreign trace is what.")
@click.option(
    "--recorded-on", metavar="KIND", help="Kind that a trace's durations were measured on.  [default: the first]"
)
@click.option(
    "--relative-speed", metavar="KIND=S,...", help="Speeds of kinds, for traces with durations.  [default: 1]"
)
@click.option("--no-mixing", is_flag=True, help="No job is eligible for D2, for traces with durations.")
@click.option("--backlog", is_flag=True, help="All jobs are submitted at time 0.")
@click.option("--rescale-cost", default="1", show_default=True, metavar="S[,MODEL=S...]", help="Seconds per rescale.")
@click.option(
    "--interval", type=float, default=0.0, show_default=True, help="Decide every so many seconds; 0: at once."
)
@click.option("--network", metavar="SIZE:IN:OUT", help="Nodes of SIZE; a step costs IN s inside one, OUT s beyond.")
@click.option("--failures", type=float, default=0.0, show_default=True, help="Failures per device and day.")
@click.option("--repair", type=float, default=3600.0, show_default=True, help="Seconds until a failed device is back.")
@click.option("--reclaims", type=float, default=0.0, show_default=True, help="Spot reclaims per device and day.")
@click.option("--reclaimed-for", type=float, default=3600.0, show_default=True, help="Seconds until it is back.")
@click.option("--checkpoint", type=float, default=600.0, show_default=True, help="Seconds between checkpoints.")
@click.option(
    "--device-trace", metavar="FILE", help="CSV of t_s,kind,count: spot devices that are reclaimed and return."
)
@click.option("--serving", metavar="FILE", help="CSV of t_s and GPUs held by serving, which has priority.")
@click.option("--serving-kind", metavar="KIND", help="Kind that serving uses.  [default: the first]")
@click.option("--serving-duty", metavar="FILE", help="CSV of t_s and percent that serving's GPUs are busy, of one day.")
@click.option("--serving-begin", type=float, default=0.0, show_default=True, help="Day of the curve to begin with.")
@click.option("--give-back", type=float, default=5.0, show_default=True, help="Longest time to give a GPU back, in s.")
@click.option("--until", type=float, metavar="DAYS", help="Stop then.  [default: with the last job; 2 with --serving]")
@click.option("--seed", type=int, default=0, show_default=True, help="Root of everything drawn.")
@click.option("--published", is_flag=True, help="The published simulator's rules, errors included, on its cluster.")
@click.option("--trace-out", metavar="FILE", help="Write the trace in our own format.")
@click.option("--out", metavar="DIR", help="Write report.json, and per policy its jobs and timeline as CSV.")
@click.option("--plots", is_flag=True, help="With --out: pictures too, as PNG and SVG (needs matplotlib).")
@click.option("--json", "is_json", is_flag=True, help="Print the result as JSON.")
def simulate_command(**given: Any) -> int:
    """Run a trace of jobs through a cluster policy on simulated time.

    Policies: easyscale, easyscale-homo (preferred kind only), easyscale-short (shortest first), fifo, backfill, srtf,
    one-at-a-time, or module:function for your own. With --published: yarn-cs, homo, heter.

    For example: easyscale simulate --generate 200 --policy easyscale,fifo,backfill
    """
    if given["plots"] and not given["out"]:
        raise RefusedError("--plots needs a folder to draw into: add --out DIR")
    if given["plots"]:
        from easyscale.sim.plots import matplotlib_figure

        matplotlib_figure()
    return _published(given) if given["published"] else _ours(given)


def _ours(given: dict[str, Any]) -> int:
    from easyscale.cli.simulate_report import Bar, print_outcomes
    from easyscale.cli.simulate_setup import experiment_of, policies_of
    from easyscale.sim.experiment import comparison, run_policy

    policies = policies_of(given["policy"])
    experiment = experiment_of(given)
    if given["trace_out"]:
        from easyscale.sim.files import write_text
        from easyscale.sim.traces.own import written

        write_text(Path(given["trace_out"]), written(experiment.jobs))
    with Bar() as bar:
        outcomes = [run_policy(experiment, policy, bar.on_progress) for policy in policies]
    report = {
        "jobs": len(experiment.jobs),
        "cluster": dict(zip(experiment.kinds, experiment.capacity, strict=True)),
        "rescale_cost": given["rescale_cost"],
        "interval_s": given["interval"],
        "seed": given["seed"],
        "policies": [outcome.to_json() for outcome in outcomes],
        "mean_jct_ratio": comparison(outcomes),
    }
    written_paths = _write(given, report, outcomes)
    if given["is_json"]:
        from easyscale.sim.files import as_json

        click.echo(as_json(report), nl=False)
    else:
        print_outcomes(outcomes, written_paths)
    return 0


def _write(given: dict[str, Any], report: dict[str, Any], outcomes: list[Outcome]) -> list[Path]:
    if not given["out"]:
        return []
    from easyscale.sim.files import write_all

    folder = Path(given["out"])
    paths = write_all(folder, report, outcomes)
    if given["plots"]:
        from easyscale.sim.plots import draw_all

        paths += draw_all(folder, outcomes)
    return paths


def _published(given: dict[str, Any]) -> int:
    from easyscale.cli.simulate_report import print_published
    from easyscale.cli.simulate_setup import published_inputs
    from easyscale.sim.files import as_json, write_text
    from easyscale.sim.published.cluster import run_published

    jobs, times, policies = published_inputs(given)
    results = [run_published(jobs, times, policy) for policy in policies]
    report = {
        "rules": "published",
        "jobs": len(jobs),
        "policies": [
            {"policy": each.policy, "makespan_s": each.makespan_s, "mean_jct_s": each.mean_jct_s} for each in results
        ],
    }
    if given["out"]:
        write_text(Path(given["out"]) / "report.json", as_json(report))
    if given["is_json"]:
        click.echo(as_json(report), nl=False)
    else:
        print_published(results)
    return 0
