"""Pollux's workloads: application, replicas and total batch size; no duration. Runs in ``easyscale simulate``.

How long a job takes follows from the samples that its application is trained on in all, and a table of step times.
"""

from __future__ import annotations

import csv
from pathlib import Path

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import ClusterJob
from easyscale.schedule.model import JobModel
from easyscale.sim.step_times import StepTimes
from easyscale.sim.trace import TraceJob

COLUMNS = {"name", "time", "application", "num_replicas", "batch_size"}

SAMPLES = {
    "bert": 2 * 88_641.0,
    "cifar10": 100 * 50_000.0,
    "deepspeech2": 80 * 15_583.0,
    "imagenet": 90 * 1_281_167.0,
    "ncf": 10 * 4_970_845.0,
    "yolov3": 50 * 16_551.0,
}
"""Pollux's greatest number of epochs of each, times the size of its data set. It stops earlier, at a target metric."""


def is_pollux_trace(header: list[str]) -> bool:
    return set(header) >= COLUMNS


def read_pollux(path: Path, times: StepTimes, kinds: tuple[str, ...]) -> list[TraceJob]:
    """A replica becomes an EST with its share of the batch."""
    models: dict[tuple[str, int, float], JobModel] = {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    jobs = []
    for number, row in enumerate(rows, start=2):
        if row["application"] not in SAMPLES:
            raise RefusedError(f"{path}, row {number}: {row['application']!r} is none of {', '.join(SAMPLES)}")
        try:
            num_ests, batch = int(row["num_replicas"]), float(row["batch_size"])
            key = (row["application"], num_ests, batch / num_ests)
            if key not in models:
                models[key] = _model(*key, times, kinds)
            job = ClusterJob(row["name"], models[key], _fastest(models[key]), float(row["time"]))
        except (ValueError, ZeroDivisionError) as error:
            raise RefusedError(f"{path}, row {number}: {error}") from None
        jobs.append(TraceJob(job, SAMPLES[key[0]] / batch, kind_of_model=key[0]))
    return sorted(jobs, key=lambda job: job.job.submit_s)


def _model(application: str, num_ests: int, batch_size: float, times: StepTimes, kinds: tuple[str, ...]) -> JobModel:
    return JobModel(num_ests, {kind: 1 / times.seconds(application, kind, batch_size) for kind in kinds})


def _fastest(model: JobModel) -> str:
    return model.kinds[0].name
