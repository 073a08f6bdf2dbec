"""What a simulation comes to: figures of a policy, rows of its jobs and times. Runs in ``easyscale simulate``.

Promise: the same simulation gives the same bytes; times are seconds, shares are of 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from easyscale.sim.recorder import JobStats, Recorder


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy in numbers.

    Attributes:
        policy: its name.
        jobs: how many there were.
        unfinished: how many had not ended when the simulation did.
        makespan_s: from the first submission to the last end.
        mean_jct_s, median_jct_s, p95_jct_s: job completion time, from submission to end.
        mean_queued_s: from submission to the first device.
        allocation: share of the devices' time in which a job held them.
        utilisation: share of it in which they computed.
        waste: of the time held outside rescales, the share not used because ESTs do not divide evenly.
        rescales, preemptions: changes of a running job's devices; times that one lost all of them.
        paused: share of the time held that rescales took.
        lost_steps: thrown away by failures and made again.
        give_backs: see ``give_back_figures``.
    """

    policy: str
    jobs: int
    unfinished: int
    makespan_s: float
    mean_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    mean_queued_s: float
    allocation: float
    utilisation: float
    waste: float
    rescales: int
    preemptions: int
    paused: float
    failures: int
    lost_steps: float
    device_s_by_kind: dict[str, float]
    busy_device_s: float
    events: int
    give_backs: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise(policy: str, recorder: Recorder, events: int) -> Summary:
    jobs = recorder.jobs
    done = [job for job in jobs if job.end_s is not None]
    jcts = sorted(job.jct_s for job in done)
    begin_s = min((job.submit_s for job in jobs), default=0.0)
    end_s = max((job.end_s for job in done if job.end_s is not None), default=recorder.end_s)
    if len(done) < len(jobs):
        end_s = recorder.end_s
    held = [math.fsum(job.device_s[kind] for job in jobs) for kind in range(len(recorder.kinds))]
    there_s = capacity_s(recorder, begin_s, end_s)
    busy_s, paused_s = math.fsum(job.busy_s for job in jobs), math.fsum(job.paused_s for job in jobs)
    running_s = math.fsum(held) - paused_s
    return Summary(
        policy=policy,
        jobs=len(jobs),
        unfinished=len(jobs) - len(done),
        makespan_s=end_s - begin_s,
        mean_jct_s=_mean(jcts),
        median_jct_s=_quantile(jcts, 0.5),
        p95_jct_s=_quantile(jcts, 0.95),
        mean_queued_s=_mean([job.queued_s for job in jobs if job.start_s is not None]),
        allocation=math.fsum(held) / there_s if there_s else 0.0,
        utilisation=busy_s / there_s if there_s else 0.0,
        waste=max(0.0, 1 - busy_s / running_s) if running_s else 0.0,
        rescales=sum(job.rescales for job in jobs),
        preemptions=sum(job.preemptions for job in jobs),
        paused=paused_s / math.fsum(held) if any(held) else 0.0,
        failures=recorder.failures,
        lost_steps=math.fsum(job.lost_steps for job in jobs),
        device_s_by_kind=dict(zip(recorder.kinds, held, strict=True)),
        busy_device_s=busy_s,
        events=events,
        give_backs=give_back_figures(recorder, end_s - begin_s),
    )


def give_back_figures(recorder: Recorder, seconds: float) -> dict[str, float]:
    """How often and how fast devices went back; empty where nobody wanted any."""
    if not recorder.give_backs:
        return {}
    took = sorted(each.took_s for each in recorder.give_backs)
    return {
        "times": float(len(took)),
        "devices": float(sum(each.devices for each in recorder.give_backs)),
        "jobs_hit": float(sum(each.jobs for each in recorder.give_backs)),
        "jobs_hit_per_day": sum(each.jobs for each in recorder.give_backs) / (seconds / 86_400) if seconds else 0.0,
        "mean_s": _mean(took),
        "max_s": took[-1],
    }


def capacity_s(recorder: Recorder, begin_s: float, end_s: float) -> float:
    """Device seconds that there were between two times."""
    return math.fsum(
        integral(recorder.times_s, column, begin_s, end_s, recorder.first_capacity[kind])
        for kind, column in enumerate(recorder.capacity_by_kind)
    )


def integral(times: Sequence[float], values: Sequence[float], begin_s: float, end_s: float, before: float) -> float:
    """Of a step function, which is ``before`` until its first time."""
    parts = []
    at_s, value = begin_s, before
    for time, new in zip(times, values, strict=True):
        if time >= end_s:
            break
        if time > at_s:
            parts.append((time - at_s) * value)
            at_s = time
        value = new
    parts.append(max(0.0, end_s - at_s) * value)
    return math.fsum(parts)


def job_rows(recorder: Recorder) -> list[dict[str, Any]]:
    """One row a job, for a CSV."""
    return [_job_row(job, recorder.kinds) for job in recorder.jobs]


def _job_row(job: JobStats, kinds: tuple[str, ...]) -> dict[str, Any]:
    is_done = job.end_s is not None
    return {
        "name": job.name,
        "model": job.model,
        "num_ests": job.num_ests,
        "submit_s": job.submit_s,
        "start_s": "" if job.start_s is None else job.start_s,
        "end_s": job.end_s if is_done else "",
        "jct_s": job.jct_s if is_done else "",
        "steps": job.steps,
        "steps_done": job.steps_done,
        "lost_steps": job.lost_steps,
        "rescales": job.rescales,
        "preemptions": job.preemptions,
        **{f"device_s_{kind}": seconds for kind, seconds in zip(kinds, job.device_s, strict=True)},
        "busy_device_s": job.busy_s,
        "paused_device_s": job.paused_s,
    }


def timeline_rows(recorder: Recorder) -> list[dict[str, Any]]:
    """One row for each time that something changed, for a CSV."""
    rows = []
    for index, at_s in enumerate(recorder.times_s):
        row: dict[str, Any] = {"t_s": at_s, "running": recorder.running[index], "waiting": recorder.waiting[index]}
        for kind, name in enumerate(recorder.kinds):
            row[f"held_{name}"] = recorder.held_by_kind[kind][index]
            row[f"there_{name}"] = recorder.capacity_by_kind[kind][index]
        rows.append(row)
    return rows


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
