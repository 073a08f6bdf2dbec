"""What ``easyscale simulate`` prints: a progress bar meanwhile, a table in the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from easyscale.sim.experiment import Outcome
from easyscale.sim.published.cluster import PublishedResult


class Bar:
    """A bar per policy on a terminal, nothing elsewhere."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}
        self._drawn: dict[str, int] = {}

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def on_progress(self, policy: str, done: int, total: int) -> None:
        if self._progress is None or done * 200 // total == self._drawn.get(policy):
            return
        self._drawn[policy] = done * 200 // total
        if policy not in self._tasks:
            self._tasks[policy] = self._progress.add_task(policy, total=total)
        self._progress.update(self._tasks[policy], completed=done)


def print_outcomes(outcomes: Sequence[Outcome], paths: Sequence[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    best = min(outcome.summary.mean_jct_s for outcome in outcomes)
    table = Table(title=f"{outcomes[0].summary.jobs} jobs")
    for heading in ("policy", "mean JCT", "x best", "median", "p95", "makespan", "allocated", "computing", "waste"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for heading in ("rescales", "preempted", "unfinished"):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        it = outcome.summary
        times = [f"{it.mean_jct_s:,.1f}", f"{it.mean_jct_s / best:.2f}" if best else "-"]
        times += [f"{seconds:,.0f}" for seconds in (it.median_jct_s, it.p95_jct_s, it.makespan_s)]
        shares = [f"{100 * share:.1f}%" for share in (it.allocation, it.utilisation, it.waste)]
        table.add_row(it.policy, *times, *shares, str(it.rescales), str(it.preemptions), str(it.unfinished))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for outcome in outcomes:
        if outcome.serving is not None:
            console.print(_serving_line(outcome), soft_wrap=True, highlight=False)
    if paths:
        console.print(f"written: {len(paths)} files in {paths[0].parent}", soft_wrap=True, highlight=False)


def _serving_line(outcome: Outcome) -> str:
    it = outcome.serving
    assert it is not None
    return (
        f"{outcome.summary.policy}: allocated {100 * it['allocation_without']:.1f}% by serving alone, "
        f"{100 * it['allocation_with']:.1f}% with jobs; busy {100 * it['utilisation_without']:.1f}% and "
        f"{100 * it['utilisation_with']:.1f}%; {it['preemptions_per_day']:.0f} preemptions a day, given back in "
        f"{it['give_back_max_s']:.1f} s at most; {it['jobs_failed']} jobs failed; "
        f"{it['training_gpu_hours']:,.0f} GPU hours of training for free"
    )


def print_published(results: Sequence[PublishedResult]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="published rules, errors included")
    for heading in ("policy", "makespan", "mean JCT"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for result in results:
        table.add_row(result.policy, f"{result.makespan_s:.0f}", f"{result.mean_jct_s:.1f}")
    Console().print(table)
