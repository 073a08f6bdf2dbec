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

_STEP_S = "step_s_"
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
    """The CSV's text. ``step_s_KIND`` is the time of one mini-batch of one EST there; empty: not on this kind."""
    jobs = list(jobs)
    kinds = sorted({kind for job in jobs for kind in job.job.model.capability_by_kind})
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow([*_COLUMNS, *(_STEP_S + kind for kind in kinds)])
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
                *("" if speed is None else repr(1 / speed) for speed in speeds),
            ]
        )
    return text.getvalue()


def read_own(path: Path, kinds: tuple[str, ...]) -> list[TraceJob]:
    """The jobs by rising submission, on these kinds alone."""
    models: dict[tuple[str, ...], JobModel] = {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    jobs = []
    for number, row in enumerate(rows, start=2):
        try:
            jobs.append(_job(row, _model(row, kinds, models)))
        except (ValueError, KeyError, RefusedError) as error:
            raise RefusedError(f"{path}, row {number}: {error}") from None
    return sorted(jobs, key=lambda job: job.job.submit_s)


def _model(row: dict[str, str], kinds: tuple[str, ...], models: dict[tuple[str, ...], JobModel]) -> JobModel:
    names = [kind for kind in kinds if row.get(_STEP_S + kind)]
    if not names:
        raise RefusedError(f"job {row['name']} has no step_s_... of {', '.join(kinds)}: give another --cluster")
    key = (
        row["num_ests"],
        row.get("can_mix_kinds", ""),
        row.get("sync_s", ""),
        *(row[_STEP_S + kind] for kind in names),
    )
    if key not in models:
        points = [part.partition("=") for part in (row.get("sync_s") or "").split(";") if part]
        models[key] = JobModel(
            int(row["num_ests"]),
            {kind: 1 / float(row[_STEP_S + kind]) for kind in names},
            can_mix_kinds=row.get("can_mix_kinds") != "0",
            sync_s_by_devices=tuple((int(devices), float(cost)) for devices, _, cost in points),
        )
    return models[key]


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
