"""Traces of jobs of which only submission, devices and duration are known. Runs in ``easyscale simulate``.

Of such a job a duration of d seconds on n devices becomes n ESTs and d steps of one second on the kind that the trace
was recorded on. ElasticFlow's files have their own column names; any other file is read by a mapping of columns.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import ClusterJob
from easyscale.schedule.model import JobModel
from easyscale.sim.trace import TraceJob

ELASTICFLOW = {"name": "job_id", "submit": "submission_time", "devices": "num_gpu", "duration": "duration"}
REQUIRED = ("submit", "devices", "duration")
KNOWN = (*REQUIRED, "name", "model", "kind", "priority", "ests")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Where the durations of a trace come from.

    Attributes:
        speed_by_kind: relative speed of the cluster's kinds, in the cluster's order.
        kind: the kind that durations were recorded on.
        can_mix: whether jobs may mix kinds.
    """

    speed_by_kind: Mapping[str, float]
    kind: str
    can_mix: bool = True
    models: dict[tuple[int, str], JobModel] = field(default_factory=dict, repr=False, compare=False)

    def model(self, num_ests: int, kind: str) -> JobModel:
        """One value for all jobs that are alike, so that the planner's answers are kept once."""
        key = (num_ests, kind)
        if key not in self.models:
            capability = {name: speed / self.speed_by_kind[kind] for name, speed in self.speed_by_kind.items()}
            self.models[key] = JobModel(num_ests, capability, can_mix_kinds=self.can_mix)
        return self.models[key]


def parse_columns(text: str) -> dict[str, str]:
    """Read ``submit=start_time,devices=gpus,duration=run_s``."""
    pairs = [part.partition("=") for part in text.split(",")]
    columns = {ours.strip(): theirs.strip() for ours, _, theirs in pairs}
    wrong = [name for name in columns if name not in KNOWN or not columns[name]]
    missing = [name for name in REQUIRED if name not in columns]
    if wrong or missing:
        raise RefusedError(
            f"--columns {text!r} {'misses ' + ', '.join(missing) if missing else 'has ' + ', '.join(wrong)}: write it "
            f"as submit=COLUMN,devices=COLUMN,duration=COLUMN, and if you like {', '.join(KNOWN[3:])}"
        )
    return columns


def read_columns(path: Path, columns: Mapping[str, str], recorded: Recorded) -> list[TraceJob]:
    """The jobs of a CSV by rising submission; those without devices or duration never ran and are left out."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        absent = sorted(column for column in columns.values() if column not in (reader.fieldnames or ()))
        if absent:
            raise RefusedError(f"{path} has no column {', '.join(absent)}; it has {', '.join(reader.fieldnames or ())}")
        jobs = list(_jobs(path, reader, columns, recorded))
    return sorted(jobs, key=lambda job: job.job.submit_s)


def _jobs(
    path: Path, rows: Iterator[dict[str, str]], columns: Mapping[str, str], recorded: Recorded
) -> Iterator[TraceJob]:
    for number, row in enumerate(rows, start=2):
        values = {ours: row[theirs] for ours, theirs in columns.items()}
        try:
            devices, duration_s = int(float(values["devices"])), float(values["duration"])
            if devices > 0 and duration_s > 0:
                yield _job(f"{path.stem}-{number}", values, devices, duration_s, recorded)
        except (ValueError, TypeError) as error:
            raise RefusedError(f"{path}, row {number}: {error}") from None


def _job(name: str, values: Mapping[str, str], devices: int, duration_s: float, recorded: Recorded) -> TraceJob:
    kind = values.get("kind", "").upper() or recorded.kind
    if kind not in recorded.speed_by_kind:
        raise ValueError(f"the job ran on {kind}, but the cluster has {', '.join(recorded.speed_by_kind)}")
    num_ests = int(float(values.get("ests") or devices))
    job = ClusterJob(
        values.get("name") or name,
        recorded.model(num_ests, kind),
        kind,
        float(values["submit"]),
        priority=int(float(values.get("priority") or 0)),
        gang=devices,
    )
    # the duration was on ``devices`` devices, on which a step takes the ESTs of the fullest of them, one after another
    return TraceJob(job, duration_s / -(-num_ests // devices), kind_of_model=values.get("model", ""))
