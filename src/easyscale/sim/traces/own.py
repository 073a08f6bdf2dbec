"""Our own trace format: a CSV with everything that decides a simulation. Runs in ``easyscale simulate``.

Promise: what was written is read back as the same values. Any other format can be turned into it (``--trace-out``).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import ClusterJob
from easyscale.schedule.model import JobModel
from easyscale.sim.trace import TraceJob

_CAPABILITY, _STEP_S, _MAX_ESTS = "capability_", "step_s_", "max_ests_"
_COLUMNS = (
    "name",
    "submit_s",
    "model",
    "num_ests",
    "steps",
    "preferred",
    "can_mix_kinds",
    "priority",
    "min_devices",
    "max_devices",
    "gang",
    "rescale_s",
    "sync_s",
)


def is_own_trace(header: list[str]) -> bool:
    return set(header) >= {"name", "submit_s", "num_ests", "steps", "preferred"}


def written(jobs: Iterable[TraceJob]) -> str:
    """The CSV's text.

    ``capability_KIND`` is the mini-batches/s of one EST there, empty if the job may not run on the kind
    (``step_s_KIND``, the seconds of one, is read as well); ``max_ests_KIND`` the most ESTs that a device's memory
    holds, empty for all.
    """
    jobs = list(jobs)
    kinds = sorted({kind for job in jobs for kind in job.job.model.capability_by_kind})
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    limited = sorted({kind for job in jobs for kind in job.job.model.max_ests_by_kind})
    out.writerow([*_COLUMNS, *(_CAPABILITY + kind for kind in kinds), *(_MAX_ESTS + kind for kind in limited)])
    for job in jobs:
        model = job.job.model
        sync = ";".join(f"{devices}={cost!r}" for devices, cost in model.sync_s_by_devices)
        speeds = [model.capability_by_kind.get(kind) for kind in kinds]
        out.writerow(
            [
                job.job.name,
                repr(job.job.submit_s),
                job.kind_of_model,
                model.num_ests,
                repr(job.steps),
                job.job.preferred,
                int(model.can_mix_kinds),
                job.job.priority,
                job.job.min_devices,
                job.job.max_devices,
                job.job.gang,
                "" if job.rescale_s is None else repr(job.rescale_s),
                sync,
                *("" if speed is None else repr(speed) for speed in speeds),
                *(model.max_ests_by_kind.get(kind, "") for kind in limited),
            ]
        )
    return text.getvalue()


def read_own(path: Path, kinds: tuple[str, ...]) -> list[TraceJob]:
    """The jobs by rising submission, on these kinds alone."""
    models: dict[JobModel, JobModel] = {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    jobs = []
    for number, row in enumerate(rows, start=2):
        try:
            jobs.append(_job(row, _model(row, kinds, models)))
        except (ValueError, KeyError, ZeroDivisionError, RefusedError) as error:
            raise RefusedError(f"{path}, row {number}: {error}") from None
    return sorted(jobs, key=lambda job: job.job.submit_s)


def _model(row: dict[str, str], kinds: tuple[str, ...], models: dict[JobModel, JobModel]) -> JobModel:
    """One value for all jobs that are alike, so that the planner's answers are kept once."""
    capability = {kind: speed for kind in kinds if (speed := _capability(row, kind)) is not None}
    if not capability:
        raise RefusedError(
            f"job {row['name']} has no {_CAPABILITY}... or {_STEP_S}... of {', '.join(kinds)}: give another --cluster"
        )
    points = [part.partition("=") for part in (row.get("sync_s") or "").split(";") if part]
    model = JobModel(
        int(row["num_ests"]),
        capability,
        {kind: int(row[_MAX_ESTS + kind]) for kind in capability if row.get(_MAX_ESTS + kind)},
        can_mix_kinds=row.get("can_mix_kinds") != "0",
        sync_s_by_devices=tuple((int(devices), float(cost)) for devices, _, cost in points),
    )
    return models.setdefault(model, model)


def _capability(row: dict[str, str], kind: str) -> float | None:
    if row.get(_CAPABILITY + kind):
        return float(row[_CAPABILITY + kind])
    return 1 / float(row[_STEP_S + kind]) if row.get(_STEP_S + kind) else None


def _job(row: dict[str, str], model: JobModel) -> TraceJob:
    job = ClusterJob(
        row["name"],
        model,
        row["preferred"],
        float(row["submit_s"]),
        priority=int(row.get("priority") or 0),
        min_devices=int(row.get("min_devices") or 0),
        max_devices=int(row.get("max_devices") or 0),
        gang=int(row.get("gang") or 0),
    )
    rescale = row.get("rescale_s")
    return TraceJob(job, float(row["steps"]), float(rescale) if rescale else None, row.get("model") or "")
