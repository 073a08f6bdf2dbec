"""The trace published with the paper: a CSV of 68 rows that are 62 jobs. Runs in ``easyscale simulate``.

Promise: the jobs in the order of the file, which decides what is first come; a name that comes again keeps the place
of its first row and the values of its last, as in the published program.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import ClusterJob
from easyscale.schedule.model import JobModel
from easyscale.sim.step_times import StepTimes
from easyscale.sim.trace import TraceJob

SAMPLES_PER_EPOCH = {
    "resnet50": 12800.0,
    "vgg19": 12800.0,
    "shufflenetv2": 12800.0,
    "swintransformer": 12800.0,
    "yolov3": 165.51,
    "bert": 886.41,
    "electra": 886.41,
    "ncf": 49708.45,
}
"""An epoch of the trace is a hundredth of the real data set's."""

_COLUMNS = (
    "name",
    "time",
    "application",
    "max_parallelism",
    "batch_size",
    "epochs",
    "enable_heterogeneous_deterministic",
    "preferred_gpu",
)


@dataclass(frozen=True, slots=True)
class PaperJob:
    """A row of the published trace."""

    name: str
    submit_s: float
    model: str
    num_ests: int
    batch_size: float
    epochs: float
    may_mix: bool
    preferred: str

    @property
    def samples(self) -> float:
        return self.epochs * SAMPLES_PER_EPOCH[self.model]


def is_paper_trace(header: list[str]) -> bool:
    return set(_COLUMNS) <= set(header)


def read_paper_jobs(path: Path) -> list[PaperJob]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    jobs: dict[str, PaperJob] = {}
    for number, row in enumerate(rows, start=2):
        jobs[row["name"]] = _job(path, number, row)
    return list(jobs.values())


def _job(path: Path, number: int, row: dict[str, str]) -> PaperJob:
    model = row["application"].lower()
    if model not in SAMPLES_PER_EPOCH:
        raise RefusedError(f"{path}, row {number}: no data set is known for {model!r}, only for {_known()}")
    try:
        return PaperJob(
            name=row["name"],
            submit_s=float(row["time"]),
            model=model,
            num_ests=int(row["max_parallelism"]),
            batch_size=float(row["batch_size"]),
            epochs=float(row["epochs"]),
            may_mix=float(row["enable_heterogeneous_deterministic"]) != 0,
            preferred=row["preferred_gpu"].upper(),
        )
    except ValueError as error:
        raise RefusedError(f"{path}, row {number}: {error}") from None


def _known() -> str:
    return ", ".join(SAMPLES_PER_EPOCH)


def to_trace_jobs(jobs: list[PaperJob], times: StepTimes, kinds: tuple[str, ...]) -> list[TraceJob]:
    """The same jobs for our own rules: a global step is one mini-batch of every EST."""
    models: dict[JobModel, JobModel] = {}
    return [_trace_job(job, times, kinds, models) for job in sorted(jobs, key=lambda job: job.submit_s)]


def _trace_job(job: PaperJob, times: StepTimes, kinds: tuple[str, ...], models: dict[JobModel, JobModel]) -> TraceJob:
    """``models`` makes one value of equal ones, so that the planner's answers are found by identity."""
    capability = {kind: 1 / times.seconds(job.model, kind, job.batch_size) for kind in kinds}
    model = JobModel(job.num_ests, capability, can_mix_kinds=job.may_mix)
    model = models.setdefault(model, model)
    return TraceJob(
        ClusterJob(job.name, model, job.preferred, job.submit_s),
        steps=job.samples / (job.num_ests * job.batch_size),
        kind_of_model=job.model,
    )
