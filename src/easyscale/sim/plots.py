"""Pictures of simulations, as PNG and SVG. Runs in ``easyscale simulate --plots``.

matplotlib is an extra (``pip install 'easyscale-torch[plots]'``) and imported here alone, when a picture is asked for.
Promise: the same simulation gives the same SVG.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from easyscale.core.errors import RefusedError
from easyscale.sim.experiment import Outcome
from easyscale.sim.recorder import Recorder

_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")
_MAX_POINTS = 4000


def matplotlib_figure() -> Any:
    """The module to draw with, or a sentence that says how to get it."""
    try:
        import matplotlib
        from matplotlib import figure
    except ImportError:
        raise RefusedError(
            "plots need matplotlib, which is not installed: pip install 'easyscale-torch[plots]', or leave --plots out"
        ) from None
    matplotlib.rcParams["svg.hashsalt"] = "easyscale"
    return figure


def draw_all(folder: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """JCT distribution of all policies; of each the allocation by kind, waste, and who held what when."""
    module = matplotlib_figure()
    paths = _draw(module, folder / "jct", (8, 4.5), lambda axes: _jct(axes, outcomes))
    for outcome in outcomes:
        name, recorder = outcome.summary.policy.replace(":", "-"), outcome.recorder
        paths += _draw(module, folder / f"allocation-{name}", (8, 4), _on(_allocation, recorder))
        paths += _draw(module, folder / f"waste-{name}", (8, 4), _on(_waste, recorder))
        if outcome.serving is not None:
            paths += _draw(module, folder / f"serving-{name}", (8, 4), _on(_serving, recorder))
        if all(job.segments is not None for job in recorder.jobs):
            height = max(4.0, 0.09 * len(recorder.jobs))
            paths += _draw(module, folder / f"gantt-{name}", (9, height), _on(_gantt, recorder))
    return paths


def _on(draw: Callable[[Any, Recorder], None], recorder: Recorder) -> Callable[[Any], None]:
    return lambda axes: draw(axes, recorder)


def _draw(module: Any, path: Path, size: tuple[float, float], draw: Callable[[Any], None]) -> list[Path]:
    figure = module.Figure(figsize=size, layout="constrained")
    draw(figure.add_subplot())
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix in ("png", "svg"):
        whole = path.with_name(f"{path.name}.{suffix}")
        partial = path.with_name(f"{path.name}.partial.{suffix}")
        metadata = {"Date": None} if suffix == "svg" else {"Software": None}
        figure.savefig(partial, dpi=120, metadata=metadata)
        partial.replace(whole)
        paths.append(whole)
    return paths


def _jct(axes: Any, outcomes: Sequence[Outcome]) -> None:
    for number, outcome in enumerate(outcomes):
        times = sorted(job.jct_s for job in outcome.recorder.jobs if job.end_s is not None)
        shares = [(index + 1) / len(times) for index in range(len(times))]
        label = f"{outcome.summary.policy} (mean {outcome.summary.mean_jct_s:,.0f} s)"
        axes.step(times, shares, where="post", label=label, color=_COLOURS[number % len(_COLOURS)])
    axes.set(xscale="log", xlabel="job completion time (s)", ylabel="share of jobs", title="Job completion times")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _allocation(axes: Any, recorder: Recorder) -> None:
    picked = _picked(len(recorder.times_s))
    hours = [recorder.times_s[index] / 3600 for index in picked]
    columns = [[column[index] for index in picked] for column in recorder.held_by_kind]
    axes.stackplot(hours, *columns, labels=recorder.kinds, step="post", colors=_COLOURS, alpha=0.85)
    there = [sum(column[index] for column in recorder.capacity_by_kind) for index in picked]
    axes.step(hours, there, where="post", color="black", linewidth=0.8, label="there are")
    axes.set(xlabel="time (h)", ylabel="devices held")
    _legend(axes)


def _serving(axes: Any, recorder: Recorder) -> None:
    """Who holds the cluster: serving, jobs, nobody. Cut off where only serving is."""
    picked = _picked(len(recorder.times_s))
    hours = [recorder.times_s[index] / 3600 for index in picked]
    total = sum(recorder.first_capacity)
    serving = [total - sum(column[index] for column in recorder.capacity_by_kind) for index in picked]
    jobs = [sum(column[index] for column in recorder.held_by_kind) for index in picked]
    labels = ("serving", "elastic jobs")
    axes.stackplot(hours, serving, jobs, labels=labels, step="post", colors=("#bbbbbb", "#2ca02c"))
    axes.axhline(total, color="black", linewidth=0.8)
    axes.set(xlabel="time (h)", ylabel="GPUs held", ylim=(0.9 * min(serving), 1.01 * total))
    _legend(axes)


def _waste(axes: Any, recorder: Recorder) -> None:
    """Over time, in windows: held and computing, held and not, free."""
    windows = waste_windows(recorder)
    hours = [at_s / 3600 for at_s, _, _ in windows]
    axes.stackplot(
        hours,
        [busy for _, busy, _ in windows],
        [wasted for _, _, wasted in windows],
        labels=("computing", "held, not computing (ESTs do not divide evenly)"),
        step="post",
        colors=("#2ca02c", "#d62728"),
        alpha=0.85,
    )
    axes.set(xlabel="time (h)", ylabel="devices")
    _legend(axes)


def waste_windows(recorder: Recorder, windows: int = 200) -> list[tuple[float, float, float]]:
    """(begin, devices computing, devices held but not computing) in windows of equal width."""
    begin_s = recorder.times_s[0] if recorder.times_s else 0.0
    width_s = max(1e-9, (recorder.end_s - begin_s) / windows)
    busy, held = [0.0] * windows, [0.0] * windows
    for job in recorder.jobs:
        for from_s, to_s, counts, share in job.spans(recorder.end_s):
            devices = sum(counts)
            first = int((from_s - begin_s) / width_s)
            for window in range(first, min(windows, int((to_s - begin_s) / width_s) + 1)):
                left_s = begin_s + window * width_s
                overlap_s = min(to_s, left_s + width_s) - max(from_s, left_s)
                held[window] += max(0.0, overlap_s) * devices / width_s
                busy[window] += max(0.0, overlap_s) * devices * share / width_s
    return [(begin_s + n * width_s, busy[n], max(0.0, held[n] - busy[n])) for n in range(windows)]


def _gantt(axes: Any, recorder: Recorder) -> None:
    """A line a job: thin grey while it waits, thick while it runs, as thick as it has devices; coloured by its kind."""
    most = max(1, sum(recorder.first_capacity))
    for row, job in enumerate(recorder.jobs):
        end_s = recorder.end_s if job.end_s is None else job.end_s
        axes.plot([job.submit_s / 3600, end_s / 3600], [row, row], color="#bbbbbb", linewidth=0.5)
        for from_s, to_s, held, _ in job.spans(recorder.end_s):
            kind = max(range(len(held)), key=lambda each: (held[each], -each))
            width = 0.25 + 0.75 * (sum(held) / most) ** 0.5
            axes.barh(row, (to_s - from_s) / 3600, left=from_s / 3600, height=width, color=_COLOURS[kind])
    axes.set(xlabel="time (h)", ylabel="job, by submission (height: devices held)")
    axes.invert_yaxis()
    handles = [axes.barh(0, 0, color=_COLOURS[kind]) for kind in range(len(recorder.kinds))]
    _legend(axes, handles, recorder.kinds)


def _legend(axes: Any, *entries: Any) -> None:
    """Above the picture, so that it hides nothing."""
    axes.legend(*entries, fontsize="small", loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, frameon=False)


def _picked(count: int) -> range:
    return range(0, count, max(1, count // _MAX_POINTS))
